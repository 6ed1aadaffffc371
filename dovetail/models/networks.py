"""Encoders, decoders and heads, each described by a small value that fits in a JSON file.

Letters: B rows, C channels, H height, W width, F features, D code width (flattened).

Outputs have the same bits for a row, whichever rows are computed beside it. Libraries round a
float32 product by how many rows there are and where a row stands, if there are fewer rows or
outputs than their kernels take at a time, and sums by whether a value fills a vector. So rows are
filled up to ``_ROWS`` and a product's outputs to ``_WIDTH``: seen to be enough on processors with
AVX2 and AVX-512 (``tests/models/test_rowwise.py``), not promised of a GPU.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dovetail.data.installed import TRUSTED, imported, is_trusted, tensor_of, trust
from dovetail.data.saving import Saved
from dovetail.data.stored import let_go
from dovetail.errors import ConfigError, ModelError
from dovetail.models.threads import one_thread
from dovetail.settings.models import check_convolutions, check_widths

_ROWS, _WIDTH = 32, 16


def rowwise(
    network: nn.Module, x: Tensor | Mapping[str, Tensor], *, batch_size: int, width: int
) -> Tensor:
    """(N, width) outputs without gradient; layers that keep statistics use them as they are.

    Args:
        network: (B, ...), or a dict block -> (B, ...), to (B, width).
        x: (N, ...), or block -> (N, ...); of pictures 0..255 or 0..1.
        batch_size: rows at a time.
        width: of a row's output.
    """
    blocks = x if isinstance(x, Mapping) else {"": x}
    parameter = next(network.parameters(), None)
    device = None if parameter is None else parameter.device
    num_rows = len(next(iter(blocks.values())))
    images = any(block.dim() > 2 for block in blocks.values())
    trained = [module for module in network.modules() if module.training]
    for module in trained:
        module.training = False
    parts = []
    with torch.inference_mode(), nullcontext() if images else one_thread(blas=False), _Rowwise():
        for start in range(0, num_rows, batch_size):
            batch = {
                name: _filled(network_input(block[start : start + batch_size], device))
                for name, block in blocks.items()
            }
            given = batch if isinstance(x, Mapping) else batch[""]
            parts.append(network(given)[: min(batch_size, num_rows - start)].cpu())
    for module in trained:
        module.training = True
    return torch.cat(parts) if parts else torch.empty(0, width)


def _filled(x: Tensor) -> Tensor:
    """Rows with copies of the last behind them, up to a multiple of ``_ROWS``."""
    lacking = -len(x) % _ROWS
    return torch.cat([x, x[-1:].expand(lacking, *x.shape[1:])]) if lacking else x


class _Rowwise(TorchFunctionMode):
    """Gives the second factor of a product as many outputs as a kernel takes at a time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        make = _PRODUCTS.get(func, func)
        return make(*args, **kwargs) if kwargs else make(*args)


def _matmul(first: Tensor, second: Tensor) -> Tensor:
    lacking = -second.shape[-1] % _WIDTH
    if not lacking or second.dim() < 2:
        return torch.matmul(first, second)
    return torch.matmul(first, F.pad(second, (0, lacking)))[..., :-lacking].contiguous()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    lacking = -len(weight) % _WIDTH
    if not lacking:
        return F.linear(x, weight, bias)
    bias = None if bias is None else F.pad(bias, (0, lacking))
    return F.linear(x, F.pad(weight, (0, 0, 0, lacking)), bias)[..., :-lacking].contiguous()


_PRODUCTS: dict[Any, Any] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), _matmul),
}


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Perceptron(Saved):
    """Linear and ReLU for each width; inputs of any shape are flattened first."""

    kind: ClassVar[str] = "perceptron"

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        check_widths(self.widths)

    def encoder(self, input_shape: Shape) -> nn.Sequential:
        """(B, *input_shape) -> (B, widths[-1])."""
        return nn.Sequential(nn.Flatten(), *_linear_relu(math.prod(input_shape), self.widths))

    def decoder(self, code_shape: Shape, output_shape: Shape) -> nn.Sequential:
        """(B, D) -> (B, *output_shape): the encoder's hidden widths backwards."""
        hidden = self.widths[-2::-1]
        code_width = math.prod(code_shape)
        last = hidden[-1] if hidden else code_width
        return nn.Sequential(
            *_linear_relu(code_width, hidden),
            nn.Linear(last, math.prod(output_shape)),
            nn.Unflatten(1, output_shape),
        )


