"""Agreement before round 1: which party holds what, how columns are encoded, and p_m.

server                         party
Hello            -------->
                 <--------     Holding: blocks, shapes, widths, rows, classes
Begin            -------->     encodes its columns, checks the size of its network
                 <--------     Ready
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dovetail.data import (
    Classification,
    FixedSummary,
    Minibatches,
    MultiLabel,
    MultiTarget,
    NumberSummary,
    Regression,
    Summary,
    Survival,
    TableEncoder,
    Task,
    agree,
    shared_json,
)
from dovetail.data.saving import of_kind
from dovetail.data.wording import toml_key, toml_text
from dovetail.errors import ConfigError, DovetailError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, Federation, Local, Party, handles
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.models import RandomStream, matching
from dovetail.models.blocks import BlocksNetwork, BlocksSpec, Extractor, classifier
from dovetail.models.decisions import supervised_loss
from dovetail.models.networks import Shape, network_input
from dovetail.models.slices import Layout, ServerModel
from dovetail.models.untaught import known_counts
from dovetail.models.vectors import extractors_vector, layers_of, tensors_of
from dovetail.network import Message, Replies, State
from dovetail.settings.models import OptimizerConfig
from dovetail.settings.privacy import PrivateSteps

_log = logging.getLogger(__name__)

_SUMMARIES: TypeAdapter[dict[str, Summary]] = TypeAdapter(dict[str, Summary])

#: The widest layer of an extractor, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**24, 1000

#: The most blocks that there may be in all.
MAX_BLOCKS = 2**16

# --- What crosses the boundary -----------------------------------------------------------------


class Hello(Message):
    """Server -> party: what do you hold?"""

    family: ClassVar[str] = "hyfem"

    count_classes: bool  # else only whether it has any of a class


class Holding(Message):
    """Party -> server: its blocks, their shapes ("3x16x16"), hidden widths, rows and classes.

    Of a block of raw columns there is no shape yet, but a summary, in JSON: column -> what this
    party's rows add to how all parties encode it.
    """

    family: ClassVar[str] = "hyfem"

    blocks: tuple[str, ...]
    shapes: tuple[str, ...]  # "" for raw columns
    summaries: tuple[str, ...]  # "" for all else
    widths: tuple[int, ...]
    num_rows: int
    # of each class, or of several labels each, how many rows, or 0 and 1; else empty
    classes: tuple[int, ...]


class Begin(Message):
    """Server -> party: training starts, with these settings and extractors, in JSON."""

    family: ClassVar[str] = "hyfem"

    settings: str
    extractors: tuple[str, ...]  # in the order of its blocks
    encodings: tuple[str, ...]  # of each block of raw columns, "" for all else
    task: str
    seed: int
    num_blocks: int  # that there are in all


class Ready(Message):
    """Party -> server: its networks are made."""

    family: ClassVar[str] = "hyfem"


# --- What a party executes ---------------------------------------------------------------------


class Holder(Party):
    """A party that says what it holds, and encodes it as all agree.

    Args:
        data: what it has.
        local: its context.
    """

    config: OptimizerConfig
    network: BlocksNetwork
    batches: Minibatches

    def __init__(self, data: HyfemData, local: Local) -> None:
        self.data, self.task, self.device = data, data.task, local.device
        self.blocks: dict[str, Tensor] = dict(data.train.blocks)
        self.inputs: dict[str, TableEncoder] = {}
        self.labels = data.train.required_labels.to(self.device)
        self.labelled = data.train.labelled_rows()
        self.class_weights_C: Tensor | None = None

    def sizes(self) -> dict[str, int]:
        """E and W, the numbers of its extractors and of its classifier."""
        if self._begun is None:
            return {}
        theta, w = self.network.extractors, self.network.classifier
        return {
            letter: sum(tensor.numel() for tensor in tensors_of(part))
            for letter, part in (("E", theta), ("W", w))
        }

    @handles(before_begin=True)
    def hold(self, hello: Hello) -> Holding:
        """Data of a holder."""
        labels = self.labels[self.labelled.to(self.device)].cpu()
        counts = known_counts(self.task, labels)
        if isinstance(self.task, Classification):
            counts = torch.bincount(labels, minlength=self.task.num_outputs)
        if counts is None:
            counts = torch.empty(0, dtype=torch.int64)
        encoded, tables = self.data.train.blocks, self.data.train.tables
        shapes = ["x".join(map(str, block.shape[1:])) for block in encoded.values()]
        summaries = map(self.data.summary, tables)
        return Holding(
            self.data.blocks,
            (*shapes, *("" for _ in tables)),
            (*("" for _ in encoded), *summaries),
            self.data.widths,
            len(self.labelled),
            tuple((counts if hello.count_classes else counts.clamp(max=1)).tolist()),
        )

    def batch(self, rows_B: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Blocks and labels of these rows."""
        x = {name: network_input(block[rows_B], self.device) for name, block in self.blocks.items()}
        return x, self.labels[rows_B.to(self.device)]

    def training_rows(self) -> Tensor:
        """(N,) rows that train: those with a label."""
        return self.labelled

    def loss(self, call: Callable[..., Tensor], /, *batch: Any, reduction: str = "mean") -> Tensor:
        """f_m of blocks and labels, Eq. (3)."""
        x, y = batch
        return supervised_loss(self.task, call(x), y, self.class_weights_C, reduction=reduction)

    def mean_loss(self, losses: Sequence[Tensor], *weights: Tensor) -> float:
        """The mean over its steps, as it is sent with its weights.

        Of weights of somebody's making an exact loss reveals what noise on a step is to hide: then
        it is 0, whether or not it is a number.

        Raises:
            TrainingError: it is not finite, or weights are not.
        """
        mean = 0.0 if self.local.is_capped else (sum(losses, torch.zeros(())) / len(losses)).item()
        if not (math.isfinite(mean) and all(each.isfinite().all() for each in weights)):
            raise TrainingError(
                f"its loss is {mean} after {len(losses)} steps; lower learning_rate "
                f"({self.config.learning_rate}), mu_1 or mu_2"
            )
        return mean

    def rows_lack_a_block(self) -> bool:
        """Whether a row lacks one of its blocks of columns."""
        return any(bool(x.isnan().any()) for x in self.blocks.values() if x.ndim == 2)

    def bound_steps(self, asked: PrivateSteps | None) -> None:
        """Train as its own file says, or as the run does, within its budget.

        Raises:
            ConfigError: a budget, and no noise; or noise, and running means that have none.
        """
        key = "[hyfem] private = { clip = ..., noise = ... }"
        self.local.bound_steps(
            self.data.private, asked, num_rows=len(self.labels), what="its weights", key=key
        )
        averages = any(isinstance(each, _BatchNorm) for each in self.network.modules())
        if self.local.is_private and averages:
            raise ConfigError(
                "its weights are trained with noise (private), and an extractor with BatchNorm "
                "sends means of rows as they are; choose another extractor"
            )

    def visit(self, steps: int) -> None:
        """Ask its budget for so many steps; a row is in one batch of a pass."""
        self.local.visit(-(-steps // self.batches.steps_per_pass) + 1, steps=steps)

    def agree(self, begin: Begin) -> BlocksSpec:
        """Encode its columns as all do; what its network is built from.

        Raises:
            ConfigError: labels that say something else.
            MessageError: what cannot be read, or is too large even to count.
        """
        wire, names = begin.wire_name(), self.data.blocks
        if begin.task != (known := task_text(self.task)):
            raise ConfigError(
                f"its labels are {known[:200]}, the server's are {begin.task[:200]}; name all "
                "classes of the federation in the party's file, several labels in one order, or "
                "one label_scale of numbers (below [hyfem])"
            )
        if not len(begin.extractors) == len(begin.encodings) == len(names):
            raise MessageError(
                f"{wire}: expected {len(names)} extractors and encodings, "
                f"got {len(begin.extractors)} and {len(begin.encodings)}"
            )
        if not len(names) <= begin.num_blocks <= MAX_BLOCKS:
            raise MessageError(f"{wire}: {begin.num_blocks} blocks in all cannot be")
        self._encode(dict(zip(names, begin.encodings, strict=True)), wire)
        try:
            extractors = tuple(of_kind(Extractor, json.loads(text)) for text in begin.extractors)
        except (ValueError, AttributeError, DovetailError) as error:
            raise MessageError(f"{wire}: it cannot be read ({error})") from None
        _check_size(wire, extractors)
        return BlocksSpec(
            tuple(self.blocks),
            tuple(tuple(block.shape[1:]) for block in self.blocks.values()),
            extractors,
            self.data.widths,
            self.task.num_outputs,
        )

    def _encode(self, encodings: Mapping[str, str], wire: str) -> None:
        for name, table in self.data.train.tables.items():
            try:
                encoder = TableEncoder.from_json(json.loads(encodings[name]))
            except (ValueError, DovetailError) as error:
                raise MessageError(f"{wire}: it cannot be read ({error})") from None
            encoder = encoder.on_site(table)
            if encoder.columns != table.names:
                raise MessageError(f"{wire}: another block's encoding of {name!r}")
            self.inputs[name] = encoder.watching(table)
            self.blocks[name] = encoder.transform(table, allow_unseen=True)


def _check_size(wire: str, extractors: Sequence[Extractor]) -> None:
    """Refuse what takes long even to count."""
    for extractor in extractors:
        sizes = [size for value in asdict(extractor).values() for size in _whole(value)]
        if len(sizes) > MAX_LAYERS or max(sizes, default=0) > MAX_WIDTH:
            raise MessageError(f"{wire}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}")


def _whole(value: Any) -> list[int]:
    values = value if isinstance(value, tuple) else (value,)
    return [size for size in values if isinstance(size, int)]


# --- What the server executes ------------------------------------------------------------------


@dataclass(eq=False)
class Agreement:
    """Agreement on which party holds what, and what follows from it.

    Args:
        task: what the parties' labels say; its classes are all that any party has.
        extractors: block -> its extractor, of every block; their order is that of the features.

    Attributes:
        holdings: party -> what it holds.
        shapes: block -> the shape of a row.
        encodings: block of raw columns -> how all encode it.
        layout: which numbers of vectors and layers are whose; known once parties are.
    """

    task: Task
    extractors: Mapping[str, Extractor]
    holdings: dict[str, Holding] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    encodings: dict[str, TableEncoder] = field(default_factory=dict)
    layout: Layout = field(init=False)

    @property
    def blocks(self) -> tuple[str, ...]:
        """All, in the order of the server's features."""
        return tuple(self.extractors)

    def add(self, holdings: Mapping[str, Holding]) -> None:
        """Take note of what parties hold.

        Raises:
            ConfigError: a block or class that no party holds.
            PartyError: what a party holds does not fit the others.
        """
        self._agree(holdings)
        for party, holding in holdings.items():
            self.note(party, holding)
        held = {block for holding in self.holdings.values() for block in holding.blocks}
        missing = [block for block in self.blocks if block not in held]
        if missing:
            raise ConfigError(
                f"no party holds the block {missing[0]!r}; parties hold {sorted(held)}: leave it "
                "out, or ask a party that has it"
            )
        # One party alone may lack classes: it is the baseline of those that learn together.
        if self.num_counted and len(self.holdings) > 1:
            classes = isinstance(self.task, Classification)
            names, counts = counted_names(self.task), self.class_counts().sum(axis=0)
            unseen = [name for name, n in zip(names, counts, strict=True) if n == 0]
            if unseen:
                what = "class" if classes else "label"
                raise ConfigError(
                    f"no party has a sample of {what} {unseen[0]!r}; leave the {what} out, or ask "
                    "a party that has some"
                )
        features = self.spec(self.blocks, ()).features()
        self.layout = Layout(dict(zip(self.blocks, features, strict=True)), self.task.num_outputs)

    @property
    def num_counted(self) -> int:
        """C, of the classes or several labels whose rows parties count; 0 of one number."""
        return len(counted_names(self.task))

    def class_counts(self) -> np.ndarray:
        """(M, C) rows of each class or label, or 0 and 1."""
        return np.array([holding.classes for holding in self.holdings.values()])

    def texts(self, party: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Extractors, encodings and task, as ``Begin`` carries them."""
        blocks = self.holdings[party].blocks
        extractors = tuple(json.dumps(self.extractors[block].to_json()) for block in blocks)
        encodings = tuple(
            json.dumps(self.encodings[block].to_json()) if block in self.encodings else ""
            for block in blocks
        )
        return extractors, encodings, task_text(self.task)

    def spec(self, blocks: Iterable[str], widths: tuple[int, ...]) -> BlocksSpec:
        """Spec of a network of these blocks."""
        blocks = tuple(blocks)
        return BlocksSpec(
            blocks,
            tuple(self.shapes[block] for block in blocks),
            tuple(self.extractors[block] for block in blocks),
            widths,
            self.task.num_outputs,
        )

    def initial(self, config: matching.MatchingConfig, seed: int, name: str) -> ServerModel:
        """Theta_0^0, w_0^0 and Pi^0, from random streams of ``name``.

        Raises:
            ConfigError: widths that cannot hold the parties' neurons, or that they cannot fill.
        """
        server, widths = ServerModel(), [held.widths for held in self.holdings.values()]
        width = config.server_widths(widths)
        first = width or tuple(map(max, zip(*widths, strict=True)))
        for block, extractor in self.extractors.items():  # one more leaves the others alone
            with RandomStream(seed, name, "extractor", block):
                server.extractors[block] = extractors_vector(extractor.encoder(self.shapes[block]))
        with RandomStream(seed, name, "classifier"):
            w_0 = classifier(sum(self.layout.sizes), first, self.task.num_outputs)
        server.classifier = layers_of(w_0)
        assignments = matching.by_position(widths, first)
        server.assignments = dict(zip(self.holdings, assignments, strict=True))
        matching.check_widths(widths, config.matching_cost(), width)
        return server

    def weights(self, *, even: bool = False) -> dict[str, float]:
        """Party -> p_m = |N_m| / |N|, or 1 / M."""
        sizes = {party: 1 if even else holding.num_rows for party, holding in self.holdings.items()}
        return {party: size / sum(sizes.values()) for party, size in sizes.items()}

    def _agree(self, holdings: Mapping[str, Holding]) -> None:
        """How each block of raw columns is encoded, by what all that hold it have in it."""
        summaries: dict[str, dict[str, dict[str, Summary]]] = {}
        for party, holding in holdings.items():
            for block, text in zip(holding.blocks, holding.summaries, strict=False):
                if text and block not in self.encodings:
                    summaries.setdefault(block, {})[party] = _summary_of(party, block, text)
        for block, of_parties in summaries.items():
            first, *others = of_parties
            for party in others:
                columns, wanted = list(of_parties[party]), list(of_parties[first])
                if columns != wanted:
                    raise PartyError(
                        party,
                        f"its block {block!r} has the columns {columns}, that of "
                        f"{first!r} has {wanted}; a block must be the same at all "
                        "parties that have it: name one for what is shared and one for the rest, "
                        "for example " + _split(columns, wanted),
                    )
            self.encodings[block] = agree(of_parties).of_a_block()

    def note(self, party: str, holding: Holding) -> None:
        unknown = [block for block in holding.blocks if block not in self.extractors]
        if unknown:
            raise PartyError(
                party, f"it holds a block {unknown[0]!r}; this run's are {list(self.blocks)}"
            )
        names, texts = holding.blocks, (holding.shapes, holding.summaries)
        sizes = {len(names), len(set(names)), *map(len, texts)}
        if not names or len(sizes) > 1 or len(holding.classes) != self.num_counted:
            raise PartyError(party, f"what it says it holds does not fit together: {holding}")
        if (
            holding.num_rows < 1
            or min(holding.widths, default=1) < 1
            or min(holding.classes, default=0) < 0
        ):
            raise PartyError(
                party,
                f"it has {holding.num_rows} samples and hidden widths {holding.widths}; both "
                "must be 1 or more",
            )
        for other, known in self.holdings.items():
            if len(known.widths) != len(holding.widths):
                raise ConfigError(
                    f"party {party!r} has a classifier of {len(holding.widths)} hidden layers, "
                    f"party {other!r} of {len(known.widths)}; all need the same depth, widths may "
                    "differ"
                )
        for block, text, summary in zip(names, *texts, strict=True):
            shape = self._shape(party, block, text, summary)
            if self.shapes.setdefault(block, shape) != shape:
                raise PartyError(
                    party,
                    f"its block {block!r} has rows of shape {shape}, other parties' have "
                    f"{self.shapes[block]}; a block must be the same at all parties that have it",
                )
        self.holdings[party] = holding

    def _shape(self, party: str, block: str, text: str, summary: str) -> Shape:
        """Shape of a row of a block."""
        try:
            shape = tuple(int(size) for size in text.split("x")) if text else ()
        except ValueError:
            raise PartyError(party, f"block {block!r} has no shape {text!r}") from None
        if summary and block in self.encodings:
            columns = tuple(_summary_of(party, block, summary))
            if columns != self.encodings[block].columns:
                raise PartyError(
                    party,
                    f"its block {block!r} has the columns {list(columns)}, other parties' has "
                    f"{list(self.encodings[block].columns)}; a block must be the same at all "
                    "parties that have it",
                )
            shape = (self.encodings[block].num_features,)
        if not shape:
            raise PartyError(party, f"block {block!r} has neither a shape nor a summary")
        return shape

    def state(self) -> State:
        """State that it was made of."""
        return {
            "holdings": {party: asdict(holding) for party, holding in self.holdings.items()},
            "encodings": {
                block: json.dumps(encoder.to_json()) for block, encoder in self.encodings.items()
            },
        }

    def restore(self, state: State) -> None:
        """Agree again on what was agreed."""
        texts: dict[str, str] = state["encodings"]
        self.encodings = {
            block: TableEncoder.from_json(json.loads(text)) for block, text in texts.items()
        }
        self.holdings, self.shapes = {}, {}
        self.add({party: Holding(**stored) for party, stored in state["holdings"].items()})


class Agreeing(Driver):
    """A driver that starts by agreeing with its parties, and has no data.

    Args:
        task: what the parties' labels say; its classes are all that any party has.
        extractors: block -> its extractor, of every block; their order is that of the features.
        config: the settings, for all parties.
        seed: of everything random.
        name: what it is called in the ledger.
    """

    family: ClassVar[str] = "hyfem"

    def __init__(
        self,
        task: Task,
        extractors: Mapping[str, Extractor],
        config: Any,
        *,
        seed: int,
        name: str = "server",
    ) -> None:
        self.agreed, self.task = Agreement(task, dict(extractors)), task
        self.config, self.seed, self.name = config, seed, name
        self.num_rounds = config.rounds
        self.server = ServerModel()
        self.known: dict[str, tuple[Tensor, Tensor]] = {}  # party -> (Theta_m, w_m), last sent

    def p(self) -> Mapping[str, float]:
        """Party -> p_m."""
        return self.agreed.weights()

    def start(self) -> None:
        """Make the model, now that it is known who holds what."""
        raise NotImplementedError

    def hello(self) -> Hello:
        """First question to parties."""
        return Hello(count_classes=False)

    def hold(self, holdings: Mapping[str, Holding]) -> None:
        """Agree with parties that hold this, and start.

        Raises:
            ConfigError: blocks, classes or widths that do not fit together.
            PartyError: what a party holds does not fit the others.
        """
        self.agreed.add(holdings)
        self.start()

    def begin(self, federation: Federation) -> None:
        """Ask what each party holds, and have it make its network.

        Raises:
            ConfigError: no party, or blocks, classes or widths that do not fit together.
            PartyError: a party cannot begin.
        """
        holdings = self.ask(federation, self.hello(), Holding)
        if not holdings:
            raise ConfigError("HyFEM needs one party or more, got none")
        self.hold(dict(holdings))
        self.ask_to_begin(federation, federation.parties).or_raise()

    def ask_to_begin(self, federation: Federation, parties: Iterable[str]) -> Replies[Ready]:
        """Have these make their networks."""
        settings, num_blocks = self.config.model_dump_json(), len(self.agreed.blocks)
        asked = {
            party: Begin(settings, *self.agreed.texts(party), self.seed, num_blocks)
            for party in parties
        }
        return federation.ask(asked, Ready)

    def begin_again(self, behind: Mapping[str, int], federation: Federation) -> None:
        """Start a party without state again, which goes on from its slice."""
        lost = [party for party, step in behind.items() if not step]
        if lost:
            for failure in self.ask_to_begin(federation, lost).failures.values():
                _log.warning("it does not begin anew: %s", failure)


# --- Tasks and summaries as text ---------------------------------------------------------------


def counted_names(task: Task) -> tuple[str | int, ...]:
    """The classes, or several labels; none of one number."""
    if isinstance(task, Classification):
        return task.classes
    return task.labels if isinstance(task, (MultiLabel, MultiTarget)) else ()


def task_text(task: Task) -> str:
    """Text that must be equal at all parties: the classes or several labels in their order, the
    intervals of times to an event, or what kind of number it is."""
    if isinstance(task, Survival):
        return json.dumps({"kind": "survival", "times": task.cuts})
    return "a number" if isinstance(task, Regression) else json.dumps(shared_json(task))


def _split(columns: Sequence[str], others: Sequence[str]) -> str:
    """How a party names the columns that another has, too, as a block, and the rest as another."""
    shared = [column for column in columns if column in others]
    rest = [column for column in columns if column not in others]
    named = {"shared": shared, "own": rest}
    return " and ".join(
        f"blocks.{toml_key(name)} = {toml_text(some)}" for name, some in named.items() if some
    )


def _summary_of(party: str, block: str, text: str) -> dict[str, Summary]:
    """Column -> summary, of what a party sent.

    Raises:
        PartyError: it cannot be.
    """
    try:
        summaries = _SUMMARIES.validate_json(text)
    except ValidationError as error:
        cause = str(error.errors()[0]["msg"])
    else:
        wrong = [name for name, summary in summaries.items() if not _can_be(summary)]
        if summaries and not wrong:
            return summaries
        cause = f"{wrong} are no counts, mean and deviation" if wrong else "it has no column"
    raise PartyError(party, f"its summary of block {block!r} cannot be read ({cause})")


def _can_be(summary: Summary) -> bool:
    if isinstance(summary, NumberSummary):
        numbers = (summary.count, summary.missing, summary.squares)
        return min(numbers) >= 0 and math.isfinite(summary.mean) and math.isfinite(summary.squares)
    if isinstance(summary, FixedSummary):
        return summary.missing >= 0
    return min(summary.missing, *summary.counts.values(), 0) >= 0
