"""Scores, tabulates or draws a run."""

from dovetail.experiment.runfolder import RunFolder, finished, summarise, versions
from dovetail.experiment.stages import run
from dovetail.methods.apfed.stages import SUBSTITUTES, pool
from dovetail.methods.outcome import Observer, Outcome, Setup, mean_over
from dovetail.models.metrics import headline, mean_and_spread, score
from dovetail.network.patience import write_text

__all__ = [
    "SUBSTITUTES",
    "Observer",
    "Outcome",
    "RunFolder",
    "Setup",
    "finished",
    "headline",
    "mean_and_spread",
    "mean_over",
    "pool",
    "run",
    "score",
    "summarise",
    "versions",
    "write_text",
]
