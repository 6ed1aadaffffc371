"""Result of a simulated run: a method, and the baselines beside it, on the same rows and seed.

What is common to all methods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from dovetail.data import (
    Classification,
    Counts,
    MultiLabel,
    PartyData,
    Quantiles,
    Regression,
    Survival,
    TableEncoder,
    Task,
)
from dovetail.errors import ConfigError, TrainingError
from dovetail.models import Model
from dovetail.models.decisions import (
    FittedThreshold,
    check_two_classes,
    class_weights,
    fit_threshold,
)
from dovetail.models.metrics import all_scores, details, headline, score
from dovetail.models.owners import Bottom
from dovetail.network import Ledger
from dovetail.settings.models import Calibrate, ClassWeights, Threshold, ThresholdSettings

#: Score name -> value. Those of a model that is trained also have "details" (``metrics.details``),
#: which a run's folder keeps apart.
Scores = Mapping[str, Any]

#: Of scores, what is no number.
DETAILS = "details"

#: Variants that are what a party reaches with nothing but its own, the one to compare with first.
ALONE = ("best-alone", "alone", "local", "standalone")

#: Told of each epoch or round: variant, how many there are in all, and the line for
#: ``metrics.jsonl``. A line has "epoch" or "round" (its number from 1) and "seconds"; where parties
#: were left out also "missed" (party -> how often) and "reasons" (party -> why, the first time);
#: "steps" (how many the epoch had) if that counts steps rather than rounds. A line without a number
#: is told before the first.
Observer = Callable[[str, int, dict[str, Any]], None]


@dataclass(frozen=True)
class DecisionSettings:
    """Settings of decisions in a run file: costs of mistakes, calibration.

    Attributes:
        class_weights: how much each class counts in training.
        threshold: what the probability from which the second of two classes is predicted is chosen
            for.
        calibrate: how probabilities are made to mean what they say.
    """

    class_weights: ClassWeights | None = None
    threshold: Threshold | None = None
    calibrate: Calibrate | None = None

    @property
    def needs_rows(self) -> bool:
        """Whether rows are kept out of training for it."""
        return self.threshold is not None or self.calibrate is not None

    def check(self, task: Task) -> None:
        """Refuse before training what cannot be decided of a label.

        Raises:
            ConfigError: a threshold of other than two classes, or a calibration of what is neither
                a class nor a number.
        """
        if self.threshold is not None:
            check_two_classes(task)
        if self.calibrate is not None and not isinstance(task, (Classification, Regression)):
            raise ConfigError("calibrate is for a class or a number as label; leave it out")

    def weights(self, task: Task, labels_N: Tensor) -> Tensor | None:
        """(C,) weights of the classes; None: all count alike."""
        self.check(task)
        return class_weights(self.class_weights, task, labels_N)

    def decision(self, task: Task, outputs_NC: Tensor, labels_N: Tensor) -> FittedThreshold | None:
        """The threshold that does best on validation rows, and the calibration fitted on them;
        None where neither is asked for."""
        settings = ThresholdSettings(threshold=self.threshold, calibrate=self.calibrate)
        return fit_threshold(settings, task, outputs_NC, labels_N)


def described(model: Model, *, method: str, label: str, **about: Any) -> Model:
    """A model with how it came about; of a label without a name nothing is kept."""
    named = {"label": label} if label else {}
    return replace(model, about={**model.about, "method": method, **about, **named})


def about_decision(decision: FittedThreshold | None) -> dict[str, Any]:
    """Description of the decision that is kept with a model."""
    return {} if decision is None else decision.about


@dataclass
class Outcome:
    """Result of one variant of a run.

    Attributes:
        scores: name -> party -> scores on the test rows. A variant has its own name; it may have
            others, which count as baselines.
        models: party -> what it can use alone, where there is such a thing.
        bottoms: party -> what it can use together with others' models only.
        joint: what somebody uses while its partners are there; it can do without them.
        keys: partner -> what reads its answers to the joint model; for the label owner's own eyes.
        about: more to say of it in ``result.json``.
        ledger: what left each party.
        missed: party -> what it was left out of: "steps" or "rounds", "of" how many, and "first"
            (why). ``run`` fills it from the variant's lines.
        seconds: wall time of training. ``run`` fills it from the variant's lines.
    """

    scores: dict[str, dict[str, Scores]] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    bottoms: dict[str, Bottom] = field(default_factory=dict)
    joint: Model | None = None
    keys: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    missed: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0


def number(line: Mapping[str, Any]) -> int:
    """Which epoch or round a line is of; 0 for a line before the first."""
    return int(line.get("epoch", line.get("round", 0)))


def missed_text(party: str, missed: Mapping[str, Any]) -> str:
    """How much of a variant's training went on without a party; see ``Outcome.missed``."""
    unit = "steps" if "steps" in missed else "rounds"
    return f"party {party!r} was left out of {missed[unit]} of {missed['of']} {unit}"


