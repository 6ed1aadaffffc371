"""Three parties with files of their own, whose people only partly match.

    python examples/make_parties.py --out parties
    dovetail inspect parties/run.toml
    dovetail align parties/clinic.toml parties/lab.toml parties/registry.toml
    dovetail train parties/run.toml --out out/clinics

Deals scikit-learn's breast cancer set (built in) or Adult (--source adult, from $DOVETAIL_DATA) out
to a party with labels and two helpers. Each has some people the others do not have, rows in an
order of its own, and the same ids for the same people. Writes tables, party files and a run file.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail import data

RUN = """# {active} trains with {helpers}, who have other columns of some of its people.
method = "apfed"
rulers = ["alone"]
seeds = [0, 1, 2]
evaluate_every = 0
parties = [{files}]
test = 0.25

[apfed]
encoder = [64, 32]
head = [32]
epochs = 20
batch_size = 64
learning_rate = 0.02
"""

PARTY = """[party]
name = "{name}"
table = "{table}"
id = "person"
{label}
[policy]
algorithms = ["align", "apfed", "tvfl"]
drivers = ["{active}"]
{apfed}"""

PASSIVE = """
[apfed]                 # this party's black box; nobody else sees it
loss = "contrastive"
encoder = [64, 32]
learning_rate = 0.02
temperature = 0.5
"""


@dataclass(frozen=True)
class Deal:
    """Who gets which columns, and what share of all people."""

    source: str
    label: str
    split_column: str | None
    active: str
    columns: dict[str, tuple[str, ...]]
    shares: dict[str, float]
    ending: dict[str, str]


DEALS = {
    "breast-cancer": Deal(
        source="breast-cancer",
        label="diagnosis",
        split_column=None,
        active="clinic",
        columns={"clinic": ("mean *",), "lab": ("worst *",), "registry": ("* error",)},
        shares={"clinic": 0.8, "lab": 0.6, "registry": 0.4},
        ending={"clinic": ".csv", "lab": ".parquet", "registry": ".csv"},
    ),
    "adult": Deal(
        source="adult",
        label="income",
        split_column="split",
        active="bank",
        columns={
            "bank": ("age", "sex", "race", "marital-status", "relationship", "native-country"),
            "employer": ("workclass", "education*", "occupation", "hours-per-week"),
            "insurer": ("capital-*", "age"),
        },
        shares={"bank": 0.8, "employer": 0.5, "insurer": 0.3},
        ending={"bank": ".csv", "employer": ".parquet", "insurer": ".csv"},
    ),
}


def make(deal: Deal, out: Path, *, seed: int, rows: int | None) -> list[Path]:
    """Write everything into ``out``; the paths of the party files."""
    people, _ = data.load(deal.source, label=deal.label, split_column=deal.split_column)
    if rows is not None:
        people = data.subset(people, rows=rows, seed=seed, stratify=True)
    assert isinstance(people.x, data.Table)
    rng = np.random.default_rng(seed)
    numbers = rng.choice(10**7, size=people.num_rows, replace=False)
    persons = np.array([f"P-{number:07d}" for number in numbers])
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, globs in deal.columns.items():
        count = round(deal.shares[name] * people.num_rows)
        held = rng.permutation(people.num_rows)[:count]
        columns = {"person": persons[held]}
        for column in people.x.select(globs):
            read = people.x.column(column)
            values = read.values.astype(object)
            values[read.missing] = None
            columns[column] = values[held] if read.is_text else read.values[held]
        if name == deal.active:
            columns[deal.label] = people.labels.values[held]
        table = f"{name}{deal.ending[name]}"
        data.write_table(out / table, columns)
        is_active = name == deal.active
        file = out / f"{name}.toml"
        file.write_text(
            PARTY.format(
                name=name,
                table=table,
                label=f'label = "{deal.label}"\n' if is_active else "",
                active=deal.active,
                apfed="" if is_active else PASSIVE,
            )
        )
        files.append(file)
    helpers = [name for name in deal.columns if name != deal.active]
    (out / "run.toml").write_text(
        RUN.format(
            active=deal.active,
            helpers=" and ".join(helpers),
            files=", ".join(f'"{file.name}"' for file in files),
        )
    )
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=DEALS, default="breast-cancer")
    parser.add_argument("--out", type=Path, default=Path("parties"), help="[parties]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    parser.add_argument("--rows", type=int, help="deal out so many people only [all]")
    given = parser.parse_args()
    files = make(DEALS[given.source], given.out, seed=given.seed, rows=given.rows)
    print(f"{given.out}/run.toml and {', '.join(file.name for file in files)}")
    print(f"next: dovetail inspect {given.out}/run.toml")


if __name__ == "__main__":
    main()
