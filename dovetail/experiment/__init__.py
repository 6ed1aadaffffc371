"""Scores, tabulates or draws a run."""

from dovetail.experiment.runfolder import RunFolder, finished, summarise, versions
from dovetail.experiment.stages import run
from dovetail.methods.apfed.stages import pool
from dovetail.methods.outcome import Outcome, Setup
from dovetail.models.metrics import headline, mean_and_spread, score
from dovetail.network.patience import write_text

__all__ = [
    "Outcome",
    "RunFolder",
    "Setup",
    "finished",
    "headline",
    "mean_and_spread",
    "pool",
    "run",
    "score",
    "summarise",
    "versions",
    "write_text",
]
