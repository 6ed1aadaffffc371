"""Writes the run files of FedOptimus' Table 1, and a table's.

    python runs/fedoptimus/generate.py

As written they have the paper's settings (section 3.2), for CIFAR-10 on a GPU. ``--recipe cpu``
takes minutes on one core: its network, optimizer and number of epochs were chosen on validation
rows of MNIST (``--set data.partition.validation=0.1``), not on test rows.
"""

from __future__ import annotations

from pathlib import Path

SETS = {
    "mnist": ("mnist", 14, "2 x 28"),
    "fashion": ("fashion_mnist", 14, "2 x 28"),
    "cifar10": ("cifar10_jpeg", 16, "2 x 32"),
}

AVERAGE = 'server = "average"\n'
NO_SLOWMO = 'slowmo = "off"\n'
SLOWMO = 'slowmo = "interpolate"\nalpha = 0.99\n'

#: The paper's P_t is not told; three of four strips keep what is in the middle of an image.
SELECTION = "\n[fedoptimus.selection]\nshare = 0.75\nrows = 300\nqueries = 100\nevery = 100\n"

# Row -> what it is called, settings, whether data owners are chosen.
ROWS = {
    "fedavg": ("FedAvg", f"sync_every = 1\n{AVERAGE}{NO_SLOWMO}", False),
    "slowmo": ("SlowMo", f"sync_every = 1\n{AVERAGE}{SLOWMO}", False),
    "kstep": ("K-Step", f"sync_every = 5\n{AVERAGE}{NO_SLOWMO}", False),
    "cs-fedavg": ("CS + FedAvg", f"sync_every = 1\n{AVERAGE}{NO_SLOWMO}", True),
    "cs-slowmo": ("CS + SlowMo", f"sync_every = 1\n{AVERAGE}{SLOWMO}", True),
    "cs-kstep": ("CS + K-Step", f"sync_every = 5\n{AVERAGE}{NO_SLOWMO}", True),
    "fedoptimus": (
        "FedOptimus",
        f'sync_every = 5\nserver = "fedavgm"\nbeta = 0.9\n{SLOWMO}',
        True,
    ),
}

CPU = """
[recipes.cpu]
seeds = [0, 1]
fedoptimus.optimizer = "adam"
fedoptimus.learning_rate = 0.01
fedoptimus.epochs = {epochs}
fedoptimus.bottom = {{ kind = "strip-cnn", channels = 8, stride = [1, 2], hidden = 64 }}
{more}"""

#: A label owner with all labels makes five times the steps in an epoch.
CPU_RULERS = """fedoptimus.stages.classic = {{ learning_rate = 3e-3, epochs = {classic} }}
fedoptimus.stages.pooled = {{ learning_rate = 1e-3, epochs = {pooled} }}
"""
CPU_CLASSIC = {"mnist": 3, "fashion": 1, "cifar10": 1}
CPU_POOLED = {"mnist": 6, "fashion": 3, "cifar10": 3}

CPU_EPOCHS = {"mnist": 6, "fashion": 3, "cifar10": 2}

ADULT = """# FedOptimus on a table: columns at four data owners, labels at five label owners.
method = "fedoptimus"
rulers = ["classic", "alone", "pooled"]
seeds = [0, 1]
checkpoint_every = 0

[data]
source = "adult"
label = "income"
split_column = "split"

[data.partition]
kind = "owners"
label_owners = 5

[data.partition.data_owners]
registry = ["age", "sex", "race", "native-country"]
family = ["marital-status", "relationship"]
employer = ["workclass", "occupation", "hours-per-week", "fnlwgt"]
school_and_bank = ["education*", "capital-*"]

[fedoptimus]
epochs = 5
batch_size = 128
optimizer = "adam"
learning_rate = 1e-3
bottom = [64]
embedding = 32
top = [32]
sync_every = 5
server = "fedavgm"
beta = 0.9
slowmo = "interpolate"
alpha = 0.99

[fedoptimus.selection]
share = 0.75
rows = 300
queries = 100
"""


def run_file(data: str, row: str) -> str:
    """The text of one run file."""
    source, owners, strip = SETS[data]
    title, settings, chosen = ROWS[row]
    rulers = '["classic", "pooled"]' if row == "fedoptimus" else "[]"
    on_gpu = data == "cifar10"
    note = ""
    if on_gpu:
        note = (
            "# The images are a JPEG copy of CIFAR-10: expect slightly less than of the original.\n"
        )
    device = 'device = "cuda"\n' if on_gpu else ""
    more = 'device = "cpu"\n' if on_gpu else ""
    if row == "fedoptimus":
        more += CPU_RULERS.format(classic=CPU_CLASSIC[data], pooled=CPU_POOLED[data])
    bottom = "resnet-18" if on_gpu else "strip-cnn"
    return (
        f"# FedOptimus, Table 1: {title} on {source}, {owners} data owners of {strip}, 5 label "
        f"owners.\n{note}"
        f'method = "fedoptimus"\nrulers = {rulers}\nseeds = [0, 1, 2]\n{device}'
        "checkpoint_every = 0\n\n"
        f'[data]\nsource = "{source}"\n'
        f'partition = {{ kind = "owners", data_owners = {owners}, label_owners = 5 }}\n\n'
        "[fedoptimus]\n"
        'epochs = 100\nbatch_size = 128\noptimizer = "sgd"\nlearning_rate = 1e-3\n'
        f'bottom = "{bottom}"\n{settings}'
        f"{SELECTION if chosen else ''}"
        f"{CPU.format(epochs=CPU_EPOCHS[data], more=more)}"
    )


def all_files() -> dict[str, str]:
    """File name -> text."""
    tables = {f"{data}-{row}.toml": run_file(data, row) for data in SETS for row in ROWS}
    return {**tables, "adult-4.toml": ADULT}


if __name__ == "__main__":
    for file, text in all_files().items():
        (Path(__file__).parent / file).write_text(text)
