"""``dovetail.fit``: a method and parties in, a run out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail import methods
from dovetail.api.lines import Partners, check_here
from dovetail.api.methods import LOSSES, APFed, Method
from dovetail.api.party import Party, keep, path_of
from dovetail.api.progress import talk_of
from dovetail.api.run import Run, temporary
from dovetail.api.simulation import Simulation
from dovetail.cluster import tasks_at
from dovetail.errors import ConfigError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.settings.party import PolicySection
from dovetail.methods.validation import validate
from dovetail.node.driver import Coordinator, Driver
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.runfolder import using
from dovetail.runs.setup import Given
from dovetail.runs.train import GIVEN, Drive, check_folder, check_free, open_driver, train_seeds
from dovetail.settings.models import Calibrate, ClassWeights, Compute, Threshold

WHERE = "dovetail.fit"

Parties = Sequence[Party | str | Path] | Party | Simulation


def fit(
    method: Method | str,
    parties: Parties,
    *,
    test: float | None = 0.25,
    baselines: Sequence[str] = (),
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    partners: Partners | None = None,
    active: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    device: str = "cpu",
    compute: Compute = "float32",
    evaluate_every: int = 1,
    checkpoint_every: int = 1,
    track: Sequence[str] = (),
    ray: str | None = None,
    class_weights: ClassWeights | None = None,
    threshold: Threshold | Mapping[str, Any] | None = None,
    calibrate: Calibrate | None = None,
) -> Run:
    """Train a method with these parties, and baselines beside it; what ``dovetail train`` does.

    Args:
        method: ``APFed(...)``, ``CHFL(...)``, ``HyFEM(...)``, ``FedOptimus(...)``, or what
            ``method =`` of a run file may be, such as "tvfl".
        parties: those in this process: parties, or party files; or one table that ``simulate``
            splits. With ``partners``, only the one that drives, or none for a coordinator.
        test: the share of the labelled rows that test; 0 or None: none. APFed-S and -D keep a
            model that learns from these, too, once they have scored it; others hold them back.
            Rows that test already, in a table that says so, do instead.
        baselines: what to train beside it on the same rows: "alone", "pooled", "tvfl", ...
        seeds: how many, from 0; or which.
        out: the run's folder; None: one that is removed when the run is not held any more.
        partners: parties on other machines, of ``listen``.
        active: who drives, where several parties have labels.
        resume: go on with what was stopped in ``out``; seeds that finished are not run again.
        overwrite: replace a run in ``out``.
        quiet: show no bars; what must not be missed is printed even so.
        device: where to compute: "cpu", "cuda", ...
        compute: "bf16": products of layers in bfloat16, where the processor has it.
        class_weights: how much each class counts in training: "balanced", or class -> weight.
        threshold: of two classes, what the probability from which the positive one is predicted is
            chosen for on validation rows: "f1", "cost", or a table such as {"goal": "recall",
            "precision": 0.8}.
        calibrate: on validation rows: "temperature" or "isotonic", and with them sets and intervals
            (``predict(x, coverage=0.9)``); "conformal": these alone.
        evaluate_every: score the test rows every so many epochs or rounds; 0: after the last.
        checkpoint_every: save every so many epochs or rounds; 0: never.
        track: watch it in "tensorboard", "mlflow".
        ray: train several seeds on a Ray cluster: "auto", or its address.

    Returns:
        Its scores, models and folder.

    Raises:
        ConfigError: settings that do not fit.
        DataError, AlignmentError: tables that do not.
        NetworkError: partners who do not come.
    """
    chosen = Method(method) if isinstance(method, str) else method
    if hasattr(parties, "columns") and not isinstance(parties, Party):
        raise ConfigError(
            f"{WHERE}: parties is a list of dovetail.Party(name, df, id=...), got one "
            f"{type(parties).__name__}; to split one table among parties in this process, give "
            "dovetail.simulate(df, dovetail.Columns(...), label=...)"
        )
    if not isinstance(chosen, Method):
        raise ConfigError(
            f"{WHERE}: a method is dovetail.APFed(...), CHFL, HyFEM, FedOptimus or a name, got "
            f"{type(chosen).__name__}"
        )
    named = chosen.variant_name in LOSSES.values() and not isinstance(chosen, APFed)
    if named and not isinstance(parties, Simulation):
        # Each party sets its own loss: those in this process that set none have the method's.
        variant = next(
            name for name, variant_name in LOSSES.items() if variant_name == chosen.variant_name
        )
        chosen = APFed(variant, **chosen.settings)  # type: ignore[arg-type]
    numbers, test = _numbers(seeds), test or None
    if resume and out is None:
        raise ConfigError(f"{WHERE}: resume needs out, the folder of the run that was stopped")
    if out is not None and not (resume or overwrite):
        seed_folders = (Path(out) / f"seed-{number}" for number in numbers)
        ways = {"resume": "resume=True", "overwrite": "overwrite=True", "keep": 'out="{}"'}
        check_free(Path(out), *seed_folders, **ways)
    folder = Path(tempfile.mkdtemp(prefix="dovetail-")) / "run" if out is None else Path(out)
    values: dict[str, Any] = {
        "method": chosen.variant_name,
        "baselines": [baselines] if isinstance(baselines, str) else list(baselines),
        "seeds": list(numbers),
        "device": device,
        "compute": compute,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every if out is not None else 0,
        "track": {"to": [track] if isinstance(track, str) else list(track)},
        chosen.name: chosen.settings,
    }
    for key, value in (
        ("active", active),
        ("class_weights", class_weights),
        ("threshold", threshold),
        ("calibrate", calibrate),
    ):
        if value is not None:
            values[key] = value
    try:
        if isinstance(parties, Simulation):
            data = _simulated(chosen, parties, test, folder / GIVEN, partners)
        else:
            listed = [parties] if isinstance(parties, (Party, str, Path)) else list(parties)
            data = _from_sites(chosen, listed, test, folder / GIVEN, partners, resume=resume)
        run = check_run({**values, **data.values}, where=WHERE)
        check_folder(folder)
        with using(folder), tasks_at(ray, "ray") as tasks:
            try:
                data.keep()
            except OSError as error:
                raise ConfigError(
                    f"cannot write to {folder} ({error.strerror}); name another folder with out=..."
                ) from None
            train_seeds(
                run,
                folder,
                numbers,
                resume=resume,
                overwrite=overwrite,
                talk=talk_of(shown=not quiet),
                drive=data.drive,
                given=data.given,
                tasks=tasks,
            )
    except BaseException:
        if out is None:
            shutil.rmtree(folder.parent, ignore_errors=True)
        raise
    return temporary(folder) if out is None else Run(folder)


def _numbers(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Which seeds are run."""
    if isinstance(seeds, int):
        if seeds < 1:
            raise ConfigError(f"{WHERE}: seeds is how many, one or more, or a list; got {seeds}")
        return tuple(range(seeds))
    return tuple(seeds)


