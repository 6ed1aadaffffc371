"""The runs of the golden record: a few rounds each, of built-in data and of tables made here.

Nothing of the package is imported: a case is files and arguments of the ``dovetail`` command, so
that its modules may be renamed and moved and the record still says what they compute.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits


@dataclass(frozen=True)
class Case:
    """One run: ``dovetail train run.toml`` with these settings, in a folder with these files.

    Attributes:
        write: writes run.toml and what it names into a folder, and ``TABLE`` to predict on.
        settings: arguments of ``--set``.
    """

    name: str
    write: Callable[[Path], None]
    settings: tuple[str, ...] = ()


#: What every model of a case predicts on, below its folder: raw columns of all parties.
TABLES = ("all.csv", "all.npz")

NUM_PREDICTED = 40


# --- Data -----------------------------------------------------------------------------------------


@cache
def cancer() -> dict[str, list[Any]]:
    """Columns of scikit-learn's breast cancer set, its label "diagnosis" and "row"."""
    cancer = load_breast_cancer()
    columns: dict[str, list[Any]] = {"row": list(range(len(cancer.target)))}
    columns["diagnosis"] = [str(cancer.target_names[each]) for each in cancer.target]
    for index, name in enumerate(cancer.feature_names):
        columns[str(name)] = [float(value) for value in cancer.data[:, index]]
    return columns


@cache
def people() -> dict[str, list[Any]]:
    """Made-up customers: numbers, categories, empty cells, a class and a number to predict."""
    draw = random.Random(0).random  # the same on every platform and version of Python
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("row", "buys", "spent", "age", "visits", "income", "debt", "job", "city")
    }
    for row in range(240):
        age, visits, debt = 20 + 50 * draw(), int(9 * draw()), 100 * draw()
        job = ("clerk", "cook", "smith", "nurse")[int(4 * draw())]
        city = ("north", "south", "")[int(2.3 * draw())]
        income = 1000 + 40 * age + (800 if job == "nurse" else 0) + 500 * draw()
        spent = income / 20 + 12 * visits - debt / 2 + (30 if city == "north" else 0) + 20 * draw()
        values = {
            "row": row,
            "buys": "yes" if spent + 60 * (draw() - 0.5) > 185 else "no",
            "spent": round(spent, 3),
            "age": round(age, 2),
            "visits": visits,
            "income": "" if draw() < 0.1 else round(income, 2),
            "debt": round(debt, 3),
            "job": job,
            "city": city,
        }
        for name, value in values.items():
            columns[name].append(value)
    return columns


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([values[row] for values in columns.values()] for row in rows)


def write_cancer(folder: Path) -> None:
    write_csv(folder / "all.csv", cancer(), range(NUM_PREDICTED))


def write_people(folder: Path) -> None:
    write_csv(folder / "people.csv", people(), range(240))
    write_csv(folder / "all.csv", people(), range(NUM_PREDICTED))


def write_digits(folder: Path) -> None:
    digits = load_digits()
    images = digits.images[:NUM_PREDICTED].astype(np.uint8)
    np.savez(folder / "all.npz", x=images, y=digits.target[:NUM_PREDICTED])


def select(columns: Mapping[str, Any], *prefixes: str) -> list[str]:
    """Names that begin or end with one of these."""
    return [name for name in columns if name.startswith(prefixes) or name.endswith(prefixes)]


# --- Simulation -----------------------------------------------------------------------------------

APFED = """
method = "apfed-mixed"
baselines = ["apfed-r", "apfed-c", "alone", "pooled", "tvfl"]
[data]
source = "breast-cancer"
test = 0.25
rows = 200
[data.partition]
kind = "columns"
active = "clinic"
parties = { clinic = ["mean *"], lab = ["worst *"], registry = ["* error"] }
[apfed]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
validation = 0.0
dropout = 0.5
encoder = [8]
head = [8]
epochs = 2
batch_size = 32
learning_rate = 0.05
[passive]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
loss = "reconstruction"
encoder = [8]
learning_rate = 0.05
[passive.registry]
loss = "contrastive"
encoder = [6, 8]
temperature = 0.5
"""

APFED_PEOPLE = """
method = "apfed-c"
baselines = ["alone", "pooled", "tvfl"]
[data]
source = "people.csv"
label = "buys"
id = "row"
test = 0.25
labels = 90
[data.partition]
kind = "columns"
active = "bank"
parties = { bank = ["age", "income", "city"], shop = ["visits", "debt", "job"] }
[apfed]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
validation = 0.0
dropout = 0.5
encoder = [8]
head = [8]
epochs = 2
steps_per_epoch = 4
batch_size = 32
learning_rate = 0.05
projection = 4
trade_off = { shop = 0.5 }
[passive]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
learning_rate = 1e-3
encoder = [8]
"""

