"""A model that its party uses alone: predicts, is saved to a folder, and is loaded from it.

The folder holds ``model.safetensors`` (the weights) and ``model.json`` (everything else: the
networks' layers, the task, and how raw columns become network inputs).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from dovetail.data.inputs import Input, input_from_json
from dovetail.data.task import Classification, Task, task_from_json
from dovetail.errors import DataError, DovetailError, ModelError
from dovetail.models.networks import (
    EncoderSpec,
    Head,
    encoder_from_json,
    network_input,
    output_shape,
)

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of N rows.

    Attributes:
        values: (N,) the class, as its label is written, or the number.
        probabilities: (N, C) float32 in the order of ``classes``, or None for a regression.
        classes: the C classes, or () for a regression.
    """

    values: np.ndarray
    probabilities: np.ndarray | None = None
    classes: tuple[str | int, ...] = ()


@dataclass(eq=False)
class Model:
    """Encoder and head of one party, with what is needed to use them on raw data.

    Attributes:
        party: whose model it is.
        task: what it predicts.
        encoder: (B, *input_shape) -> codes.
        head: (B, D) flattened codes -> (B, outputs).
        input_shape: shape of one row of network input.
        input: how raw columns or images become that row; None if only tensors are given.
        encoder_spec, head_spec: what the networks are built from; None for networks of your own.
        about: more to keep with it (method, label, seed, ...), JSON-ready.
    """

    party: str
    task: Task
    encoder: nn.Module
    head: nn.Module
    input_shape: tuple[int, ...]
    input: Input | None = None
    encoder_spec: EncoderSpec | None = None
    head_spec: Head | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def outputs(self, x: Tensor, *, batch_size: int = 512) -> Tensor:
        """(N, C) logits or (N, 1) standardised values; asks no other party.

        Raises:
            DataError: rows of another shape than the model was trained on.
        """
        if tuple(x.shape[1:]) != self.input_shape:
            raise DataError(
                f"the model of party {self.party!r} takes rows of shape {self.input_shape}, "
                f"got {tuple(x.shape[1:])}"
            )
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        device = parameters[0].device if parameters else None
        trained = self.encoder.training, self.head.training
        self.encoder.eval()
        self.head.eval()
        with torch.inference_mode():
            parts = [
                self.head(self.encoder(network_input(part, device)).flatten(1)).cpu()
                for part in x.split(batch_size)
            ]
        self.encoder.train(trained[0])
        self.head.train(trained[1])
        return torch.cat(parts) if parts else torch.empty(0, self.task.num_outputs)

    def predict(self, x: Tensor, *, batch_size: int = 512) -> Prediction:
        """Class or value of each row; asks no other party (Eq. 11).

        Args:
            x: (N, *input_shape) network inputs; see ``input.transform`` for raw data.

        Raises:
            DataError: rows of another shape than the model was trained on.
            ModelError: outputs that are not finite.
        """
        outputs = self.outputs(x, batch_size=batch_size)
        num_lost = int((~outputs.isfinite().all(dim=1)).sum())
        if num_lost:
            raise ModelError(
                f"the model of party {self.party!r} gives {num_lost} of {len(x)} rows outputs that "
                "are not finite: its training went astray, or these rows are far from those it "
                "was trained on"
            )
        if isinstance(self.task, Classification):
            classes = np.array(self.task.classes)
            probabilities = outputs.softmax(dim=1)
            best = probabilities.argmax(dim=1).numpy()
            return Prediction(classes[best], probabilities.numpy(), self.task.classes)
        values = outputs[:, 0].double() * self.task.scale + self.task.mean
        return Prediction(values.numpy())

    def save(self, folder: str | Path) -> Path:
        """Write the model's folder, whole or not at all; an older model there is replaced.

        Raises:
            ModelError: the folder exists and holds something that is no model.
        """
        folder = Path(folder)
        if folder.exists() and not (folder / "model.json").exists() and any(folder.iterdir()):
            raise ModelError(f"{folder} holds other files; save the model to a folder of its own")
        weights = safetensors.torch.save(self._weights())
        description = {
            "format": FORMAT,
            "party": self.party,
            **self.about,
            "task": self.task.to_json(),
            "input": self.input.to_json() if self.input else None,
            "input_shape": list(self.input_shape),
            "encoder": self.encoder_spec.to_json() if self.encoder_spec else {"kind": "custom"},
            "head": self.head_spec.to_json() if self.head_spec else {"kind": "custom"},
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            (fresh / "model.safetensors").write_bytes(weights)
            (fresh / "model.json").write_text(json.dumps(description, indent=2) + "\n")
            fresh.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return folder

    def _weights(self) -> dict[str, Tensor]:
        parts = {"encoder": self.encoder, "head": self.head}
        return {
            # A copy, as two names may be one tensor, which safetensors refuses.
            f"{part}.{name}": value.detach().cpu().contiguous().clone()
            for part, network in parts.items()
            for name, value in network.state_dict().items()
        }


def load(
    folder: str | Path, *, encoder: nn.Module | None = None, head: nn.Module | None = None
) -> Model:
    """The model in a folder that ``Model.save`` wrote.

    Args:
        encoder, head: for a model that was trained with networks of your own: the same networks,
            whose weights are then replaced.

    Raises:
        ModelError: no model there, files that cannot be read or do not belong together.
    """
    folder = Path(folder)
    try:
        description = json.loads((folder / "model.json").read_text())
        weights = (folder / "model.safetensors").read_bytes()
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} is no model folder: {Path(error.filename).name} is missing; "
            "a run keeps its models in RUN/models/PARTY"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder}: model.json cannot be read ({error})") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelError(
            f"{folder}/model.json: expected format {FORMAT}; use the dovetail that wrote it"
        )
    if hashlib.sha256(weights).hexdigest() != description.get("weights_sha256"):
        raise ModelError(
            f"{folder}: model.safetensors is not the file that model.json was written for; "
            "copy the whole folder again"
        )
    try:
        return _build(description, weights, encoder, head)
    except DovetailError as error:
        raise ModelError(f"{folder}: {error}") from None
    except KeyError as error:
        raise ModelError(
            f"{folder}: model.json lacks {error}; copy the whole folder again"
        ) from None
    except (
        AttributeError,
        TypeError,
        ValueError,
        RuntimeError,
        MemoryError,
        safetensors.SafetensorError,
    ) as error:
        cause = textwrap.shorten(str(error), 300, placeholder=" …")  # torch lists every weight
        raise ModelError(f"{folder}: the model cannot be rebuilt ({cause})") from None


