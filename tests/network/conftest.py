"""Lets tests and the processes they start import the parties in ``processes.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