APFED_STRIPS = """
method = "apfed-r"
baselines = ["alone", "pooled", "tvfl"]
[data]
source = "digits-images"
test = 0.25
rows = 300
partition = { kind = "strips", views = 2, active = 1 }
[apfed]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
validation = 0.0
dropout = 0.5
encoder = { channels = [4], kernels = [3], strides = [1] }
head = [8]
epochs = 1
learning_rate = 0.05
[passive]
optimizer = "sgd"
momentum = 0.9
weight_decay = 1e-4
learning_rate = 1e-3
encoder = { channels = [4], kernels = [3], strides = [1] }
"""

CHFL = """
method = "chfl"
baselines = ["chfl-mu0", "common", "local", "fedprox", "simple", "pooled"]
[data]
source = "breast-cancer"
test = 0.25
partition = { kind = "common-unique", parties = 3, common = 0.2, validation = 0.25, seed = 1 }
[chfl]
widths = [8, 4]
weight_decay = 0.0
unique_weight_decay = 0.0
zero_start = false
gate = false
choose = "mean"
rounds = 3
local_epochs = 1
batch_size = 16
learning_rate = 0.01
"""

WHO = """\
party,blocks,classes
north,1 2,1-6
south,1 3,5-10
east,1 2 4,3-8
"""

HYFEM = """
method = "hyfem"
baselines = ["standalone", "pooled", "fedavg", "fedprox", "fedper"]
[data]
source = "digits-images"
test = 0.25
rows = 400
partition = { kind = "blocks", blocks = "quadrants", assignment = "who.csv" }
[hyfem]
choose = "last"
schedule = "constant"
rounds = 3
local_steps = 2
batch_size = 16
learning_rate = 0.1
widths = { "*" = [8], east = [6] }
[hyfem.extractors]
"*" = { kind = "small-cnn", channels = [4] }
bottom-right = "unchanged"
"""

FEDOPTIMUS = """
method = "fedoptimus"
baselines = ["classic", "alone", "pooled"]
[data]
source = "breast-cancer"
test = 0.25
rows = 240
[data.partition]
kind = "owners"
label_owners = ["north", "south"]
data_owners = { clinic = ["mean *"], lab = ["worst *"], registry = ["* error"] }
validation = 0.1
[fedoptimus]
server = "fedavgm"
slowmo = "interpolate"
weight_decay = 0.0
epochs = 3
batch_size = 16
sync_every = 3
optimizer = "adam"
learning_rate = 0.01
bottom = [8]
embedding = 8
top = [8]
selection = { share = 0.67, rows = 40, every = 12 }
"""

FEDOPTIMUS_STRIPS = """
method = "fedoptimus"
baselines = ["classic"]
[data]
source = "digits-images"
test = 0.25
rows = 240
[data.partition]
kind = "owners"
label_owners = 3
data_owners = 4
skew = 0.5
[fedoptimus]
optimizer = "sgd"
server = "fedavgm"
weight_decay = 0.0
epochs = 1
batch_size = 32
learning_rate = 0.05
momentum = 0.5
bottom = { kind = "strip-cnn", channels = 4, kernel = 3, hidden = 8 }
embedding = 8
top = [8]
slowmo = "momentum"
share = 0.5
"""


