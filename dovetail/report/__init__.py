"""One self-contained page of one run, or of several side by side."""

from dovetail.report.folder import Run, read_run
from dovetail.report.page import Coverage, html
from dovetail.report.tables import Names
