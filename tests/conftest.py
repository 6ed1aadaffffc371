"""One thread everywhere: tensors of tests are small, and more threads only wait for each other."""

from __future__ import annotations

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start

import torch

torch.set_num_threads(1)
# Begun in the background of a shell, what tests start would inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
