"""Makes the golden record again: ``python tests/golden/record.py --write [NAME ...]``.

Without --write it says what differs, and writes nothing. Without names it takes all cases that run
in one process; ``stream`` stands for those of processes of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # more threads take sums in another order

for folder in ("golden", "cli", "network"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


def main() -> None:
    import golden
    import torch
    from golden_cases import CASES

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the record")
    parser.add_argument("names", nargs="*", help="cases; none: all")
    given = parser.parse_args()
    for name in given.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            golden.run(CASES[name], Path(folder))
            record = golden.taken(CASES[name], Path(folder))
        if given.write:
            golden.write(name, record)
            print(f"{name}: written")
            continue
        try:
            golden.check(golden.recorded(name), record)
            print(f"{name}: as recorded")
        except AssertionError as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
