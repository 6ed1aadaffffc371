"""The papers' tables: cells to run, which of them fit, and the table they make."""

from benchmarks.tables.cells import (
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
from benchmarks.tables.plot import draw
from benchmarks.tables.registry import TABLES
from benchmarks.tables.schedule import Job, Process, Times, work
from benchmarks.tables.text import body, grid, json_line, machine, page, put_into

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
