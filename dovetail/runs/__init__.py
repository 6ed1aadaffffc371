"""Scores, tabulates or draws a run."""

from dovetail.methods.outcome import Outcome
from dovetail.models.metrics import headline, mean_and_spread, score
from dovetail.network.retry import write_text
from dovetail.runs.one_seed import run
from dovetail.runs.runfolder import RunFolder, finished, summarise, versions
