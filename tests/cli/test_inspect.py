"""``dovetail inspect`` names the method that party files, or a simulation's parties, fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import data as dd
from dovetail.data.coverage import Part
from dovetail.methods.apfed.fits import message_sizes
from dovetail.methods.settings.apfed import ApfedSection, PassiveFields
from dovetail.runs import situations as methods

pytestmark = pytest.mark.usefixtures("brief_expectation")

METHODS = ["apfed", "fedoptimus", "chfl", "hyfem"]

#: Party -> its samples, its columns, and the samples it has labels of.
Holds = dict[str, tuple[range, str, range]]

NONE = range(0)

#: For each method the parties that fit it.
SITUATIONS: dict[str, Holds] = {
    "apfed": {
        "bank": (range(100), "ab", range(100)),
        "shop": (range(40, 120), "cd", NONE),
        "gym": (range(20), "ef", NONE),
    },
    "fedoptimus": {
        "north": (range(50), "", range(50)),
        "south": (range(50, 90), "", range(50, 90)),
        "bank": (range(90), "abc", NONE),
        "shop": (range(100), "de", NONE),
    },
    "chfl": {
        "north": (range(50), "abcd", range(50)),
        "south": (range(50, 90), "abce", range(50, 90)),
        "west": (range(90, 150), "abcf", range(90, 150)),
    },
    "hyfem": {
        "north": (range(60), "abcd", range(60)),
        "south": (range(40, 90), "cdef", range(40, 90)),
        "west": (range(80, 150), "efab", range(80, 150)),
    },
}

Write = Callable[[Holds], list[Path]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the files of these parties, rows in any order."""

    def write(holds: Holds) -> list[Path]:
        rng = np.random.default_rng(0)
        files = []
        for name, (samples, letters, labelled) in holds.items():
            header = ["person", *(f"col {letter}" for letter in letters)]
            label = ""
            if labelled:
                header.append("sick")
                label = 'label = "sick"'
            lines = [",".join(header)]
            for row in rng.permutation(np.array(samples)):
                cells = [f"P-{row}", *(f"{value:.6f}" for value in rng.normal(size=len(letters)))]
                if labelled:
                    cells.append(["no", "yes"][row % 2] if row in labelled else "")
                lines.append(",".join(cells))
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
            file = tmp_path / f"{name}.toml"
            file.write_text(
                f'[party]\nname = "{name}"\ntable = "{name}.csv"\nid = "person"\n{label}\n'
            )
            files.append(file)
        return files

    return write


