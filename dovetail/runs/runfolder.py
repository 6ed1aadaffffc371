"""The folder of a run: settings, metrics, result, ledger and models, in files others can open."""

from __future__ import annotations

import json
import platform
import secrets
import shutil
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor

from dovetail.errors import CheckpointError, ConfigError
from dovetail.files import not_written
from dovetail.methods import outcome as outcomes
from dovetail.methods.base import Site
from dovetail.models import Model
from dovetail.models.card import renew_all
from dovetail.models.folders import NAME as KEYS
from dovetail.models.folders import key_file, write_keys
from dovetail.models.metrics import mean_and_spread
from dovetail.models.model_folders import JOINT
from dovetail.models.recovered import over_seeds, warnings_of
from dovetail.network import Checkpoint
from dovetail.network.in_use import in_use
from dovetail.network.retry import naming, write_text
from dovetail.node.proposal import Proposal, Signature, signature_path

#: Of a variant, what stands elsewhere in a result.
_NOT_REPORTED = ("models", "about")

#: What of ``[engine]`` results depend on; the rest says how partners are reached.
_ENGINE = ("kind", "partners", "precision")


#: What is released, as an account calls it -> the messages that carry it.
_CARRIED_BY: Mapping[str, tuple[str, ...]] = {
    "codes": ("apfed.Codes", "vertical.Codes"),
    "gradients": ("apfed.CodeGradient", "vertical.CodeGradient", "fedoptimus.Learned"),
    "embeddings": ("fedoptimus.Embeddings",),
    "columns": ("distil.Codes",),
    "weights": ("chfl.Trained", "hyfem.Trained"),
    "counts": ("survival.Counted", "survival.Share"),
    "the solo model": (),  # it stays where it is, until its owner hands it on
}


