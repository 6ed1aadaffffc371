"""Two tables of partly the same people, who have no id in common: names misspelt, people moved.

    python examples/dirty_twins.py --out twins
    dovetail align twins/clinic.toml --dry-run
    dovetail align twins/clinic.toml twins/registry.toml

People are made up from a seed. The registry writes those whom the clinic has, too, its own way,
with the errors of ``RATES``. Both tables have a number of their own and the column `person`, which
says who it really is: it is there to measure by, and neither compared nor learned from.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from dovetail import data

#: Share of the registry's people of whom it is true; each by itself.
RATES = {
    "typo in the surname": 0.08,
    "typo in the given name": 0.08,
    "names swapped": 0.03,
    "moved: another postcode": 0.10,
    "typo in the birth date": 0.03,
    "title before the name": 0.10,
    "capitals, or without accents": 0.30,
    "no national id": 0.40,  # at the clinic, too
    "typo in the national id": 0.02,
}

KEYS = (
    ("national_id",),
    ("surname", "given", "birth_date"),
    ("names(surname, given)", "birth_date"),
    ("sounds(surname)", "birth_date", "postcode"),
    ("given", "birth_date", "postcode"),
    ("surname", "given", "postcode"),
)

PARTY = """[party]
name = "{name}"
table = "{name}.csv"
id = "{name}_number"
match = [
{keys}
]
match_truth = "person"
{rest}"""


def _parts(text: str) -> list[str]:
    return re.findall(r"\S+", text)


_ONSETS = _parts("B Br D F G Gr H K Kl L M N P R S Sch St T V W Z Mü Fö Lé")
_MIDDLES = _parts("a e i o u au ei ie ö ar el on er ens")
_CODAS = _parts("bach berg feld mann ner ski sen son ton well ard ez ini ova er dorf ham ley")
_GIVEN = _parts("An Bea Car Da El Fe Ge Ha I Jo Ka Le Ma Ni O Pau Re So Te U Vi Zo")
_GIVEN_ENDS = _parts("na ne ra lia rik tin us el ana bert mine la ko é dra win")


def people(num: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Made-up people: some names are frequent, most are rare."""

    def drawn(*parts: list[str]) -> np.ndarray:
        # Squared: the first of each part come more often than the last.
        chosen = [
            np.array(part, dtype=object)[(rng.random(num) ** 2 * len(part)).astype(int)]
            for part in parts
        ]
        words = chosen[0]
        for part in chosen[1:]:
            words = words + part
        return words

    born = np.datetime64("1935-01-01") + rng.integers(0, 75 * 365, num)
    return {
        "surname": drawn(_ONSETS, _MIDDLES, _CODAS),
        "given": drawn(_GIVEN, _GIVEN_ENDS),
        "birth_date": born.astype(str).astype(object),
        "postcode": np.array(
            [f"{code:05d}" for code in rng.integers(10000, 12500, num)], dtype=object
        ),
        "national_id": np.array(
            [f"{number:010d}" for number in rng.choice(10**10, num, replace=False)], dtype=object
        ),
    }


def typo(text: str, rng: np.random.Generator) -> str:
    """One letter dropped, doubled, exchanged, or in the place of the one before."""
    index, kind = int(rng.integers(1, len(text))), int(rng.integers(4))
    if kind == 0 and len(text) > 2:
        return text[:index] + text[index + 1 :]
    if kind == 1:
        return text[:index] + text[index] + text[index:]
    if kind == 2:
        return text[: index - 1] + text[index] + text[index - 1] + text[index + 1 :]
    return text[:index] + "aeiornst"[int(rng.integers(8))] + text[index + 1 :]