def simulation(text: str, *writers: Callable[[Path], None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "run.toml").write_text(text)
        for each in writers:
            each(folder)

    return write


def write_who(folder: Path) -> None:
    (folder / "who.csv").write_text(WHO)


APFED_CANCER = simulation(APFED, write_cancer)
CHFL_CANCER = simulation(CHFL, write_cancer)
HYFEM_DIGITS = simulation(HYFEM, write_who, write_digits)
OWNERS_CANCER = simulation(FEDOPTIMUS, write_cancer)
SPENT = ('data.label="spent"', 'data.task="regression"')
NO_BASELINES = "baselines=[]"


def variant(name: str) -> tuple[str, str]:
    """Settings of a run of this baseline alone, whose final weights are then kept."""
    return (f'method="{name}"', NO_BASELINES)


SIMULATED = (
    Case("apfed-mixed", APFED_CANCER),
    Case("apfed-r", APFED_CANCER, variant("apfed-r")),
    Case("apfed-c", APFED_CANCER, variant("apfed-c")),
    Case("apfed-alone", APFED_CANCER, variant("alone")),
    Case("apfed-pooled", APFED_CANCER, variant("pooled")),
    Case("apfed-tvfl", APFED_CANCER, variant("tvfl")),
    Case(
        "apfed-d",
        APFED_CANCER,
        (
            *variant("apfed-d"),
            "data.labels=60",
            'apfed.distil.exchange="gradients"',
            "apfed.distil.folds=2",
            "apfed.distil.max_steps=40",
            'apfed.distil.students=["linear"]',
        ),
    ),
    Case("apfed-float16", APFED_CANCER, (NO_BASELINES, 'engine.precision="float16"', "seed=3")),
    Case("apfed-people", simulation(APFED_PEOPLE, write_people)),
    Case(
        "apfed-regression",
        simulation(APFED_PEOPLE, write_people),
        (*SPENT, 'apfed.overlap="common"'),
    ),
    Case("apfed-strips", simulation(APFED_STRIPS, write_digits)),
    Case("chfl", CHFL_CANCER),
    *(
        Case(f"chfl-{name}", CHFL_CANCER, variant(baseline))
        for name, baseline in {
            "mu0": "chfl-mu0",
            "common": "common",
            "local": "local",
            "fedprox": "fedprox",
            "simple": "simple",
        }.items()
    ),
    # What run files have where they set nothing else.
    Case(
        "chfl-gate",
        CHFL_CANCER,
        (
            NO_BASELINES,
            "chfl.gate=true",
            "chfl.zero_start=true",
            "chfl.unique_weight_decay=0.01",
            'chfl.choose="loss"',
        ),
    ),
    Case("chfl-secure", CHFL_CANCER, (NO_BASELINES, "chfl.secure=true")),
    Case(
        "chfl-search",
        CHFL_CANCER,
        (
            'baselines=["common"]',
            "chfl.search.mu=[0.25, 1.0]",
            "chfl.search.rounds=2",
            "chfl.participation=0.67",
            'chfl.weights="samples"',
            'chfl.choose="last"',
        ),
    ),
    Case("hyfem", HYFEM_DIGITS),
    *(
        Case(f"hyfem-{name}", HYFEM_DIGITS, variant(name))
        for name in ("standalone", "fedavg", "fedper")
    ),
    Case("fedoptimus", OWNERS_CANCER),
    Case("fedoptimus-classic", OWNERS_CANCER, variant("classic")),
    Case(
        "fedoptimus-by-columns",
        OWNERS_CANCER,
        (NO_BASELINES, 'fedoptimus.selection={share=0.34, rows=40, by="columns", secure=true}'),
    ),
    Case("fedoptimus-strips", simulation(FEDOPTIMUS_STRIPS, write_digits)),
)


# --- Party files ----------------------------------------------------------------------------------

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
{more}
[policy]
algorithms = ["align", "{method}"{also}]
min_rows = 1
{settings}
"""


@dataclass(frozen=True)
class Federation:
    """Parties with files of their own, and the run that they take part in.

    Attributes:
        parties: name -> its rows of the breast cancer set, its columns, lines of [party], and
            sections besides.
        driver: the party that drives, or the name of a coordinator without data.
        run: the run file's keys before its tables.
        settings: the run file's tables.
    """

    method: str
    parties: Mapping[str, tuple[Sequence[int], Sequence[str], str, str]]
    driver: str
    run: str
    settings: str

    def write(self, folder: Path) -> None:
        """Tables, party files, and the run of all of them in one process."""
        write_cancer(folder)
        also = ', "tvfl"' if self.method == "apfed-mixed" else ""
        for name, (rows, names, more, settings) in self.parties.items():
            columns = {key: cancer()[key] for key in ("row", *names)}
            write_csv(folder / f"{name}.csv", columns, rows)
            text = PARTY.format(
                name=name, more=more, method=self.method, also=also, settings=settings
            )
            (folder / f"{name}.toml").write_text(text)
        self.write_run(folder / "run.toml", tuple(self.parties))

    def write_run(self, path: Path, parties: Sequence[str], engine: str = "") -> None:
        """A run file that names these parties' files."""
        files = json.dumps([f"{name}.toml" for name in parties])
        named = f"parties = {files}" if parties else ""
        path.write_text(f'method = "{self.method}"\n{self.run}\n{named}\n{engine}{self.settings}')


def shuffled(rows: Sequence[int]) -> list[int]:
    order = list(rows)
    draw = random.Random(len(order)).random
    return sorted(order, key=lambda _: draw())


def apfed_parties() -> Federation:
    """A clinic with labels, a lab that reconstructs and a registry that contrasts."""
    names = {
        "clinic": select(cancer(), "mean "),
        "lab": select(cancer(), "worst "),
        "registry": select(cancer(), " error"),
    }
    sgd = 'optimizer = "sgd"\nweight_decay = 1e-4\n'
    settings = f"[apfed]\nexact = true\nencoder = [8]\n{sgd}learning_rate = 0.05\nloss = "
    return Federation(
        method="apfed-mixed",
        parties={
            "clinic": (
                shuffled(range(160)),
                ["diagnosis", *names["clinic"]],
                'label = "diagnosis"',
                "",
            ),
            "lab": (shuffled(range(100, 200)), names["lab"], "", f'{settings}"reconstruction"'),
            "registry": (
                shuffled([*range(30, 80), *range(120, 160), *range(200, 210)]),
                names["registry"],
                "",
                f'{settings}"contrastive"\ntemperature = 0.5',
            ),
        },
        driver="clinic",
        run='baselines = ["alone", "tvfl"]\ntest = 0.25',
        settings="[apfed]\nencoder = [8]\nhead = [8]\nepochs = 2\nlearning_rate = 0.05\n"
        'optimizer = "sgd"\nweight_decay = 1e-4\nvalidation = 0.0\ndropout = 0.5\n',
    )


LABEL = 'label = "diagnosis"'


def chfl_parties() -> Federation:
    """Three clinics with other patients, some columns in common."""
    common = select(cancer(), "mean ")
    return Federation(
        method="chfl",
        parties={
            name: (
                range(index, 400, 3),
                ["diagnosis", *common, private],
                LABEL,
                '[chfl]\ncommon = ["mean *"]',
            )
            for index, (name, private) in enumerate(
                {"north": "worst area", "south": "worst texture", "east": "worst radius"}.items()
            )
        },
        driver="coordinator",
        run='baselines = ["common", "local"]',
        settings=CHFL[CHFL.index("[chfl]") :],
    )


def hyfem_parties() -> Federation:
    """Three clinics with other patients and two of three groups of columns each."""
    groups = {"size": [" area", " radius"], "looks": [" texture"], "shape": [" symmetry"]}
    held = {"north": ("size", "looks"), "south": ("looks", "shape"), "east": ("size", "shape")}
    classes = 'classes = ["benign", "malignant"]'
    parties = {}
    for index, (name, blocks) in enumerate(held.items()):
        names = [column for each in blocks for column in select(cancer(), *groups[each])]
        globs = {each: [f"*{end}" for end in groups[each]] for each in blocks}
        more = "\n".join(f"blocks.{each} = {json.dumps(globs[each])}" for each in blocks)
        parties[name] = (
            range(index, 400, 3),
            ["diagnosis", *names],
            f"{LABEL}\n{more}",
            f"[hyfem]\nwidths = [5]\n{classes}",
        )
    return Federation(
        method="hyfem",
        parties=parties,
        driver="server",
        run='baselines = ["fedper"]',
        settings=(
            f'[hyfem]\nchoose = "last"\n{classes}\nrounds = 4\nlocal_steps = 4\n'
            'batch_size = 16\nschedule = "constant"\n'
            "learning_rate = 0.2\n[hyfem.extractors]\nsize = [4]\nlooks = [4]\nshape = [3]\n"
        ),
    )


def fedoptimus_parties() -> Federation:
    """Two label owners and two data owners of partly the same patients."""
    settings = "[fedoptimus]\nbottom = [8]"
    return Federation(
        method="fedoptimus",
        parties={
            "north": (shuffled(range(150)), ["diagnosis"], LABEL, ""),
            "south": (shuffled(range(150, 330)), ["diagnosis"], LABEL, ""),
            "clinic": (shuffled(range(10, 400)), select(cancer(), "mean "), "", settings),
            "lab": (shuffled(range(320)), select(cancer(), "worst "), "", settings),
        },
        driver="coordinator",
        run="evaluate_every = 1",
        settings=(
            '[fedoptimus]\nepochs = 3\nbatch_size = 16\noptimizer = "adam"\nlearning_rate = 0.01\n'
            'server = "fedavgm"\nslowmo = "interpolate"\nweight_decay = 0.0\n'
            "embedding = 8\ntop = [8]\nselection = { share = 0.5, rows = 40 }\n"
        ),
    )


FEDERATIONS = {
    "apfed-mixed": apfed_parties(),
    "chfl": chfl_parties(),
    "hyfem": hyfem_parties(),
    "fedoptimus": fedoptimus_parties(),
}

OF_PARTIES = (
    *(Case(f"parties-{name}", each.write) for name, each in FEDERATIONS.items()),
    Case("parties-tvfl", FEDERATIONS["apfed-mixed"].write, variant("tvfl")),
    Case("parties-chfl-secure", FEDERATIONS["chfl"].write, (NO_BASELINES, "chfl.secure=true")),
)

CASES = {case.name: case for case in (*SIMULATED, *OF_PARTIES)}