def inspected_json(dovetail: Any, *arguments: object) -> Any:
    done = dovetail("inspect", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.parametrize(
    ("table", "guessed"),
    [
        ("SELECT * FROM 'bank.csv'", True),
        ("SELECT * FROM read_csv('bank.csv')", True),
        ("SELECT * FROM read_csv('bank.csv', all_varchar = true)", False),
        ("bank.csv", False),
    ],
)
def test_a_select_whose_types_are_guessed_is_told(
    dovetail: Any, write: Write, table: str, guessed: bool
) -> None:
    (file,) = write({"bank": (range(40), "ab", range(40))})
    file.write_text(file.read_text().replace('"bank.csv"', json.dumps(table)))
    done = dovetail("inspect", file)
    assert done.code == 0
    words = "party 'bank': its SELECT reads a CSV file, whose types DuckDB guesses from the rows"
    assert (words in done.err) == guessed, done.err


@pytest.mark.parametrize("method", METHODS)
def test_party_files_that_fit_a_method_are_told_its_name(
    dovetail: Any, write: Write, method: str
) -> None:
    holds = SITUATIONS[method]
    report = inspected_json(dovetail, *write(holds))
    assert report["recommended"] == method
    by_name = {fit["method"]: fit for fit in report["methods"]}
    assert list(by_name) == METHODS
    fits = {name for name, fit in by_name.items() if fit["applies"]}
    assert fits == ({"chfl", "hyfem"} if method == "chfl" else {method})
    assert by_name[method]["reason"].startswith("yes: ")
    assert all(by_name[name]["reason"].startswith("no: ") for name in METHODS if name not in fits)
    for party in report["parties"]:
        samples, letters, labelled = holds[party["name"]]
        assert (party["rows"], party["labelled"]) == (len(samples), len(labelled))
        assert party["classes"] == (["no", "yes"] if labelled else None)
        columns = [column for names in party["blocks"].values() for column in names]
        assert sorted(columns) == sorted(f"col {letter}" for letter in letters)
    everyone = set().union(*(samples for samples, *_ in holds.values()))
    assert report["samples"] == len(everyone)


@pytest.mark.parametrize("method", METHODS)
def test_the_terminal_names_it_too(dovetail: Any, write: Write, method: str) -> None:
    title = {"apfed": "APFed", "fedoptimus": "FedOptimus", "chfl": "CHFL", "hyfem": "HyFEM"}[method]
    done = dovetail("inspect", *write(SITUATIONS[method]))
    assert (done.code, done.err) == (0, "")
    assert f"Recommended: {title}\n" in done.out
    assert re.search(rf"{title} +yes: ", done.out)
    assert f"Next: dovetail train RUN --set method={method}" in done.out
    assert "█" in done.out


def test_messages_are_as_large_as_the_columns_make_them(dovetail: Any, write: Write) -> None:
    report = inspected_json(dovetail, *write(SITUATIONS["chfl"]))
    (fit,) = [fit for fit in report["methods"] if fit["method"] == "chfl"]
    sizes = [3, 512, 256, 128, 2]  # three common columns, two classes
    num_weights = sum((n + 1) * m for n, m in pairwise(sizes))
    assert [each["sent_bytes"] for each in fit["messages"]] == [4 * num_weights] * 3
    assert "a common network of 3-512-256-128-2" in fit["messages"][0]["assuming"]


@pytest.mark.parametrize("method", METHODS)
def test_overlaps_counted_privately_are_the_same(dovetail: Any, write: Write, method: str) -> None:
    files = write(SITUATIONS[method])
    clear, private = inspected_json(dovetail, *files), inspected_json(dovetail, *files, "--private")
    assert private["overlaps"]["shared"] == clear["overlaps"]["shared"]
    assert (
        private["overlaps"]["with"] == clear["overlaps"]["with"] == next(iter(SITUATIONS[method]))
    )
    assert (private["overlaps"]["ids_compared"], private["groups"]) == (False, None)
    assert private["parties"] == clear["parties"]
    first, *others = SITUATIONS[method].values()
    shared = [len(set(first[0]) & set(other[0])) for other in others]
    assert list(private["overlaps"]["shared"].values()) == shared
    if method == "apfed":
        assert private["recommended"] == method
    if method == "fedoptimus":  # counts do not show that shards are disjoint
        assert "unknown: " in json.dumps(private["methods"])


def test_the_first_with_a_label_is_compared_with_the_others(dovetail: Any, write: Write) -> None:
    holds = {
        "shop": (range(40, 120), "cd", NONE),
        "north": (range(30), "ab", range(200, 201)),  # names a label, and has none
        "bank": (range(100), "ab", range(100)),
    }
    files = write(holds)
    for private in ((), ("--private",)):
        report = inspected_json(dovetail, *files, *private)
        assert report["overlaps"]["with"] == "bank"
        assert report["overlaps"]["shared"] == {"shop": 60, "north": 30}
        assert [party["labelled"] for party in report["parties"]] == [0, 0, 100]


def test_a_party_may_have_one_class_only(dovetail: Any, write: Write) -> None:
    files = write(SITUATIONS["hyfem"])
    text = (files[0].parent / "north.csv").read_text()
    (files[0].parent / "north.csv").write_text(text.replace("yes", "no"))
    report = inspected_json(dovetail, *files)
    assert report["recommended"] == "hyfem"
    assert [party["classes"] for party in report["parties"]] == [
        ["no"],
        ["no", "yes"],
        ["no", "yes"],
    ]


def test_a_label_may_be_a_number(dovetail: Any, write: Write) -> None:
    files = write(SITUATIONS["apfed"])
    text = files[0].read_text().replace('"sick"', '"col a"\ntask = "regression"')
    files[0].write_text(text.replace("[party]", '[party]\ncolumns = ["col b"]'))
    report = inspected_json(dovetail, *files)
    assert (report["recommended"], report["parties"][0]["classes"]) == ("apfed", "numbers")


def test_images_are_blocks(dovetail: Any, write: Write, tmp_path: Path) -> None:
    bank, *_ = write(SITUATIONS["apfed"])
    np.savez(
        tmp_path / "scans.npz",
        x=np.zeros((30, 6, 5), np.uint8),
        person=np.array([f"P-{row}" for row in range(90, 120)]),
    )
    (tmp_path / "clinic.toml").write_text(
        '[party]\nname = "clinic"\ntable = "scans.npz"\nid = "person"\n'
    )
    report = inspected_json(dovetail, bank, "clinic.toml")
    assert report["recommended"] == "apfed"
    assert report["overlaps"]["shared"] == {"clinic": 10}
    assert report["parties"][1]["blocks"] == {"images": ["clinic: 1 × 6 × 5"]}
    assert "images (1×6×5)" in dovetail("inspect", bank, "clinic.toml").out


def test_a_page_is_written(dovetail: Any, write: Write, tmp_path: Path) -> None:
    files = write(SITUATIONS["apfed"])
    done = dovetail("inspect", *files, "--html", "new/page.html")
    assert done.code == 0
    assert "Page: new/page.html" in done.out
    page = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    for part in ("<svg", "bank", "shop", "gym", "dovetail train RUN", "only bank has labels"):
        assert part in page
    assert "P-1" not in page  # no id
    assert not re.search(r"(src|href)=.?https?:", page)
    done = dovetail("inspect", *files, "--private", "--html", "page.html", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert "<svg" not in (tmp_path / "page.html").read_text(encoding="utf-8")


# --- Run files ------------------------------------------------------------------------------------


def test_a_run_file_of_party_files_stands_for_them(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    report = inspected_json(dovetail, "run.toml")
    assert report["recommended"] == "apfed"
    assert report["overlaps"]["shared"] == {"lab": 60, "registry": 90}
    assert report["overlaps"]["common"] == 40
    assert report["next_command"] == "dovetail train run.toml"
    assert report["overlaps"] == inspected_json(dovetail, *dealt.files)["overlaps"]
    assert inspected_json(dovetail, "run.toml", "--private")["overlaps"]["shared"] == {
        "lab": 60,
        "registry": 90,
    }
    smaller = inspected_json(dovetail, "run.toml", "--set", 'parties=["clinic.toml", "lab.toml"]')
    assert smaller["overlaps"]["shared"] == {"lab": 60}
    assert dovetail(*report["next_command"].split()[1:], "-q").code == 0


def test_columns_of_a_simulation_are_inspected(dovetail: Any, write_run: Any) -> None:
    write_run(("active = ", "overlap = 0.5\nactive = "))
    report = inspected_json(dovetail, "run.toml")
    assert report["recommended"] == "apfed"
    assert [party["rows"] for party in report["parties"]] == [426, 213]  # training rows
    assert report["overlaps"]["shared"] == {"lab": 213}
    assert report["parties"][1]["blocks"]["columns"][0] == "worst radius"
    assert "Recommended: APFed" in dovetail("inspect", "run.toml").out


def test_strips_of_a_simulation_are_inspected(dovetail: Any, write_run: Any) -> None:
    write_run(
        ('"breast-cancer"', '"digits-images"'),
        (
            'kind = "columns"\nactive = "clinic"\n'
            'parties = { clinic = ["mean *"], lab = ["worst *"] }',
            'kind = "strips"\nviews = 2',
        ),
    )
    report = inspected_json(dovetail, "run.toml", "--set", "data.rows=200")
    assert report["recommended"] == "apfed"
    assert [party["name"] for party in report["parties"]] == ["view-1", "view-2"]
    assert report["parties"][1]["blocks"] == {"strip": ["1 × 4 × 8, height 4 to 8"]}
    assert report["overlaps"]["shared"] == {"view-2": 200}


def step_bytes(report: Any) -> list[int]:
    return [message["received_bytes"] for message in report["methods"][0]["messages"]]


def test_messages_are_those_of_the_run_file(dovetail: Any, write_run: Any) -> None:
    write_run()
    keys = ("--set", "apfed.batch_size=20", "--set", "apfed.encoder=[9, 7]")
    assert step_bytes(inspected_json(dovetail, "run.toml", *keys)) == [20 * 7 * 4]
    keys += ("--set", "apfed.projection=5")
    assert step_bytes(inspected_json(dovetail, "run.toml", *keys)) == [20 * 5 * 4]
    keys += ("--set", 'passive.loss="reconstruction"')  # is sent whole codes
    report = inspected_json(dovetail, "run.toml", *keys)
    assert step_bytes(report) == [20 * 7 * 4]
    assumed = "batches of 20 rows, codes of 7 float32 values"
    assert assumed in report["methods"][0]["messages"][0]["assuming"]


def test_messages_of_party_files_are_those_of_their_run_file(dovetail: Any, deal: Any) -> None:
    dealt = deal()
    keys = ("--set", "apfed.batch_size=20", "--set", "apfed.encoder=[9, 7]")
    assert step_bytes(inspected_json(dovetail, "run.toml", *keys)) == [20 * 7 * 4] * 2
    assert (
        step_bytes(inspected_json(dovetail, *dealt.files)) == [64 * 32 * 4] * 2
    )  # without: assumed


def test_codes_of_table_3_on_half_an_mnist_image_have_15360_numbers() -> None:
    x = torch.zeros(4, 1, 14, 28, dtype=torch.uint8)
    upper = Part(
        dd.PartyData("view-1", np.arange(4), {"strip": x}, torch.arange(4)), {"strip": ("upper",)}
    )
    lower = Part(dd.PartyData("view-2", np.arange(4), {"strip": x}), {"strip": ("lower",)})
    passives = {"view-2": PassiveFields()}
    sizes = message_sizes(ApfedSection(encoder="table-3"), [upper, lower], passives, sealed=False)
    assert (sizes.batch_size, sizes.sent_to("view-2")) == (64, 15360)
    (fit, *_) = methods.fits([upper, lower], sizes=sizes)
    assert fit.messages[0].received_bytes == 64 * 15360 * 4  # 3.9 MB a step
    projecting = ApfedSection(encoder="table-3", projection=8)
    sizes = message_sizes(projecting, [upper, lower], passives, sealed=False)
    assert sizes.sent_to("view-2") == 8


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.toml",), r"there is no file nowhere\.toml"),
        (("run.toml", "--private"), "--private is for party files; this run file splits one"),
        (("bank.toml", "--set", "seed=1"), "--set changes a run file's keys; party files were na"),
        (("bank.toml", "bank.toml"), r"bank\.toml and bank\.toml are both party 'bank'"),
        (("bank.toml", "run.toml"), r"run\.toml is no party file: it has no \[party\] table"),
        (("bank.toml", "closed.toml", "--private"), "party 'closed' refuses 'align': its policy"),
        (("bank.toml", "text.toml"), r"label 'sick' is text \('\w+'\); a regression needs numbers"),
        (("bank.toml", "--html", "bank.csv/page.html"), r"cannot write bank\.csv/page\.html"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    dovetail: Any, write: Write, write_run: Any, tmp_path: Path, arguments: Any, words: str
) -> None:
    write_run()
    write({"bank": SITUATIONS["apfed"]["bank"]})
    party = '[party]\nname = "{}"\ntable = "{}"\nid = "person"\n'
    closed = party.format("closed", "bank.csv") + "[policy]\nalgorithms = []\n"
    (tmp_path / "closed.toml").write_text(closed)
    text = party.format("text", "bank.csv") + 'label = "sick"\ntask = "regression"\n'
    (tmp_path / "text.toml").write_text(text)
    done = dovetail("inspect", *arguments, "-q")
    assert (done.code, done.out) == (2, "")
    assert re.search(words, done.err), done.err
    assert done.err.startswith("dovetail: ")
    *warnings, _ = done.err.splitlines()
    assert all(line.startswith("dovetail: WARNING: ") for line in warnings), done.err
    assert "Traceback" not in done.err
