"""Scores, tabulates or draws a run."""

from dovetail.experiment.runfolder import RunFolder, finished, summarise, versions
from dovetail.experiment.stages import run
from dovetail.methods.apfed.stages import SUBSTITUTES, ApfedSetup, PassiveSetup, pool
from dovetail.methods.outcome import Observer, Outcome, Setup, mean_over
from dovetail.methods.rounds import Round, RoundsSetup, model_of
from dovetail.models.metrics import headline, mean_and_spread, score
from dovetail.network.patience import write_text

__all__ = [
    "SUBSTITUTES",
    "ApfedSetup",
    "Observer",
    "Outcome",
    "PassiveSetup",
    "Round",
    "RoundsSetup",
    "RunFolder",
    "Setup",
    "finished",
    "headline",
    "mean_and_spread",
    "mean_over",
    "model_of",
    "pool",
    "run",
    "score",
    "summarise",
    "versions",
    "write_text",
]
