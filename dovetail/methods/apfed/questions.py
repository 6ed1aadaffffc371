"""Rows that each party is asked about: missing labels, partial overlap, policies' limits,
projection.

The paper has one set of rows: all are labelled and shared by all parties (the set I of Eq. 1).
Here L_A runs over the labelled rows and each L_p over the rows that p shares. If these are the same
rows, one batch serves both, and that is the paper's step. Else a step draws a labelled batch and a
shared one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from dovetail.data import Alignment, Minibatches
from dovetail.data.stored import put_tensor_away
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.methods.limits import Limits
from dovetail.methods.settings.apfed import Layers
from dovetail.network import Message, State

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Partner:
    """State of a passive party when it was ready.

    Attributes:
        projected: whether it wants codes projected.
        limits: of its policy.
    """

    projected: bool
    limits: Limits


@dataclass(frozen=True, eq=False)
class Question:
    """Question to one party in a step.

    Attributes:
        rows_B: rows of the label owner.
        samples_B: their indices in the shared order.
        code_BD: what leaves, with its graph.
        projected: whether it is a projection of codes.
    """

    rows_B: Tensor
    samples_B: Tensor
    code_BD: Tensor
    projected: bool


class Questions:
    """Labelled batches, and of each party the codes that it is asked about.

    Args:
        labelled: (L,) rows with a label.
        spared: of them those that train nothing.
        num_rows: of the table.
        alignment: rows by shared sample; None: nobody is asked.
        settings: of the label owner.
        local: its context, which draws batches and says how codes leave.
        encode: rows -> codes with their graph.
        projection: of codes for who contrasts; None: codes leave whole.

    Attributes:
        labelled: batches of the rows that train L_A.
        partners: party -> what it said when it was ready.
    """

    def __init__(
        self,
        labelled: Tensor,
        spared: Tensor,
        num_rows: int,
        alignment: Alignment | None,
        settings: Layers,
        local: Local,
        *,
        encode: Callable[[Tensor], Tensor],
        projection: nn.Module | None,
    ) -> None:
        self.alignment, self.settings = alignment, settings
        self._local, self._spared, self._num_rows = local, spared, num_rows
        self._encode, self._projection = encode, projection
        # Streams of their own, so that partners change neither the labelled batches nor their
        # dropout: with every lambda 0, training is bit for bit that of the label owner alone.
        self._random = local.stream("shared")
        self._labelled_rows = labelled
        if len(spared):
            self._labelled_rows = labelled[~torch.isin(labelled, spared)]
        self.labelled = self._batches(self._labelled_rows, "labelled batches")
        self._shared: Minibatches | None = None  # None: the labelled batch serves
        self._sample_of_row: dict[str, Tensor] = {}  # (N,) each, -1 where not shared
        self._more: dict[str, Minibatches] = {}  # of who could be asked about too few rows
        self.partners: dict[str, Partner] = {}

    @property
    def steps_per_epoch(self) -> int:
        return self.settings.steps_per_epoch or self.labelled.steps_per_pass

    def _batches(self, rows: Tensor, purpose: str, *, least: int = 1) -> Minibatches:
        # With the secret: who knew the order of batches would know where rows lie in the table.
        return self._local.batches(rows, self.settings.batch_size, purpose, least=least)

    # --- Which rows train what -------------------------------------------------------------------

    def open(self, partners: Mapping[str, Partner]) -> None:
        """Fix which rows are shared with whom, when the passive parties are ready.

        Raises:
            ConfigError: nothing is shared with a party, or too little for its limits.
        """
        self.partners = dict(partners)
        if not partners:
            return
        self._sample_of_row = {party: self._samples_with(party) for party in partners}
        held = torch.stack([sample_N >= 0 for sample_N in self._sample_of_row.values()])
        shared = held.any(dim=0).nonzero().flatten()
        shared = shared[~torch.isin(shared, self._spared)]
        rows = self._labelled_rows
        if self.settings.overlap == "common":
            rows = rows[torch.isin(rows, shared)]
            if not len(rows):
                raise ConfigError(
                    f"none of the {len(shared)} rows that all parties share has a label at "
                    f'{self._local.name!r}; overlap = "pairwise" trains on its other rows too'
                )
        least = max(each.limits.min_rows for each in partners.values())
        together = torch.equal(shared, rows)
        if len(rows) < len(self._labelled_rows) or (together and least > 1):
            self._labelled_rows = rows
            self.labelled = self._batches(rows, "labelled batches", least=least if together else 1)
        self._shared = None
        if not together:
            self._shared = self._batches(shared, "shared batches", least=least)
        self._keep_limits(len(shared))

    def _samples_with(self, party: str) -> Tensor:
        """(N,) the sample of each row that is shared with this party, -1 for other rows."""
        alignment, common = self.alignment, self.settings.overlap == "common"
        if alignment is None:
            raise ConfigError("passive parties take part, so the active party needs an alignment")
        samples = alignment.shared(self._local.name, *(self.partners if common else (party,)))
        if not len(samples):
            raise ConfigError(
                f"party {party!r} shares no sample with {self._local.name!r}"
                + (" and all others" if common else "")
                + "; check the id columns, or leave the party out"
            )
        sample_N = torch.full((self._num_rows,), -1)
        sample_N[alignment.rows[self._local.name][samples]] = samples
        return put_tensor_away(sample_N, self._local.name)

    def _keep_limits(self, num_shared: int) -> None:
        """Refuse a run that breaks a party's limits; draw more rows where a batch has too few."""
        settings, batches = self.settings, self._shared or self.labelled
        passes = settings.epochs * self.steps_per_epoch / batches.steps_per_pass
        self._more = {}
        for party, partner in self.partners.items():
            limits, rows = partner.limits, (self._sample_of_row[party] >= 0).nonzero().flatten()
            limits.check_run(party, len(rows), batch_size=settings.batch_size, passes=passes)
            if limits.min_rows > 1 and len(rows) < num_shared:
                self._more[party] = self._local.batches(rows, 1, "more rows", party)

    # --- A step ----------------------------------------------------------------------------------

    def ask(self, rows_B: Tensor, code_BD: Tensor) -> dict[str, Question]:
        """Party -> its question of this step; not if it has no row of it, or the budget is spent.

        Args:
            rows_B: the labelled batch.
            code_BD: its codes.
        """
        if self._shared is not None:
            rows_B = next(self._shared)
            with self._random:
                code_BD = self._encode(rows_B)
        projected_BD = code_BD
        if any(self._projects(party) for party in self.partners):
            projected_BD = self._project(code_BD)
        questions = {}
        for party in self.partners:
            projects = self._projects(party)
            code = projected_BD if projects else code_BD
            samples_B = self._sample_of_row[party][rows_B]
            held = samples_B >= 0
            if held.all():
                asked = Question(rows_B, samples_B, code, projects)
            elif held.any():
                asked = Question(
                    rows_B[held], samples_B[held], code[held.to(code.device)], projects
                )
                asked = self._with_more(party, asked)
            else:
                continue
            if self._local.allows("codes", party, asked.samples_B):
                code = self._local.release("codes", party, asked.samples_B, asked.code_BD)
                questions[party] = Question(asked.rows_B, asked.samples_B, code, projects)
        return questions

    def messages(
        self, asked: Mapping[str, Question], message: Callable[[Tensor, Tensor], M]
    ) -> dict[str, M]:
        """Party -> the message of its samples and codes, with what noised ones have cost."""
        return {
            party: self._local.with_cost(
                message(each.samples_B, each.code_BD.detach()), "codes", party
            )
            for party, each in asked.items()
        }

    def _projects(self, party: str) -> bool:
        return self._projection is not None and self.partners[party].projected

    def _project(self, code_BD: Tensor) -> Tensor:
        projected: Tensor = code_BD if self._projection is None else self._projection(code_BD)
        return projected

    def _with_more(self, party: str, asked: Question) -> Question:
        """The question, with as many more of the party's rows as its limits ask for."""
        least = self.partners[party].limits.min_rows
        if len(asked.samples_B) >= least:
            return asked
        known = set(asked.samples_B.tolist())
        rows: list[Tensor] = []
        while len(known) < least:
            row = next(self._more[party])
            sample = int(self._sample_of_row[party][row])
            if sample not in known:
                known.add(sample)
                rows.append(row)
        more = torch.cat(rows)
        with self._random:
            code = self._encode(more)
        if asked.projected:
            code = self._project(code)
        return Question(
            torch.cat([asked.rows_B, more]),
            torch.cat([asked.samples_B, self._sample_of_row[party][more]]),
            torch.cat([asked.code_BD, code]),
            asked.projected,
        )

    def visits(self) -> tuple[int, int]:
        """The most that an epoch visits a row, and sends its codes, to all partners together."""

        def most(batches: Minibatches) -> int:
            passes, rest = divmod(self.steps_per_epoch, batches.steps_per_pass)
            return passes + (2 if rest else 0)

        visits, num_partners = most(self.labelled), len(self.partners)
        if self._shared is None:
            return visits, visits * num_partners
        sent = most(self._shared)
        more = sum(
            most(batches) * self.partners[party].limits.min_rows
            for party, batches in self._more.items()
        )
        return visits + sent + more, sent * num_partners + more

    # --- Going on --------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "partners": {name: asdict(each) for name, each in self.partners.items()},
            "random": self._random.state(),
            "labelled": self.labelled.state(),
            "shared": None if self._shared is None else self._shared.state(),
            "more": {party: batches.state() for party, batches in self._more.items()},
        }

    def restore(self, state: State) -> None:
        """Go on from there, with the same passive parties."""
        self.open(
            {
                name: Partner(each["projected"], Limits(**each["limits"]))
                for name, each in state["partners"].items()
            }
        )
        self._random.restore(state["random"])
        self.labelled.restore(state["labelled"])
        if self._shared is not None:
            self._shared.restore(state["shared"])
        for party, batches in self._more.items():
            batches.restore(state["more"][party])