@dataclass(frozen=True)
class Convolutional(Saved):
    """Convolution and ReLU for each of ``channels``; the feature map is not pooled."""

    kind: ClassVar[str] = "convolutional"

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    padding: int = 1

    def __post_init__(self) -> None:
        check_convolutions(self.channels, self.kernels, self.strides, self.padding)

    def encoder(self, input_shape: Shape) -> nn.Sequential:
        """(B, C, H, W) -> (B, channels[-1], H', W').

        Raises:
            ConfigError: the input is no image, or too small for the kernels.
        """
        layers: list[nn.Module] = []
        shapes = self._shapes(input_shape)
        for before, after, kernel, stride in zip(
            shapes, shapes[1:], self.kernels, self.strides, strict=False
        ):
            layers += [
                nn.Conv2d(before[0], after[0], kernel, stride, self.padding),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers)

    def decoder(self, code_shape: Shape, output_shape: Shape) -> nn.Sequential:
        """(B, D) -> (B, C, H, W): the same layers transposed, last to first.

        Raises:
            ConfigError: a code that an encoder of these layers does not make of that output.
        """
        shapes = self._shapes(output_shape)
        if shapes[-1] != tuple(code_shape):
            raise ConfigError(
                f"this decoder makes images of shape {tuple(output_shape)} from codes of shape "
                f"{shapes[-1]}, but the active party's codes have shape {tuple(code_shape)}; "
                "give this party a decoder of its own, for example by widths: [256]"
            )
        layers: list[nn.Module] = [nn.Unflatten(1, tuple(code_shape))]
        for i in reversed(range(len(self.channels))):
            before, after = shapes[i + 1], shapes[i]
            kernel, stride = self.kernels[i], self.strides[i]
            # A stride rounds down on the way in; these rows are put back on the way out.
            lost = [
                after[axis] - ((before[axis] - 1) * stride - 2 * self.padding + kernel)
                for axis in (1, 2)
            ]
            layers.append(
                nn.ConvTranspose2d(
                    before[0], after[0], kernel, stride, self.padding, (lost[0], lost[1])
                )
            )
            if i:
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def _shapes(self, input_shape: Shape) -> list[Shape]:
        """Shapes before the first, between, and after the last layer."""
        if len(input_shape) != 3:
            raise ConfigError(
                "a convolutional encoder needs images of shape (C, H, W), got rows of shape "
                f"{tuple(input_shape)}; columns take widths, such as encoder = [64, 32]"
            )
        shapes: list[Shape] = [tuple(input_shape)]
        for channels, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
            height, width = (
                (size + 2 * self.padding - kernel) // stride + 1 for size in shapes[-1][1:]
            )
            if height < 1 or width < 1:
                raise ConfigError(
                    f"images of shape {tuple(input_shape)} are too small for kernels {self.kernels}"
                )
            shapes.append((channels, height, width))
        return shapes


