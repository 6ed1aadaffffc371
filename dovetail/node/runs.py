"""The runs that a party answers in from its site: its side of each, as its policy allows.

**Which alignment a run uses.** An alignment has a name, which is the run id of its messages. When
it is complete, each responder keeps its rows under that name (``alignment/stored.py``), instead of
those it had with that driver; the driver keeps its own. The id of every run that trains on them is
``NAME/...`` (``stored.training_run``). A party opens such a run only if the rows it keeps are of
alignment NAME, with this driver, and its table is still the one that was aligned. So two sides that
remember different alignments find out before the first code is sent, and neither can go on with
numbers of samples that mean other people.

**What a driver can set.** It sends messages, and a message has no field for a network, a loss, a
rate, a table or a policy: these come from the party file, which is read once, when ``join`` starts.
CHFL, HyFEM and FedOptimus are the exceptions: what is learned together has the coordinator's
settings, which their ``Begin`` carries (a data owner's network is its own even so). A party must
allow each by name, they are not among a policy's defaults.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dovetail import federated, methods
from dovetail.alignment import Responder, psi, relay
from dovetail.alignment.stored import (
    StoredRows,
    alignment_of,
    digest,
    is_predicting,
    is_trial,
    load_rows,
    save_rows,
)
from dovetail.errors import AlignmentError, CheckpointError, ConfigError, MessageError
from dovetail.federated import Local
from dovetail.methods.base import PROPOSALS, Asked, Maker, Site
from dovetail.methods.limits import LimitError, rows_of
from dovetail.methods.section import check_run_id
from dovetail.models import Model
from dovetail.models.card import renew
from dovetail.models.owners import Bottom
from dovetail.network import Message, Party, State
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.checkpoint import ChangedError, Checkpointed, StatefulParty
from dovetail.network.counting import Tally, times
from dovetail.network.host import MAX_RUNS
from dovetail.network.quota import Quota, QuotaError
from dovetail.network.renewal import Identity
from dovetail.node.agreements import Approved, Plan, Reader
from dovetail.node.budget import Budgeted, BudgetError, Budgets, driver_of, last_written
from dovetail.node.fingerprint import site_digests
from dovetail.node.limits import GivenSums, Guard, RunLimits
from dovetail.node.parked import Parked, forget_parked
from dovetail.node.proposal import split_run
from dovetail.node.record import give_account
from dovetail.node.recount import check_counts
from dovetail.node.site_folder import Refusals, agreements_of, run_key, site_secret
from dovetail.node.status_line import Activity, StatusLine
from dovetail.privacy import SecretSums

#: Stands for a run id's slashes in the name of its folder; no run's id has one.
_SLASH = "+"

#: Runs of one driver whose states are kept; the oldest go.
KEPT_RUNS = 16

_log = logging.getLogger(__name__)

#: What a party is in the middle of between agreeing on rows and the last question about them.
_PREDICTING = "a prediction is under way, and the rows that it is of are nowhere"

#: Messages of an alignment.
_ALIGNS = (*Responder.accepts, relay.Carry, relay.Narrow)


class Watched:
    """A party whose messages are counted, and what it refuses of them is written down.

    That is a message of more rows than its policy allows, and whatever of an alignment is not
    allowed, not in turn or not true.

    Args:
        party: what answers.
        activity: what counts.
        max_rows: the most rows that a tensor may have.
        refuse: writes down.
        guard: what its policy allows of a run over time; None of an alignment, which has its own.
        check: refuses what was not agreed on.
        driver: whose run it is.

    Attributes:
        touched: whether it was asked anything since this was put back.
    """

    def __init__(
        self,
        party: Party,
        activity: Activity,
        max_rows: int,
        refuse: Callable[[Message, str], None],
        *,
        guard: Guard | None = None,
        check: Callable[[Message], None] = lambda message: None,
        driver: str = "",
    ) -> None:
        self.party = party
        self.driver = driver
        self.touched = False
        self._check = check
        self._activity = activity
        self._max_rows = max_rows
        self._refuse = refuse
        self._guard = guard

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return self.party.accepts

    @property
    def _loaded(self) -> Party | None:
        return self.party.loaded if isinstance(self.party, Budgeted) else self.party

    @property
    def parks_in(self) -> Path | None:
        """Where its state is written between letters; None of one that has none."""
        party = self._loaded
        return party.folder if isinstance(party, Checkpointed) else None

    def unsaved(self) -> str:
        """Description of what it is in the middle of and cannot be written; "" for nothing."""
        party: object = self._loaded
        party = party.party if isinstance(party, Checkpointed) else party
        unsaved: Callable[[], str] = getattr(party, "unsaved", str)
        return unsaved()

    def alignment(self) -> State | None:
        """An alignment under way that can be kept; None: there is none."""
        party = self._loaded
        return party.state() if isinstance(party, Aligning) else None

    def park(self, path: Path) -> None:
        """Write all that its next answers depend on.

        Raises:
            CheckpointError: it cannot be written.
        """
        party = self._loaded
        assert isinstance(party, Checkpointed)
        make_folder(path.parent)
        party.park(path, {} if self._guard is None else self._guard.park())

    def resume(self) -> None:
        """Go on with the limits of an earlier process, if it has parked the run."""
        party = self._loaded
        if isinstance(party, Checkpointed) and party.more and self._guard is not None:
            self._guard.resume(party.more)

    def handle(self, message: Message) -> Message:
        self.touched = True
        rows = rows_of(message)
        if rows > self._max_rows:
            why = f"refuses {rows} rows in one message: its policy allows {self._max_rows}"
            self._refuse(message, why)
            raise ConfigError(why)
        try:
            self._check(message)
        except ConfigError as refusal:
            self._refuse(message, str(refusal))
            raise
        try:
            if self._guard is None:
                answer = self.party.handle(message)
            else:
                answer = self._guard.answer(message, self.party.handle)
        except (AlignmentError, MessageError) as refusal:
            if isinstance(message, _ALIGNS):
                self._refuse(message, str(refusal))
            raise
        except (BudgetError, ChangedError, LimitError, QuotaError) as refusal:
            self._refuse(message, str(refusal))
            raise
        activity = self._activity
        activity.num_messages += 1
        activity.received_bytes += sum(each.nbytes for each in message.tensors().values())
        activity.sent_bytes += sum(each.nbytes for each in answer.tensors().values())
        activity.last = time.monotonic()
        return answer


class Aligning:
    """A responder whose rows are kept as soon as an alignment has found them.

    Args:
        responder: aligns.
        quota: counts alignments, before they are answered.
        keep: keeps the rows.
        held: what a process that ends now would lose of what it has kept; "" if nothing.
    """

    accepts = Responder.accepts

    def __init__(
        self,
        responder: Responder,
        quota: Quota,
        keep: Callable[[Tensor], None],
        held: Callable[[], str] = str,
    ) -> None:
        self._responder = responder
        self._quota = quota
        self._keep = keep
        self._held = held

    def unsaved(self) -> str:
        """Description of what is lost if the process ends now."""
        return self._responder.unsaved() or self._held()

    def state(self) -> State | None:
        """An alignment under way; None: there is none, or none that is kept."""
        return self._responder.state()

    def restore(self, state: State) -> None:
        """Go on from there."""
        self._responder.restore(state)

    def handle(self, message: Message) -> Message:
        with self._quota.work():
            answer = self._responder.handle(message)
        if isinstance(message, psi.Places | psi.Proofs):
            try:
                rows_S = self._responder.rows_S
            except AlignmentError:  # there are none before the last is proven
                return answer
            self._keep(rows_S)
        return answer


class Runs:
    """Makes the party's side of each run that its policy allows.

    Args:
        site: the party file and its table; inputs are fitted to all of its rows, once.
        site_folder: where rows and states are kept.
        refusals: called with what a host lets pass and the policy does not.
        teller: called with runs that start.
        device: where it computes.
        identity: signs what it says to other parties, and checks what they say; None: who carries
            the messages is trusted with that.
        parked: keeps what runs are in between messages; None: this process stays.
        letter: driver -> its message that is being answered; see ``RunLimits``.
    """

    def __init__(
        self,
        site: Site,
        site_folder: Path,
        refusals: Refusals,
        teller: StatusLine,
        device: torch.device,
        identity: Identity | None = None,
        parked: Parked | None = None,
        *,
        letter: Callable[[str], str] = lambda driver: "",
    ) -> None:
        self._identity = identity
        self._parked = parked
        self._secret = site_secret(site_folder)
        self._site = site = replace(site, secret=partial(site_secret, site_folder))
        self._site_folder = site_folder
        self._refusals = refusals
        self._teller = teller
        self._device = device
        policy = site.policy.section
        self._budgets = Budgets(
            site_folder, max_memory_mb=policy.max_memory_mb, max_disk_mb=policy.max_disk_mb
        )
        self._quota = Quota(site_folder)
        self._quota.give_back_unfinished()
        check_counts(self._quota, site_folder / "ledger.jsonl", site.policy.algorithms)
        self._agreements = agreements_of(site, site_folder, identity, self._quota)
        self._run_limits = RunLimits(self._quota, policy, letter=letter, print_line=teller.print)
        self._digests = site_digests(site)
        policies = policy.algorithms
        # Both now and not when asked: mistakes in the table are told at once, and how long it
        # takes depends on the table.
        self._responder = site.responder() if "align" in policies else None
        self._alignments = site.alignments(self._quota, teller.print)
        allowed = [
            prefix for prefix, each in site.policy.algorithms.items() if each.policy in policies
        ]
        self._asked_rows: dict[tuple[str, str], Tensor] = {}  # (driver, run): of predictions
        self._notices: dict[str, Tally] = {}  # driver -> what it says of answers
        self._makers: dict[str, Maker] = {}
        for method in methods.every().values():
            self._makers |= method.members(site, allowed)

    def open(self, run: str, algorithm: str, driver: str) -> Party:
        """The party that answers this run's messages of this algorithm.

        Raises:
            ConfigError: the policy does not allow it, or it is not what was agreed on.
            AlignmentError: there are no rows of the alignment that the run is of.
        """
        if algorithm == PROPOSALS:
            return Reader(self._agreements, driver, lambda plan: self._check_plan(plan, driver))
        run, agreed = split_run(run)
        approved = self._approve(run, agreed, algorithm, driver)
        party = self._budgets.within(
            driver, run, lambda: self._open(run, algorithm, driver, agreed)
        )
        _ = party.party  # what cannot be opened is refused now
        activity = self._teller.run(run, algorithm, driver)

        def refuse(message: Message, why: str) -> None:
            self._refusals.record(driver, message.wire_name(), run, why)

        known = self._site.policy.algorithms[algorithm]
        guard = None
        if algorithm != "psi":
            guard = self._run_limits.of(driver, run, algorithm, known)
        max_rows = self._site.policy.section.max_rows
        check = approved.checks(known.begins)
        watched = Watched(
            party, activity, max_rows, refuse, guard=guard, check=check, driver=driver
        )
        if self._parked is not None:
            watched.resume()
            self._parked.watch(watched, run)
        return watched

    def _check_plan(self, plan: Plan, driver: str) -> None:
        """Refuse now what it would refuse once ids were matched.

        Raises:
            ConfigError: naming the policy's key, and what to do.
        """
        policy, site = self._site.policy, self._site
        try:
            for each in plan.policies:
                if each not in policy.section.algorithms:
                    allowed = ", ".join(policy.section.algorithms) or "nothing"
                    raise ConfigError(
                        f"refuses {each[:100]!r}: its policy allows {allowed}; its owner may add "
                        f'"{each[:100]}" to algorithms below [policy] in its file, and start '
                        "dovetail join again"
                    )
            self._run_limits.look_at_clock()
            self._run_limits.admit_day(driver, plan.runs)
            for method in methods.every().values():
                method.proposed.check_numbers(site, plan.numbers)
        except ConfigError as refusal:
            self._refusals.record(driver, Plan.wire_name(), "", str(refusal))
            raise

    def _approve(self, run: str, agreed: str, algorithm: str, driver: str) -> Approved:
        """Approval of this run by what was agreed on.

        Raises:
            ConfigError: it is not what was agreed on.
        """
        known = self._site.policy.algorithms.get(algorithm)
        policy = known.policy if known else algorithm

        def samples() -> str:
            """A digest of the ids of the samples that the run is of."""
            ids = self._site.table.ids
            with suppress(AlignmentError):  # it is of all rows, or of none yet
                rows_S = self._rows(run, driver)
                return digest(ids[rows_S[rows_S >= 0].numpy()])
            return digest(ids)

        return self._agreements.approve(run, agreed, policy, driver, samples=samples)

    def account(self, run: str, driver: str) -> str:
        """Account on the runs of a driver that is about to leave; "" of no proposal.

        Rows that were agreed on with it for predictions are forgotten.
        """
        for each in [each for each in self._asked_rows if each[0] == driver]:
            del self._asked_rows[each]
        _, agreed = split_run(run)
        if not agreed:
            return ""
        used = self._agreements.used(agreed)
        return give_account(self._site.name, driver, agreed, used, self._identity)

    def restarted(self, driver: str) -> None:
        """The driver is another process than before: it may take up its runs."""
        self._run_limits.restarted(driver)
        self._notices.pop(driver, None)

    def noticed(self, driver: str, run: str, why: str) -> None:
        """A driver says what it does with what this party answers; called with each kind at
        times."""
        count = self._notices.setdefault(driver, Tally()).once_more(run, why)
        if count:
            self._teller.print(f"run {run}: {driver!r} {why}{times(count)}")

    def _local(self, run: str, driver: str) -> Local:
        """The party's context in this run."""
        return Local(
            self._site.name,
            device=self._device,
            secret=lambda: run_key(self._secret, driver, self._run_limits.number(driver, run)),
            lasting=self._secret,
            budget=self._site.policy.section.privacy,
            sums=lambda members: SecretSums(
                self._site.name,
                run=run,
                identity=self._identity,
                driver=driver,
                members=members,
                rounds=GivenSums(self._quota, driver, run),
            ),
        )

    def _open(self, run: str, algorithm: str, driver: str, proposal: str) -> Party:
        if algorithm not in self._site.policy.algorithms:
            raise ConfigError(
                f"refuses {algorithm[:100]!r}: it is unknown here; use the same version"
            )
        known = self._site.policy.algorithms[algorithm]
        self._site.policy.check(known.policy, driver)
        if is_predicting(run) and algorithm != "psi" and not known.predicts:
            raise ConfigError(
                f"refuses {algorithm!r} in {run[:100]!r}, which is a prediction by its name; train "
                "on an alignment that it keeps"
            )
        if algorithm == "psi":
            assert self._responder is not None
            keep = self._hold if is_predicting(run) else self._keep
            guard = self._alignments.of(driver, run, watched=not is_predicting(run))
            responder = self._responder.guarded(guard)
            aligning = Aligning(
                responder,
                self._quota,
                lambda rows_S: keep(run, driver, rows_S),
                lambda: _PREDICTING if (driver, run) in self._asked_rows else "",
            )
            if self._parked is not None:
                self._parked.take_up(driver, run, aligning)
            return aligning
        if algorithm not in self._makers:  # one that goes with another, which is not allowed
            raise ConfigError(
                f"refuses {algorithm!r}: its policy allows no method that it is a part of; the "
                "party may add the run's method to algorithms below [policy] in its file"
            )
        made = self._makers[algorithm](
            Asked(
                local=lambda: self._local(run, driver),
                rows_S=lambda: self._rows(run, driver),
                keep=lambda model, scores: self._keep_model(model, scores, run, driver, proposal),
                kept=self._model_folder,
                run=run,
                driver=driver,
                aligned=self._site_folder / "aligned" / certificate_name(driver),
                quota=self._quota,
                guard=self._alignments.of(driver, run),
            )
        )
        states = self._states(driver) / run.replace("/", _SLASH)
        self._drop_oldest(driver, states)
        folder = states / algorithm

        def allow(num_bytes: int) -> None:
            self._budgets.make_disk(driver, states, num_bytes)

        def restored(party: StatefulParty) -> None:
            """Restore a party without what it has released since, which is in no older state."""
            if isinstance(party, federated.Party):
                party.counts_at_least(self._run_limits.releases((driver, run, algorithm)))

        about = self._digests[algorithm]
        keeper = Checkpointed(made(), folder, allow=allow, about=about, restored=restored)
        try:
            if self._went_on(keeper, driver) or not known.goes_on:
                return keeper
            step = keeper.resume_latest()
        except ChangedError:  # what comes is refused with it, and that is written down
            return keeper
        except CheckpointError as error:  # the driver begins anew, or hears that it must
            _log.warning("run %s: %s", run, error)
            return Checkpointed(made(), folder, allow=allow, about=about, restored=restored)
        if step is not None:
            self._teller.print(f"run {run} goes on from step {step}, which is saved here")
        return keeper

    def _went_on(self, keeper: Checkpointed, driver: str) -> bool:
        """Whether an earlier process has parked the run, which goes on from there.

        Raises:
            ChangedError, CheckpointError: as of ``Checkpointed.resume_latest``.
        """
        if self._parked is None:
            forget_parked(keeper.folder)
            return False
        newest = self._parked.newest(keeper.folder, driver)
        if newest is not None:
            keeper.resume_parked(newest)
        return newest is not None

    def _keep_model(
        self,
        model: Model | Bottom,
        scores: Mapping[str, float],
        run: str,
        driver: str,
        proposal: str,
    ) -> None:
        """Save what this party can use, and say how good it is on its own test rows.

        ``proposal`` is the name of the one that the run is of; "" if it is of none.

        Raises:
            BudgetError: its driver's runs have taken the disk that they may.
            ConfigError: what another driver's run of that id has left is there.
        """
        if is_trial(run):
            return
        folder = self._model_folder(run)
        if driver_of(folder) not in (None, driver):
            raise ConfigError(
                f"keeps what another driver's run {run!r} has left, and puts nothing in its place; "
                "align anew, which gives runs other ids"
            )
        num_bytes = sum(each.nbytes for each in model.network.state_dict().values())
        self._budgets.make_disk(driver, self._states(driver) / folder.name, num_bytes)
        make_folder(folder.parent)
        about = {"run": run, "driver": driver, **({"proposal": proposal} if proposal else {})}
        about |= self._site.table.label_about
        replace(model, about={**model.about, **about}).save(folder)
        if isinstance(model, Model):
            renew(folder)
        text = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self._teller.print(f"model {folder}{': on its test rows ' if text else ''}{text}")

    def _model_folder(self, run: str) -> Path:
        """Where the model of a run is kept.

        Raises:
            ConfigError: the id is none.
        """
        check_run_id(run)
        return self._site_folder / "models" / run.replace("/", _SLASH)

    def _hold(self, run: str, driver: str, rows_S: Tensor) -> None:
        """Remember the rows of an alignment that is made for one prediction."""
        self._asked_rows[driver, run] = rows_S
        of_driver = [each for each in self._asked_rows if each[0] == driver]
        for oldest in of_driver[:-MAX_RUNS]:
            del self._asked_rows[oldest]
        self._teller.print(
            f"{driver!r} asks for a prediction of {int((rows_S >= 0).sum()):,} of "
            f"{self._site.table.num_rows:,} rows"
        )

    def _keep(self, run: str, driver: str, rows_S: Tensor) -> None:
        """Keep the rows of a finished alignment."""
        path, ids = self._path(driver), self._site.table.ids
        replaced = run
        with suppress(AlignmentError):  # there is none, or none that any run can use
            replaced = load_rows(path, self._site.name, ids).run
        try:
            make_folder(path.parent)
            save_rows(path, StoredRows(self._site.name, run, rows_S, digest(ids), driver))
        except (AlignmentError, ConfigError, OSError) as error:  # names files of this machine
            _log.error("run %s: %s", run, error)
            raise AlignmentError(
                "it cannot save its rows of the alignment; see its log, and align again"
            ) from None
        if replaced != run:
            self._forget(driver, replaced)
        num_shared = int((rows_S >= 0).sum())
        self._teller.print(
            f"aligned with {driver!r}: {num_shared:,} of {self._site.table.num_rows:,} rows are "
            f"shared (alignment {run})"
        )

    def _states(self, driver: str) -> Path:
        return self._site_folder / "checkpoints" / certificate_name(driver)

    def _forget(self, driver: str, alignment: str) -> None:
        """Drop the states of runs of an alignment whose rows were replaced."""
        for folder in self._states(driver).glob("*"):
            if folder.name.partition(_SLASH)[0] == alignment:
                shutil.rmtree(folder, ignore_errors=True)

    def _drop_oldest(self, driver: str, opened: Path) -> None:
        """Keep the states of a driver's last runs, this one among them."""
        others = [folder for folder in opened.parent.glob("*") if folder != opened]
        for folder in sorted(others, key=last_written, reverse=True)[KEPT_RUNS - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)
        saved = [folder.name.replace(_SLASH, "/") for folder in opened.parent.glob("*")]
        self._run_limits.forget(driver, saved)

    def _rows(self, run: str, driver: str) -> Tensor:
        """The rows that a run is to use.

        Raises:
            AlignmentError: there are none, or they are of another alignment, table or driver.
        """
        if not is_predicting(run):
            return self._stored(run, driver).rows_S
        if (driver, run) not in self._asked_rows:
            raise AlignmentError(
                "it has not agreed on samples for this prediction since it was started; predict "
                "again"
            )
        return self._asked_rows[driver, run]

    def _stored(self, run: str, driver: str) -> StoredRows:
        """The rows that a run is to use.

        Raises:
            AlignmentError: none are kept, or they are of another alignment, table or driver.
        """
        again = f"align first (at {driver!r}: dovetail align RUN)"
        path = self._path(driver)
        if not path.exists():
            raise AlignmentError(f"is not aligned with {driver!r} yet; {again}")
        try:
            stored = load_rows(path, self._site.name, self._site.table.ids)
        except AlignmentError as error:  # names files of this machine, which the driver need not
            _log.warning("run %s: %s", run, error)
            raise AlignmentError(
                f"the rows it keeps of the alignment with {driver!r} do not fit its table, which "
                f"has changed since; {again}"
            ) from None
        asked = alignment_of(run)
        if stored.run != asked or stored.driver != driver:
            raise AlignmentError(
                f"the run is of alignment {asked!r}, and this party's rows are of "
                f"{stored.run!r} with {stored.driver!r}; {again}"
            )
        return stored

    def _path(self, driver: str) -> Path:
        return self._site_folder / "aligned" / f"{certificate_name(driver)}.safetensors"
