"""Writes the run files of CHFL's Tables II and III and Figure 4, and of Adult.

    python runs/chfl/generate.py

DATA-PARTIES-COMMON.toml deals DATA out to so many parties with so many per cent of the columns in
common. Splits are drawn with ``--set data.partition.seed=1``. Learning rate and mu are chosen on
validation rows with seed 0, once for all seeds; the number of rounds in each run.
"""

from __future__ import annotations

from pathlib import Path

# Per data set: keys of [data], and rounds, patience, rates to try, rounds of a trial.
SETS = {
    "covertype": (
        'source = "covertype"\nlabel = "Cover_Type"\n'
        "# 80 % of the paper's 15,120 rows, here with natural class shares, train and validate.\n"
        "test = 0.1\nrows = 12096\n",
        (12, 3, "[3e-4, 1e-3]", 5),
    ),
    "jannis": (
        'source = "jannis"\nlabel = "class"\n'
        "# 13,398 rows train and validate, 16,747 test.\n"
        'split_column = "split"\n',
        (12, 3, "[3e-4, 1e-3]", 5),
    ),
    "sensorless": (
        'source = "sensorless_2200"\nlabel = "class"\n# 2,200 of the 58,509 rows.\ntest = 0.2\n',
        (60, 10, "[1e-3, 3e-3]", 20),
    ),
    "adult": (
        'source = "adult"\nlabel = "income"\nsplit_column = "split"\nrows = 12096\n',
        (12, 3, "[3e-4, 1e-3]", 5),
    ),
}

CELLS = (
    *((name, 5, 30) for name in SETS),  # Table II, and Adult
    *(("covertype", parties, 30) for parties in (2, 10)),  # Table III
    *(("covertype", 5, common) for common in (10, 20, 40, 50)),  # Figure 4
)


def run_file(name: str, parties: int, common: int) -> str:
    """The text of one run file."""
    data, (rounds, patience, rates, trial) = SETS[name]
    return (
        f"# CHFL: {name}, {parties} parties, {common} % of the columns in common.\n"
        'method = "chfl"\nrulers = ["chfl-mu0", "common", "local"]\n'
        "seeds = [0, 1, 2, 3, 4]\nevaluate_every = 0\ncheckpoint_every = 0\n\n"
        f"[data]\n{data}"
        f'partition = {{ kind = "common-unique", parties = {parties}, '
        f"common = {common / 100}, validation = 0.25, seed = 0 }}\n\n"
        "# Section V-A: widths, epochs and batches; the paper gives no number of rounds.\n"
        "[chfl]\nwidths = [512, 256, 128]\nlocal_epochs = 5\nbatch_size = 64\n"
        f"rounds = {rounds}\npatience = {patience}\n\n"
        f"[chfl.search]\nseed = 0\nlearning_rate = {rates}\nmu = [0.3, 1.0]\nrounds = {trial}\n"
    )


def all_files() -> dict[str, str]:
    """File name -> text."""
    return {
        f"{name}-{parties}-{common}.toml": run_file(name, parties, common)
        for name, parties, common in CELLS
    }


if __name__ == "__main__":
    for file, text in all_files().items():
        (Path(__file__).parent / file).write_text(text)