@dataclass(frozen=True, eq=False)
class OwnNetwork(Saved):
    """An encoder of a user's own: any torch module, with what it gives flattened into a code.

    A Lightning module's ``forward`` and a Hugging Face model do as they are: see ``tensor_of``.

    Attributes:
        name: an import path; of a module that was given, its class and the sum of its weights.
        made: the module, of which each party and seed trains a copy; or a class or function that
            makes one from the shape of a row.
    """

    kind: ClassVar[str] = "own"

    name: str
    made: Any

    @classmethod
    def given(cls, made: Any) -> OwnNetwork:
        """The module, class or function that was given from Python."""
        kind = type(made) if isinstance(made, nn.Module) else made
        name = f"{kind.__module__}:{kind.__qualname__}"
        if isinstance(made, nn.Module):
            weights = hashlib.sha256(repr(made).encode())
            for value in made.state_dict().values():
                weights.update(value.detach().cpu().contiguous().view(-1).numpy().tobytes())
            name = f"{name}#{weights.hexdigest()[:12]}"
        _own[name] = made
        return cls(name, made)

    @classmethod
    def installed(cls, path: str) -> OwnNetwork:
        """That of an installed package, which a party itself names.

        Raises:
            ConfigError: it cannot be imported.
        """
        trust(path)
        return cls(path, imported(path))

    @classmethod
    def again(cls, name: str) -> OwnNetwork:
        """That which a saved model or a run's settings name.

        Raises:
            ModelError: nobody here gave or trusted it.
        """
        if name in _own:
            return cls(name, _own[name])
        path = name.partition("#")[0]
        if path == name and is_trusted(path):
            return cls(name, imported(path))
        raise ModelError(
            f"its encoder is a network of your own, {name}, and no folder's code is run: give it "
            f"again, load(folder, network=...), or name it in the environment: {TRUSTED}={path}"
        )

    def encoder(self, input_shape: Shape) -> nn.Module:
        """(B, *input_shape) -> a code.

        Raises:
            ConfigError: what was given makes no module.
        """
        is_module = isinstance(self.made, nn.Module)
        made = copy.deepcopy(self.made) if is_module else self.made(tuple(input_shape))
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"{self.name} makes a {type(made).__name__}; give a torch module, or a class or "
                "function that makes one from the shape of a row"
            )
        return _FirstTensor(made).to(torch.empty(0).device)  # where a model is rebuilt: no memory

    def decoder(self, code_shape: Shape, output_shape: Shape) -> nn.Module:
        """None: it encodes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self.name} encodes, and a partner that learns by reconstruction decodes; set "
            'loss = "contrastive", or name widths such as encoder = [64, 32]'
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> OwnNetwork:
        return cls.again(str(stored["name"]))


class _FirstTensor(nn.Module):
    """A network whose output is one tensor, whatever it puts out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = tensor_of(self.network(x))
        return output


#: What was given in this process, by name.
_own: dict[str, Any] = {}

EncoderSpec = Perceptron | Convolutional | OwnNetwork

#: APFed Table 3 (MNIST, Fashion-MNIST); its "31" channels are 32, as the next layer reads 32.
TABLE_3 = Convolutional(channels=(32, 64), kernels=(5, 5), strides=(1, 1))
#: APFed Table 4 (CIFAR); the kernel of width 4 has stride 2.
TABLE_4 = Convolutional(channels=(16, 32, 64), kernels=(5, 4, 5), strides=(1, 2, 1))


@dataclass(frozen=True)
class Head(Saved):
    """The task-related module: Linear, ReLU and dropout for each hidden width, then Linear."""

    widths: tuple[int, ...] = ()
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if min(self.widths, default=1) < 1:
            raise ConfigError(f"a head's hidden widths must be positive, got {self.widths}")

    def build(self, code_width: int, num_outputs: int) -> nn.Sequential:
        """(B, D) -> (B, num_outputs)."""
        layers: list[nn.Module] = []
        for width in self.widths:
            layers += [nn.Linear(code_width, width), nn.ReLU(), nn.Dropout(self.dropout)]
            code_width = width
        return nn.Sequential(*layers, nn.Linear(code_width, num_outputs))


def network_input(x: Tensor, device: torch.device | None = None) -> Tensor:
    """A block's rows as a network takes them: float32, and images of 0..255 scaled to 0..1."""
    let_go()  # of a file that the rows were read of
    x = x.to(device)
    return x.float().div_(255) if x.dtype == torch.uint8 else x.float()


def output_shape(network: nn.Module, input_shape: Shape, device: torch.device) -> Shape:
    """Shape of one row's output; the network sees two rows of zeros, in evaluation mode.

    A perceptron without memory does not: torch would import its compiler, which takes a second.
    """
    if device.type == "meta" and (width := _perceptron_width(network, math.prod(input_shape))):
        return (width,)
    was_training = network.training
    network.eval()
    with torch.no_grad():
        out: Tensor = network(torch.zeros(2, *input_shape, device=device))
    network.train(was_training)
    return tuple(out.shape[1:])


def _perceptron_width(network: nn.Module, width: int) -> int | None:
    """Width of what comes out of flattened rows, if layers that fit each other say it."""
    layers = list(network) if type(network) is nn.Sequential else [network]
    if not layers or not isinstance(layers[0], nn.Flatten) or layers[0].start_dim != 1:
        return None
    for layer in layers[1:]:
        if isinstance(layer, nn.Linear) and layer.in_features == width:
            width = layer.out_features
        elif not isinstance(layer, nn.ReLU):
            return None
    return width


def _linear_relu(width: int, widths: tuple[int, ...]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for next_width in widths:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return layers
