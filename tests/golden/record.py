"""Makes the golden record again: ``python tests/golden/record.py --write [NAME ...]``.

Without --write it says what differs, and writes nothing. Without names it takes all cases; names of
federations whose parties are processes of their own begin with ``stream-``. ``finished`` stands for
the run folders below tests/golden/runs, which are kept as they were: it is taken where it is named.
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
    import golden_finished
    import golden_stream
    import torch
    from golden_cases import CASES, FEDERATIONS

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the record")
    parser.add_argument("names", nargs="*", help="cases; none: all")
    given = parser.parse_args()
    for name in given.names or (*CASES, *(f"stream-{method}" for method in FEDERATIONS)):
        with tempfile.TemporaryDirectory() as folder:
            if name == "finished":
                record = {"platform": golden.here(), "predictions": {}}
                for run in golden_finished.FINISHED:
                    out = Path(folder) / run
                    out.mkdir()
                    if given.write:
                        golden_finished.make(run, out)
                    record["predictions"] |= golden_finished.read(run, out)
            elif name.startswith("stream-"):
                record = golden_stream.run(name.removeprefix("stream-"), Path(folder))
            else:
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