def dirtied(clean: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same people as somebody else wrote them down."""
    num = len(clean["surname"])
    columns = {name: values.copy() for name, values in clean.items()}

    def hit(what: str) -> np.ndarray:
        return np.flatnonzero(rng.random(num) < RATES[what])

    for name, what in (("surname", "typo in the surname"), ("given", "typo in the given name")):
        for row in hit(what):
            columns[name][row] = typo(columns[name][row], rng)
    for row in hit("names swapped"):
        surname, given = columns["surname"][row], columns["given"][row]
        columns["surname"][row], columns["given"][row] = given, surname
    for row in hit("moved: another postcode"):
        columns["postcode"][row] = f"{int(rng.integers(10000, 12500)):05d}"
    for row in hit("typo in the birth date"):
        year, month, day = columns["birth_date"][row].split("-")
        wrong = int(day) % 28 + 1
        columns["birth_date"][row] = f"{year}-{month}-{wrong:02d}"
    for row in hit("title before the name"):
        columns["surname"][row] = (
            f"{['Dr.', 'Prof.'][int(rng.integers(2))]} {columns['surname'][row]}"
        )
    plain = str.maketrans("üöéÜÖÉ", "uoeUOE")
    for row in hit("capitals, or without accents"):
        way = str.upper if rng.random() < 0.5 else lambda text: text.translate(plain)
        for name in ("surname", "given"):
            columns[name][row] = way(columns[name][row])
    for row in hit("typo in the national id"):
        columns["national_id"][row] = columns["national_id"][row][:-2] + "00"
    # Written the registry's own way.
    columns["birth_date"] = np.array(
        [".".join(reversed(text.split("-"))) for text in columns["birth_date"]], dtype=object
    )
    return columns


def make(out: Path, *, clinic: int, registry: int, both: int, seed: int) -> list[Path]:
    """Write both tables and party files into ``out``; the paths of the party files."""
    rng = np.random.default_rng(seed)
    everybody = people(clinic + registry - both, rng)
    persons = np.arange(clinic + registry - both)
    score = rng.normal(size=len(persons))
    held = {"clinic": np.arange(clinic), "registry": persons[clinic - both :]}
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, rows in held.items():
        clean = {column: values[rows] for column, values in everybody.items()}
        columns = clean if name == "clinic" else dirtied(clean, rng)
        columns["national_id"][rng.random(len(rows)) < RATES["no national id"]] = None
        noisy = score[rows] + rng.normal(size=len(rows))
        private = {"measured": noisy} if name == "clinic" else {"reported": noisy}
        if name == "clinic":
            private["outcome"] = np.where(score[rows] > 0, "good", "poor").astype(object)
        order = rng.permutation(len(rows))
        table = {f"{name}_number": np.arange(len(rows)) + 1, **columns, "person": rows, **private}
        numbered = {column: values[order] for column, values in table.items()}
        numbered[f"{name}_number"] = table[f"{name}_number"]
        data.write_table(out / f"{name}.csv", numbered)
        keys = "\n".join(f"    {list(key)}," for key in KEYS).replace("'", '"')
        rest = (
            'label = "outcome"\n'
            if name == "clinic"
            else '\n[policy]\nalgorithms = ["align", "apfed", "apfed-d"]\ndrivers = ["clinic"]\n'
        )
        files.append(out / f"{name}.toml")
        files[-1].write_text(PARTY.format(name=name, keys=keys, rest=rest))
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("twins"), help="[twins]")
    parser.add_argument("--clinic", type=int, default=5000, help="its people [5000]")
    parser.add_argument("--registry", type=int, default=4000, help="its people [4000]")
    parser.add_argument("--both", type=int, default=3000, help="whom both have [3000]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    given = parser.parse_args()
    files = make(
        given.out,
        clinic=given.clinic,
        registry=given.registry,
        both=given.both,
        seed=given.seed,
    )
    print(
        f"{files[0]} ({given.clinic:,} people) and {files[1]} ({given.registry:,}): "
        f"{given.both:,} are at both"
    )
    print(f"next: dovetail align {files[0]} --dry-run")


if __name__ == "__main__":
    main()
