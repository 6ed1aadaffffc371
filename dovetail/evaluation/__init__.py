"""Scores, tabulates or draws a run."""

from dovetail.evaluation.experiment import (
    SUBSTITUTES,
    Outcome,
    PassiveSetup,
    Setup,
    Stage,
    pool,
    run,
)
from dovetail.evaluation.metrics import headline, mean_and_spread, score
from dovetail.evaluation.runfolder import RunFolder, finished, summarise, write_text

__all__ = [
    "SUBSTITUTES",
    "Outcome",
    "PassiveSetup",
    "RunFolder",
    "Setup",
    "Stage",
    "finished",
    "headline",
    "mean_and_spread",
    "pool",
    "run",
    "score",
    "summarise",
    "write_text",
]