def missed_share(missed: Mapping[str, Any]) -> float:
    """Which part of it that is."""
    return float(missed.get("steps", missed.get("rounds", 0)) / missed["of"])


def score_party(
    party: str,
    what: str,
    task: Task,
    outputs: Tensor,
    labels: Tensor,
    *,
    learning_rate: float | None = None,
    last: bool = False,
    decision: FittedThreshold | None = None,
    relied: Callable[[], Mapping[str, Any] | None] | None = None,
) -> dict[str, Any]:
    """A party's scores on its test rows: the few that are shown as training goes on, or, of the
    last, all of them and their details.

    Args:
        learning_rate: that may be too high; None: it has none.
        decision: what the last are calibrated by.
        relied: which columns the model relies on (``models.relied``), which stands among the
            details of the last; None: it is not told.

    Raises:
        TrainingError: outputs that are not finite: the last step of an epoch led astray.
    """
    num_lost = int((~outputs.isfinite().all(dim=1)).sum())
    if num_lost:
        rate = "" if learning_rate is None else f"; lower the learning_rate ({learning_rate})"
        raise TrainingError(
            f"party {party!r}: after training {what!r} its outputs are not finite on "
            f"{num_lost} of {len(outputs)} test rows{rate}"
        )
    if not last:
        return {**score(task, outputs, labels)}
    threshold = None
    if decision is not None:
        outputs, threshold = decision.calibrated(outputs), decision.threshold
    more = details(task, outputs, labels, threshold=threshold)
    if relied is not None and (columns := relied()) is not None:
        more["relied"] = columns
    return {**all_scores(task, outputs, labels, threshold=threshold), DETAILS: more}


def goodness(task: Task, outputs: Tensor, labels: Tensor) -> float:
    """Share that is classified rightly; of numbers 1 / (1 + mean squared error, in squares of
    their scale): 1 where all are right, and of counts, amounts and quantiles the same of their
    deviance or pinball loss; of several labels the share that is predicted rightly, of those that
    rows have; of times to an event Harrell's C, 0.5 without a pair."""
    if isinstance(task, Classification):
        return int((outputs.argmax(dim=1) == labels).sum()) / len(labels)
    if isinstance(task, Survival):
        return score(task, outputs.cpu(), labels.cpu()).get("c_index", 0.5)
    if isinstance(task, MultiLabel):
        return float(((outputs > 0) == (labels > 0.5))[~labels.isnan()].float().mean())
    if isinstance(task, (Counts, Quantiles)):
        plain: dict[str, Any] = {"mean": 0.0, "scale": 1.0}
        if isinstance(task, Counts):
            plain = {"unit": 1.0, "exposed": 1.0}
        costs = score(replace(task, **plain), outputs.cpu(), labels.cpu())
        return goodness_of_error(costs[headline(task)])
    labels_NL = labels.reshape(len(labels), -1)
    squares = (outputs - labels_NL)[~labels_NL.isnan()].square()
    return goodness_of_error(float(squares.sum()) / len(squares))


def goodness_of_error(mean_squared: float) -> float:
    """1 where numbers are all right, towards 0 the larger their mean squared error is."""
    return 1 / (1 + mean_squared) if math.isfinite(mean_squared) else 0.0


def outputs_of(model: Model, rows: PartyData) -> Tensor:
    """Outputs of a model for a party's rows."""
    return model.outputs(inputs_of(model, rows))


def inputs_of(model: Model, rows: PartyData) -> dict[str, Tensor]:
    """Block -> features of a party's rows, as a model takes them."""
    x = {}
    for block in model.shapes:
        if block in rows.tables:
            encoder = model.inputs[block]
            assert isinstance(encoder, TableEncoder)
            x[block] = encoder.transform(rows.tables[block], allow_unseen=True)
        else:
            x[block] = rows.blocks[block]
    return x


def numbers(scores: Scores) -> dict[str, float]:
    """The scores without their details."""
    return {name: value for name, value in scores.items() if name != DETAILS}


def mean_over(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Score name -> mean over the parties, of those scores that all have.

    >>> mean_over({"bank": {"accuracy": 0.5, "auc": 0.5}, "shop": {"accuracy": 1.0}})
    {'accuracy': 0.75}
    """
    each = [numbers(party_scores) for party_scores in scores.values()]
    if len(each) == 1:
        return each[0]
    return {
        name: statistics.fmean(party[name] for party in each)
        for name in each[0]
        if all(name in party for party in each)
    }


def metrics_of(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Metrics of these scores for a line of ``metrics.jsonl``: one party's, or the mean and each's.

    >>> metrics_of({"bank": {"accuracy": 0.5}})
    {'accuracy': 0.5}
    """
    line: dict[str, Any] = mean_over(scores)
    if len(scores) == 1:
        return line
    return {
        **line,
        "parties": {party: numbers(party_scores) for party, party_scores in scores.items()},
    }