@dataclass(frozen=True, eq=False)
class _Data:
    """The data of a run.

    Attributes:
        values: keys of the run file that say where they are.
        given: the data themselves.
        keep: writes to the run's folder what of them is in no file.
        drive: opens the lines to partners who are elsewhere.
    """

    values: Mapping[str, Any]
    given: Given
    keep: Callable[[], None]
    drive: Drive = open_driver


def _simulated(
    method: Method,
    simulation: Simulation,
    test: float | None,
    folder: Path,
    partners: Partners | None,
) -> _Data:
    """Data of one table that is split."""
    if partners is not None:
        raise ConfigError(f"{WHERE}: a simulation has all its parties here; leave partners out")
    values: dict[str, Any] = {"data": simulation.values(test, folder)}
    if isinstance(method, APFed):
        values["passive"] = method.passive
    return _Data(values, Given(WHERE, pooled=simulation.pooled), lambda: simulation.keep(folder))


def _from_sites(
    method: Method,
    parties: Sequence[Party | str | Path],
    test: float | None,
    folder: Path,
    partners: Partners | None,
    *,
    resume: bool,
) -> _Data:
    """Parties with tables of their own."""
    read = [each if isinstance(each, Party) else Party.read(each) for each in parties]
    names = [party.name for party in read]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{WHERE}: two parties are called {name!r}; names must differ")
    defaults = _defaults(method, test, read, elsewhere=partners is not None)
    sites = {
        party.name: party.site
        if party.is_of_file
        else _prepared(party, method, defaults, here=partners is None)
        for party in read
    }
    coordinated = methods.coordinated(method.variant_name)
    values: dict[str, Any] = {}
    if not coordinated and test is not None:
        values["test"] = test
    if sites or not coordinated:
        values["parties"] = [
            str(site.path.absolute() if party.is_of_file else path_of(site, folder).absolute())
            for party, site in zip(read, sites.values(), strict=True)
        ]

    def keep_all() -> None:
        for party in read:
            if not party.is_of_file:
                keep(sites[party.name], party.rows, folder)

    if partners is None:
        return _Data(values, Given(WHERE, sites=sites), keep_all)
    driver = check_here(partners, list(sites.values()), coordinated=coordinated)
    values["engine"] = partners.section.model_dump(mode="json", exclude_none=True)

    def drive(
        run: RunFile, *, talk: Progress = SILENT
    ) -> AbstractContextManager[Driver | Coordinator | None]:
        return partners.driving(driver, resume=resume, talk=talk)

    return _Data(values, Given(WHERE), keep_all, drive)


def _defaults(
    method: Method, test: float | None, parties: Sequence[Party], *, elsewhere: bool
) -> dict[str, Any]:
    """Settings of the method for parties in this process that do not set them themselves.

    Raises:
        ConfigError: some are for parties that set them at its site.
    """
    if isinstance(method, APFed):
        files = [party.name for party in parties if party.is_of_file]
        if set(method.passive) - {"loss"} and (elsewhere or files):
            whose = "partners on other machines" if elsewhere else f"{files[0]!r}"
            raise ConfigError(
                f"{WHERE}: passive is for parties in this process; {whose} set their own "
                f"(apfed = {{'encoder': ...}} of dovetail.Party, or [apfed] of a party file), so "
                "leave it out"
            )
        return method.passive
    return {"test_share": test or 0.0}


def _prepared(party: Party, method: Method, defaults: Mapping[str, Any], *, here: bool) -> Site:
    """The party with these settings where it says nothing, agreeing to the method if it is here.

    Whoever calls ``fit`` with all tables has agreed to what is trained; with a policy of its own a
    party is held to that.
    """
    site = party.site
    sections = dict(site.sections)
    section = sections.get(method.name)
    if section is not None:
        known = {key: value for key, value in defaults.items() if key in type(section).model_fields}
        given = section.model_dump(exclude_unset=True)
        sections[method.name] = validate(type(section), {**known, **given}, where=site.where)
    policy = site.policy
    if here and not party.says_policy:
        needed = {
            each.policy for each in methods.method_of(method.variant_name).algorithms.values()
        }
        agreed = dict.fromkeys((*policy.section.algorithms, *sorted(needed)))
        policy = replace(policy, section=PolicySection(algorithms=tuple(agreed)))
    return replace(site, sections=sections, policy=policy)
