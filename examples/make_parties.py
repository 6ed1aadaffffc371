"""Three parties with files of their own, whose people only partly match.

    python examples/make_parties.py --out parties
    dovetail inspect parties/run.toml
    dovetail align parties/clinic.toml parties/lab.toml parties/registry.toml
    dovetail train parties/run.toml --out out/clinics
    dovetail predict out/clinics/seed-0 parties/new-patients.csv --id person

Deals scikit-learn's breast cancer set (built in) or Adult (--source adult, from $DOVETAIL_DATA) out
to a party that knows some labels and two helpers. Each has some people the others do not have, rows
in an order of its own, and the same ids for the same people. Writes tables, party files, a run file
and a table of new people to predict. With few rows of Adult some of these come from a country that
training did not see: predict refuses them and says so, and with --allow-unseen takes it as missing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail import data

RUN = """# {active} trains with {helpers}, who have other columns of some of its people.
method = "apfed"        # helpers read nothing; their help stays in one's own model
seeds = [0, 1]
parties = [{files}]
test = {test}              # share of the labelled rows, to score on
"""

PARTY = """[party]
name = "{name}"
table = "{table}"
id = "person"
{label}
[policy]
algorithms = ["align", "apfed", "apfed-d", "apfed-mixed", "tvfl"]
drivers = ["{active}"]
"""


@dataclass(frozen=True)
class Deal:
    """Who gets which columns, what share of all people, and how many labels."""

    source: str
    label: str
    split_column: str | None
    active: str
    columns: dict[str, tuple[str, ...]]
    shares: dict[str, float]
    ending: dict[str, str]
    labels: int  # that are known, at most this and half of the active party's rows
    test: float  # share of them
    new: str  # whom only the active party meets, and later


DEALS = {
    "breast-cancer": Deal(
        source="breast-cancer",
        label="diagnosis",
        split_column=None,
        active="clinic",
        columns={
            "clinic": ("mean texture", "mean smoothness", "mean symmetry", "mean fractal*"),
            "lab": ("worst *",),
            "registry": ("* error",),
        },
        shares={"clinic": 0.8, "lab": 0.6, "registry": 0.4},
        ending={"clinic": ".csv", "lab": ".parquet", "registry": ".csv"},
        labels=120,
        test=0.5,
        new="new-patients",
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
        labels=2000,
        test=0.85,
        new="new-customers",
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

    def columns_of(globs: tuple[str, ...], held: np.ndarray) -> dict[str, np.ndarray]:
        columns = {"person": persons[held]}
        for column in people.x.select(globs):
            read = people.x.column(column)
            values = read.values.astype(object)
            values[read.missing] = None
            columns[column] = values[held] if read.is_text else read.values[held]
        return columns

    for name, globs in deal.columns.items():
        count = round(deal.shares[name] * people.num_rows)
        held = rng.permutation(people.num_rows)[:count]
        columns = columns_of(globs, held)
        if name == deal.active:
            labels = people.labels.values[held].astype(object)
            labels[min(deal.labels, count // 2) :] = None
            columns[deal.label] = labels
            new = np.setdiff1d(np.arange(people.num_rows), held)[:100]
            data.write_table(out / f"{deal.new}.csv", columns_of(globs, new))
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
            )
        )
        files.append(file)
    helpers = [name for name in deal.columns if name != deal.active]
    (out / "run.toml").write_text(
        RUN.format(
            active=deal.active,
            helpers=" and ".join(helpers),
            test=deal.test,
            files=", ".join(f'"{file.name}"' for file in files),
        )
    )
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=DEALS, default="breast-cancer")
    parser.add_argument("--out", type=Path, default=Path("parties"), help="[parties]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    parser.add_argument("--rows", type=int, help="split so many people only [all]")
    given = parser.parse_args()
    files = make(DEALS[given.source], given.out, seed=given.seed, rows=given.rows)
    print(f"{given.out}/run.toml and {', '.join(file.name for file in files)}")
    print(f"next: dovetail inspect {given.out}/run.toml")


if __name__ == "__main__":
    main()
