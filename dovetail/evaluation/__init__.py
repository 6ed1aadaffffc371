"""Scores, tabulates or draws a run."""

from dovetail.evaluation.apfed import SUBSTITUTES, ApfedSetup, PassiveSetup, pool
from dovetail.evaluation.experiment import Observer, Outcome, Setup, mean_over, run
from dovetail.evaluation.metrics import headline, mean_and_spread, score
from dovetail.evaluation.own import Round, RoundsSetup, model_of
from dovetail.evaluation.runfolder import RunFolder, finished, summarise, versions, write_text

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
