"""The papers' tables: cells to run, which of them fit, and the table they make."""

from dovetail.bench.cells import (
    Cell,
    Figure,
    Line,
    Run,
    Table,
    differing,
    lines,
    paper_figure,
    read_run,
)
from dovetail.bench.plot import draw
from dovetail.bench.schedule import Job, Process, Times, work
from dovetail.bench.tables import TABLES
from dovetail.bench.text import body, grid, json_line, machine, page, put_into

__all__ = [
    "TABLES",
    "Cell",
    "Figure",
    "Job",
    "Line",
    "Process",
    "Run",
    "Table",
    "Times",
    "body",
    "differing",
    "draw",
    "grid",
    "json_line",
    "lines",
    "machine",
    "page",
    "paper_figure",
    "put_into",
    "read_run",
    "work",
]