def _build(
    description: dict[str, Any], weights: bytes, encoder: nn.Module | None, head: nn.Module | None
) -> Model:
    task = task_from_json(description["task"])
    input_shape = tuple(description["input_shape"])
    if not input_shape or not all(isinstance(size, int) and size > 0 for size in input_shape):
        raise ModelError(f"input_shape is one or more sizes, got {list(input_shape)}")
    tensors = safetensors.torch.load(weights)
    encoder_spec = head_spec = None
    # Layers are made without memory: their weights come from the file, and nothing is drawn.
    if encoder is None:
        encoder_spec = encoder_from_json(description["encoder"])
        with torch.device("meta"):
            encoder = encoder_spec.encoder(input_shape)
    if head is None:
        if description["head"].get("kind") == "custom":
            raise ModelError("the head is a network of your own: load(folder, head=...)")
        head_spec = Head(tuple(description["head"]["widths"]), description["head"]["dropout"])
        device = next((each.device for each in encoder.parameters()), torch.device("cpu"))
        code_width = math.prod(output_shape(encoder, input_shape, device))
        with torch.device("meta"):
            head = head_spec.build(code_width, task.num_outputs)
    for part, network in {"encoder": encoder, "head": head}.items():
        own = {
            name.removeprefix(f"{part}."): value
            for name, value in tensors.items()
            if name.startswith(f"{part}.")
        }
        if any(each.is_meta for each in network.parameters()):
            own = {name: value.float() for name, value in own.items()}
            network.load_state_dict(own, assign=True)
        else:
            network.load_state_dict(own)
    known = {"format", "party", "task", "input", "input_shape", "encoder", "head", "weights_sha256"}
    return Model(
        party=description["party"],
        task=task,
        encoder=encoder.eval(),
        head=head.eval(),
        input_shape=input_shape,
        input=input_from_json(description["input"]) if description["input"] else None,
        encoder_spec=encoder_spec,
        head_spec=head_spec,
        about={name: value for name, value in description.items() if name not in known},
    )