def _cost(line: Mapping[str, Any], spent: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Epsilon and delta of the sample that messages of this line have cost most, if counted."""
    for each in spent:
        # A name, or a role that only one party of the run has.
        receives = each["to"] == line["to"] or each["to"].startswith("the ")
        carries = line["message"] in _CARRIED_BY[each["what"]]
        if each["from"] == line["from"] and receives and carries:
            return {"epsilon": each["epsilon"], "delta": each["delta"]}
    return {}


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that must be equal when a run is resumed."""
    run = {key: value for key, value in run.items() if key != "min_participation"}
    engine = run.get("engine")
    if not isinstance(engine, Mapping):
        return run
    return {**run, "engine": {key: engine[key] for key in _ENGINE if key in engine}}


#: Below a run's folder: what it goes on from where it is stopped.
CHECKPOINTS = "checkpoint"

#: In there, what tells a run from others of its settings.
_ID = "id"

#: The run folders that this thread uses.
_used: ContextVar[frozenset[Path]] = ContextVar("_used", default=frozenset())


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """The run folder is this process's alone meanwhile; what is called within may say so again.

    Raises:
        ConfigError: another process uses it: which, and what to do.
    """
    path = folder.resolve()
    if path in _used.get():
        yield
        return
    with in_use(folder, "name another folder"):
        before = _used.set(_used.get() | {path})
        try:
            yield
        finally:
            _used.reset(before)


class RunFolder:
    """Folder of one seed; a context that keeps ``metrics.jsonl`` open.

    ``run.toml`` is the run file as resolved, ``metrics.jsonl`` has a line per epoch or round as it
    ends, ``result.json`` is written last, so that a folder with it is a run that finished. Until
    then ``checkpoint/VARIANT`` has what a run that was stopped goes on from: the state of
    the variant, or its ``outcome.json`` once it is done.

    Args:
        path: the folder.
        run: the settings; a JSON- and TOML-ready dict.
        seed: of the run.
        method: the variant that the run is about; its models are kept.
        resume: go on from what an earlier run of the same settings left.
        every: epochs or rounds from one checkpoint to the next; 0 saves none.

    Attributes:
        id: distinguishes this run from others of the same settings; a resumed run has that of the
            run it goes on with.
        keys: where a site keeps what reads partners' answers; None: all parties are in one process.
        sites: the parties that are here, of which the models' labels are.
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, Any],
        *,
        seed: int,
        method: str,
        resume: bool = False,
        every: int = 1,
    ) -> None:
        self.path = path
        self._run = run
        self._seed = seed
        self._method = method
        self._resume = resume
        self._every = every
        self._variants: dict[str, dict[str, Any]] = {}
        self._ledger: list[dict[str, Any]] = []
        self._proposal = ""
        self._finished = False
        self.keys: Path | None = None
        self.sites: Mapping[str, Site] = {}
        self.shared: Mapping[str, int] = {}

    def of_proposal(self, proposal: Proposal, signatures: Mapping[str, Signature]) -> None:
        """Keep what was agreed on beside the run: ``agreement/``, as it was proposed and signed."""
        folder = self.path / "agreement"
        folder.mkdir(exist_ok=True)
        write_text(folder / "proposal.json", proposal.text)
        for party, signature in signatures.items():
            path = signature_path(folder / "proposal.json", party)
            write_text(path, signature.text)
        self._proposal = proposal.name

    def __enter__(self) -> RunFolder:
        lines: list[str] = []
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._resume and (self.path / "result.json").exists():
                self._check_settings("finished")  # it is not replaced by a slip of a setting
            # What an earlier run left here must not pass for this one's.
            for name in ("result.json", "ledger.jsonl"):
                (self.path / name).unlink(missing_ok=True)
            if self._resume and self._kept_id():
                self._check_settings()
                self._take_up()
                lines = self._kept_lines()
            else:
                self._forget()
            if self._method not in self._variants:
                for pattern in ("models/*/model.json", "models/*/bottom.json"):
                    for model in self.path.glob(pattern):
                        shutil.rmtree(model.parent)
            # Without an id there is no run to go on with: all that one needs is written before.
            write_text(self.path / "run.toml", tomli_w.dumps(self._run))
            write_text(self.path / "metrics.jsonl", "".join(lines))
            self.name(self._kept_id() or secrets.token_hex(8))
            self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot write the run folder {self.path}: {not_written(error, self.path)}"
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with naming(self.path / "metrics.jsonl"):  # both write what is left in memory
            nothing_yet = not (self._metrics.tell() or self._variants or self._resume)
            self._metrics.close()
        if self._finished or (kind is not None and nothing_yet):
            self._forget()

    def _forget(self) -> None:
        """Leave nothing to go on from."""
        (self._checkpoints / _ID).unlink(missing_ok=True)
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    def name(self, id: str) -> None:
        """Give the run this id."""
        self.id = id
        if self._every:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            write_text(self._checkpoints / _ID, id)

    def _kept_id(self) -> str:
        path = self._checkpoints / _ID
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def done_variants(self) -> Collection[str]:
        """The variants that are done."""
        return self._variants.keys()

    def checkpoint(self, variant: str) -> Checkpoint:
        """Where a variant is saved, and goes on from."""
        if not self._every:
            return Checkpoint.none()
        about = {"variant": variant, "run": _settings(self._run)}
        return Checkpoint(self._checkpoints / variant, about=about, every=self._every)

    def epoch(self, variant: str, line: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with naming(self.path / "metrics.jsonl"):
            self._metrics.write(json.dumps({"variant": variant, **line}) + "\n")
            self._metrics.flush()

    def lines(self) -> list[dict[str, Any]]:
        """Lines of ``metrics.jsonl`` so far."""
        text = (self.path / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def _with_label(self, model: Model) -> Model:
        """The model with how its party's label is read."""
        if model.party not in self.sites:
            return model
        return replace(model, about={**model.about, **self.sites[model.party].table.label_about})

    def keep_variant(self, variant: str, outcome: outcomes.Outcome) -> None:
        """Keep what a variant gave."""
        if variant == self._method:
            for party, model in outcome.models.items():
                if self._proposal:
                    model = replace(model, about={**model.about, "proposal": self._proposal})
                self._with_label(model).save(self.path / "models" / party)
            for party, bottom in outcome.bottoms.items():
                bottom.save(self.path / "models" / party)
            if outcome.joint is not None:
                self._with_label(outcome.joint).save(self.path / "models" / JOINT)
                if outcome.keys:
                    self._save_keys(outcome.joint, outcome.keys)
        done = {
            "seconds": outcome.seconds,
            "bytes": outcome.ledger.bytes_by_party(),
            "missed": outcome.missed,
            **_apart(outcome.scores),
            "models": list(outcome.models),
            **({"about": outcome.about} if outcome.about else {}),
        }
        spent = outcome.about.get("epsilon", ())
        ledger = [
            {"variant": variant, **line, **_cost(line, spent)} for line in outcome.ledger.lines()
        ]
        if self._every:
            (self._checkpoints / variant).mkdir(parents=True, exist_ok=True)
            write_text(
                self._checkpoints / variant / "outcome.json",
                json.dumps({"variant": done, "ledger": ledger}) + "\n",
            )
        self._add(variant, done, ledger)

    def _save_keys(self, joint: Model, keys: Mapping[str, Tensor]) -> None:
        """Save the keys that read partners' answers: at the site, or of a run in one process beside
        it."""
        path = self.path / "models" / JOINT / KEYS
        if self.keys is not None:
            path = key_file(self.keys, str(joint.about.get("run")))
        write_keys(path, keys)

    def finish(self, heads: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write ``ledger.jsonl``, ``result.json`` and the models' cards; gives the result.

        ``heads``: party -> where its own ledger stands.
        """
        lines = "".join(json.dumps(line) + "\n" for line in self._ledger)
        write_text(self.path / "ledger.jsonl", lines)
        method = self._variants[self._method]
        scores = {
            name: each for done in self._variants.values() for name, each in done["scores"].items()
        }
        trained = scores.pop(self._method, {party: {} for party in method["models"]})
        warnings = list(
            _warnings(trained, scores, method.get(outcomes.DETAILS, {}).get(self._method, {}))
        )
        result = {
            "method": self._method,
            "seed": self._seed,
            "parties": trained,
            **({"mean": outcomes.mean_over(trained)} if len(trained) > 1 else {}),
            "baselines": {name: outcomes.mean_over(each) for name, each in scores.items()},
            "seconds": method["seconds"],
            "bytes": method["bytes"],
            "missed": method["missed"],
            **({"proposal": self._proposal} if self._proposal else {}),
            **({"shared": dict(self.shared)} if self.shared else {}),
            **method.get("about", {}),
            **self._only_tested(method),
            **({"warnings": warnings} if warnings else {}),
            "variants": {
                variant: {name: value for name, value in done.items() if name not in _NOT_REPORTED}
                for variant, done in self._variants.items()
            },
            "versions": versions("dovetail", "torch"),
        }
        write_text(self.path / "result.json", json.dumps(result, indent=2) + "\n")
        renew_all(self.path, heads=heads)
        self._finished = True
        return result

    def _only_tested(self, method: Mapping[str, Any]) -> dict[str, Any]:
        """Party -> its labelled rows that scored a model, and that the kept one never learns."""
        refitted = "refitted" in method.get("about", {}).get("distilled", {})
        if refitted or self._run.get("data"):
            return {}
        details = method.get(outcomes.DETAILS, {}).get(self._method, {})
        rows = {party: each["rows"] for party, each in details.items()}
        return {"only_tested": rows} if rows else {}

    @property
    def _checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def _add(self, variant: str, done: dict[str, Any], ledger: list[dict[str, Any]]) -> None:
        self._variants[variant] = done
        self._ledger += ledger

    def _check_settings(self, how: str = "stopped") -> None:
        """Refuse to go on with other settings: the variants would not be of one run.

        Raises:
            ConfigError: naming the keys that differ.
        """
        path = self.path / "run.toml"
        try:
            then = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            then = {}
        then, now = _settings(then), _settings(self._run)
        differing = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
        if differing:
            raise ConfigError(
                f"{self.path} holds a run that was {how}, of other settings ({path.name} differs "
                f"in {', '.join(differing)}); resume with the same, or start anew "
                "with --overwrite"
            )

    def _take_up(self) -> None:
        """Variants that are done already."""
        for path in sorted(
            self._checkpoints.glob("*/outcome.json"), key=lambda p: p.stat().st_mtime_ns
        ):
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                self._add(path.parent.name, kept["variant"], kept["ledger"])
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{path} is damaged ({error}); start anew with --overwrite"
                ) from None

    def _kept_lines(self) -> list[str]:
        """The lines of variants that are done, and of what the others' checkpoints have."""
        kept = []
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                line = json.loads(text)
            except ValueError:  # cut off in the middle, as the last one can be
                continue
            variant = line["variant"]
            done = 0 if variant in self._variants else self.checkpoint(variant).done()
            if variant in self._variants or 0 < done >= outcomes.number(line):
                kept.append(text)
        return kept


def _apart(scores: Mapping[str, Mapping[str, outcomes.Scores]]) -> dict[str, Any]:
    """Scores, and their details apart: name -> party -> them."""
    details = {
        name: details_of
        for name, each in scores.items()
        if (
            details_of := {
                party: scores_here[outcomes.DETAILS]
                for party, scores_here in each.items()
                if outcomes.DETAILS in scores_here
            }
        )
    }
    return {
        "scores": {
            name: {party: outcomes.numbers(scores_here) for party, scores_here in each.items()}
            for name, each in scores.items()
        },
        **({outcomes.DETAILS: details} if details else {}),
    }


def _warnings(
    trained: Mapping[str, outcomes.Scores],
    baselines: Mapping[str, Mapping[str, outcomes.Scores]],
    details: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Warnings about what is plainly wrong with each party's model."""
    alone = [name for name in outcomes.ALONE if name in baselines]
    for party, scores in trained.items():
        about = details.get(party, {})
        majority = baselines.get("majority", {}).get(party) or about.get("mean")
        if majority is None and "commonest" in about:
            majority = {"accuracy": about["commonest"]}
        yield from warnings_of(
            f"the model of {party!r}",
            scores,
            alone=next(
                (baselines[name][party] for name in alone if party in baselines[name]), None
            ),
            majority=majority,
            intervals=about.get("intervals"),
        )
        joint = baselines.get("joint", {}).get(party)
        if joint is not None and "rows" not in joint:  # of the same rows
            name = f"the joint model of {party!r}"
            yield from warnings_of(name, joint, alone=None, majority=majority)
        if "unseen_rows" in scores:
            numbered = all(isinstance(name, int) for name in about.get("classes", ("",)))
            yield (
                f"{scores['unseen_rows']:.0f} of the test rows of {party!r} are of a class that no "
                "labelled training row has; they count as wrong"
                + ('; of a label that is a number say task = "regression"' if numbered else "")
            )


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Result over several seeds: every score's mean and spread."""
    first = results[0]
    return {
        "method": first["method"],
        "seeds": [result["seed"] for result in results],
        "parties": {
            name: mean_and_spread([result["parties"][name] for result in results])
            for name in first["parties"]
        },
        **(
            {"mean": mean_and_spread([result["mean"] for result in results])}
            if "mean" in first
            else {}
        ),
        "baselines": {
            name: mean_and_spread([result["baselines"][name] for result in results])
            for name in first["baselines"]
            if all(name in result["baselines"] for result in results)
        },
        "seconds": sum(result["seconds"] for result in results) / len(results),
        "bytes": first["bytes"],
        "missed": {str(result["seed"]): result["missed"] for result in results if result["missed"]},
        **_about(results),
    }


def _about(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of several seeds' results, of all together."""
    about: dict[str, Any] = {}
    if "only_tested" in results[0]:
        about["only_tested"] = results[0]["only_tested"]
    recovered = [result["recovered"] for result in results if "recovered" in result]
    if recovered:
        about["recovered"] = over_seeds(recovered)
    distilled = {str(each["seed"]): each["distilled"] for each in results if "distilled" in each}
    if distilled:
        about["distilled"] = distilled
    epsilon = {str(each["seed"]): each["epsilon"] for each in results if "epsilon" in each}
    if epsilon:
        about["epsilon"] = epsilon
    warnings = [
        f"seed {result['seed']}: {warning}"
        for result in results
        for warning in result.get("warnings", ())
    ]
    return {**about, "warnings": warnings} if warnings else about


def was_stopped(folder: Path) -> bool:
    """Whether a run is here that can go on: it failed or was stopped after it began, or runs."""
    return (folder / CHECKPOINTS / _ID).exists()


def finished(path: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a run of these settings that finished in this folder, or None."""
    if was_stopped(path):  # after its result, and before all that follows from it
        return None
    try:
        settings = tomllib.loads((path / "run.toml").read_text(encoding="utf-8"))
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if _settings(settings) == _settings(run) and isinstance(result, dict) else None


def versions(*packages: str) -> dict[str, str]:
    """Package -> version, of those that are installed as packages, and of Python."""
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {**versions, "Python": platform.python_version()}
