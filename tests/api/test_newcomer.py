"""What a newcomer stumbled over, each in the line that did it."""

from __future__ import annotations

import json
import pickle
import statistics
from decimal import Decimal
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import dovetail as dt
from benchmarks import unseen, worth
from benchmarks.unseen import FIRST
from dovetail.api.inspecting import UNSEEN
from dovetail.audit.measured import reported
from dovetail.cli import main as commands
from dovetail.companions.service.calibrating import calibrated
from dovetail.data import Column, Dataset, table_from_arrays
from dovetail.data.frames import table_from_frame
from dovetail.errors import AlignmentError, ConfigError, DataError
from dovetail.files import check_is_run, read_toml
from dovetail.models import load
from dovetail.runs.label_copies import copies_of_table
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data
from dovetail.sklearn import SoloClassifier

ROOT = Path(__file__).parents[2]
IDS = range(40)


def owner(**columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    y = pd.Series(["no", "yes"] * 20)
    return pd.DataFrame({"id": IDS, "a": rng.normal(size=40), "y": y, **columns})


def partner(ids: object = IDS) -> dt.Party:
    return dt.Party("b", pd.DataFrame({"id": ids, "z": np.arange(40.0)}), id="id")


@pytest.mark.usefixtures("brief_learners")
def test_a_model_outlives_the_expression_that_trained_it() -> None:
    parties = [dt.Party("a", owner(), id="id", label="y"), partner()]
    model = dt.fit(dt.Method("apfed-mixed", epochs=1), parties, test=None, quiet=True).models["a"]
    assert len(model.predict(owner())) == 40


def test_a_column_that_is_called_by_a_number_is_a_column() -> None:
    frame = owner().assign(**{"5": 1.0}).rename(columns={"5": 5})
    frame[5] = np.arange(40.0)
    party = dt.Party("a", frame, id="id", label="y")
    assert party.columns == ("a", "5")
    assert table_from_frame(frame).column("5").values.tolist() == frame[5].tolist()


def test_a_dataframe_is_no_list_of_parties() -> None:
    with pytest.raises(ConfigError, match=r"a list of dovetail.Party\(name, df, id=...\), got one"):
        dt.fit("apfed-d", owner())  # type: ignore[arg-type]


def test_a_label_in_the_wrong_case_is_the_one_that_was_meant() -> None:
    with pytest.raises(DataError, match="did you mean 'y'"):
        dt.Party("a", owner(**{"mean concavity": 1.0}), id="id", label="Y")


def test_decimals_of_a_database_are_numbers() -> None:
    column = table_from_frame(owner(price=[Decimal("1.5"), None] * 20)).column("price")
    assert column.values[0] == 1.5
    assert column.missing.tolist() == [False, True] * 20


def test_a_party_is_pickled_with_its_rows(tmp_path: Path) -> None:
    owner().to_csv(tmp_path / "a.csv", index=False)
    for table in (owner(), tmp_path / "a.csv"):
        party = pickle.loads(pickle.dumps(dt.Party("a", table, id="id", label="y")))
        assert (party.name, party.num_rows, party.columns) == ("a", 40, ("a",))
        assert party.site.table.x.column("a").values.tolist() == owner()["a"].tolist()
    halves = table_from_arrays("t", {"x": np.arange(4)}).take(np.array([2, 0]))
    assert pickle.loads(pickle.dumps(halves)).column("x").values.tolist() == [2, 0]


def test_the_papers_variants_are_named_for_parties_in_this_process() -> None:
    parties = [dt.Party("a", owner(), id="id", label="y"), partner()]
    run = dt.fit(dt.Method("apfed-r", epochs=1), parties, test=None, quiet=True)
    party = dt.Party.read(run.folder / "given" / "b.toml")
    assert party.site.sections["apfed"].loss == "reconstruction"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([f"{each:05}" for each in IDS], r"text of 5 characters, digits, all begin with '000'"),
        ([f"KX-{each}" for each in IDS], r"text of 4 to 5 characters, capitals and digits and '-'"),
        ([f"kx{each}" for each in IDS], r"small letters and digits, all begin with 'kx'"),
    ],
)
def test_ids_of_another_shape_are_described_to_who_has_both(ids: list[str], words: str) -> None:
    text = owner(id=[f"KX{each}" for each in IDS])
    with pytest.raises(
        AlignmentError, match=f"shares no sample with 'a'; ids of 'a' are .*{words}"
    ):
        dt.fit("apfed-d", [dt.Party("a", text, id="id", label="y"), partner(ids)], quiet=True)


def test_in_one_process_no_limit_by_default_cuts_training_short(tmp_path: Path) -> None:
    owner().to_csv(tmp_path / "a.csv", index=False)
    file = '[party]\nname = "{}"\ntable = "a.csv"\nid = "id"\n'
    (tmp_path / "a.toml").write_text(file.format("a") + 'label = "y"\n')
    (tmp_path / "b.toml").write_text(
        file.format("b")
        + 'columns = ["a"]\n[policy]\nalgorithms = ["align", "apfed-mixed"]\nmax_uses = 9\n'
    )
    (tmp_path / "run.toml").write_text('method = "apfed-mixed"\nparties = ["a.toml", "b.toml"]\n')
    sites = load_data(load_run(tmp_path / "run.toml")).sites
    limits = {name: site.policy.section for name, site in sites.items()}
    assert (limits["a"].max_uses, limits["a"].min_rows) == (10**9, 1)
    assert limits["a"].sealed.numbers_per_row == 10**9  # of APFed-S: any number of classes
    assert (limits["b"].max_uses, limits["b"].min_rows) == (9, 1)


def gained(bench: str, what: str, *beside: str) -> tuple[float, int]:
    """Median over settings of the points that it gained, and how many settings there are."""
    lines = (ROOT / "benchmarks/results/bench" / f"{bench}.jsonl").read_text().splitlines()
    cells: dict[str, list[float]] = {}
    for row in map(json.loads, lines):
        if what in row:
            cell = row["cell"] if "worth" in bench else row["data"]
            gain = row[what] - max(row[name] for name in beside)
            cells.setdefault(cell, []).append(100 * gain)
    return statistics.median(map(statistics.fmean, cells.values())), len(cells)


def gained_by_sealed() -> tuple[float, float, int]:
    """Median points of APFed-S over settings: solo and joint model; and how many settings."""
    found = worth.summary(worth.cells())
    return found["median gain, solo"], found["median gain, joint"], int(found["settings"])


def unseen_gains() -> tuple[list[dict[str, Any]], dict[tuple[str, int], str]]:
    """Cells on record, and what solo and joint model gained with 100 and 300 labels, in points."""
    path = ROOT / "benchmarks" / "results" / "unseen.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows, {
        (what, labels): format(
            100 * mean(row[what] - row["local"] for row in rows if row["labels"] == labels), ".1f"
        )
        for what in ("solo", "joint")
        for labels in (100, 300)
    }


def test_what_inspect_says_of_joint_models_is_what_was_measured() -> None:
    rows, gains = unseen_gains()
    tables = len({row["table"] for row in rows})
    expected = (
        f"On {tables} tables that nothing of the solo model was chosen on, it gained "
        f"{gains['solo', 100]} points of AUC over the best local model with 100 labels, and "
        f"{gains['solo', 300]} with 300. The joint model, which needs the partners at each "
        f"prediction, gained {gains['joint', 100]} and {gains['joint', 300]} (means)."
    )
    assert expected == UNSEEN
    solo, joint, _ = gained_by_sealed()
    readme = (ROOT / "README.md").read_text()
    assert f"| **joint model** | yes | {joint:.1f} points |" in readme
    assert f"| **solo model** | no | {solo:.1f} points" in readme


def test_what_is_said_of_the_newcomers_tables_is_what_was_measured() -> None:
    path = ROOT / "benchmarks" / "results" / "newcomer.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["cell"].rpartition("-")[0] for row in rows}) == 10
    above = sum(row["solo less better"] > 0 for row in rows)
    points = 100 * mean(row["solo less better"] for row in rows)
    assert [row["cell"] for row in rows if row["interval"][1] < 0] == []
    page = " ".join((ROOT / "docs" / "sealed.md").read_text().split())
    assert f"in {above} of [{len(rows)} splits of ten tables]" in page
    assert f"It is {points:.1f} points above on average, and never below by more" in page
    others = [row for row in rows if row["cell"].startswith(("nhefs", "fair", "anes96", "lymph"))]
    solo, joint = (
        100 * mean(row[one] - row["local"] for row in others) for one in ("solo", "joint")
    )
    assert f"in their {len(others)} splits it is {solo:.1f} points above the best local" in page
    assert f"the joint model {joint:.1f}." in page


def test_readme_says_what_it_costs_to_score_a_model() -> None:
    path = ROOT / "benchmarks" / "results" / "refit.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    less = [100 * mean(row["all"] - row[one] for row in rows) for one in ("default", "held back")]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"[{less[0]:.1f} points of AUC below one that was never scored, and {less[1]:.1f}" in readme
    )


def test_readme_says_what_tables_gained_that_nothing_was_chosen_on() -> None:
    rows, gains = unseen_gains()
    anyone = {
        labels: 100
        * mean(
            row["solo"] - max(row["LR"], row["LightGBM"]) for row in rows if row["labels"] == labels
        )
        for labels in (100, 300)
    }
    page = (ROOT / "README.md").read_text()
    assert unseen.first_screen(rows) in page
    readme = " ".join(page.split())
    assert f"[{len({row['table'] for row in rows})} tables that nothing of the solo" in readme
    assert (
        f"The solo model gained {gains['solo', 100]} points with 100 labels and "
        f"{gains['solo', 300]} with 300, the joint model {gains['joint', 100]} and "
        f"{gains['joint', 300]}."
    ) in readme
    assert f"{anyone[100]:.1f} and {anyone[300]:.1f} over the better of LightGBM" in readme
    lost = {what: sum(row[what] - row["local"] < -0.01 for row in rows) for what in FIRST}
    assert (
        f"Of {len(rows)} draws, {lost['solo']} of the solo model's and {lost['joint']} of the "
        "joint model's lost more than a point"
    ) in readme


def test_what_inspect_says_each_method_gains_is_what_was_measured() -> None:
    solo, joint, settings = gained_by_sealed()
    expected = f"solo model {solo:.1f} points, joint model {joint:.1f} ({settings} settings)"
    gains = {name: each.gain for name, each in reported().items() if each.gain}
    assert gains["apfed"] == expected
    released, few = gained("worth-released", "apfed-d", "best-alone")
    trained, many = gained("worth", "apfed-d", "best-alone")
    joint, _ = gained("worth", "joint", "best-alone")
    assert gains["apfed-d"] == (
        f'solo model {released:.1f} points ({few} settings); with exchange = "gradients" '
        f"{trained:.1f}, joint model {joint:.1f} ({many} settings)"
    )
    losses = [gained("worth-helped", name, "best-alone")[0] for name in ("apfed-r", "apfed-c")]
    assert gains["apfed-mixed"].startswith(
        "{:.1f} points by reconstruction, {:.1f} by".format(*losses)
    )
    for bench, what, *beside in (
        ("chfl-table2-short", "chfl", "local", "boosting"),
        ("hyfem-views", "hyfem", "standalone"),
        ("fedoptimus-adult", "fedoptimus", "alone"),
    ):
        gain, settings = gained(bench, what, *beside)
        assert gains[what].startswith(f"{gain:.1f} points")
        assert f"({settings} setting" in gains[what]
    assert all(reported()[name].shows for name in gains)


def test_a_party_file_or_table_is_recognised_where_a_run_file_is_expected(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,a\n1,2\n")
    with pytest.raises(ConfigError, match=r"rows.csv is a table, .* dovetail init --table"):
        read_toml(tmp_path / "rows.csv")
    with pytest.raises(ConfigError, match=r"bank.toml is a party file, and a run file is expected"):
        check_is_run({"party": {}}, Path("bank.toml"))
    (tmp_path / "run.toml").write_text("method = apfed\n")
    with pytest.raises(ConfigError, match=r"run.toml is not valid TOML.*; text needs quotes"):
        read_toml(tmp_path / "run.toml")


def test_a_mistyped_command_is_told_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["dovetail", "trian", "run.toml"])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "dovetail: there is no command 'trian'; did you mean 'train'?\n"
    )


def test_calibrating_on_the_rows_of_training_is_warned_of(tmp_path: Path) -> None:
    frame = load_breast_cancer(as_frame=True).frame
    frame = frame.assign(y=frame["target"].map({0: "m", 1: "b"})).drop(columns="target")
    train, other = frame.iloc[:280], frame.iloc[280:]
    model = SoloClassifier(learners=["linear"]).fit(train.drop(columns="y"), train["y"] == "b")
    for rows, warned in ((train, True), (frame, False), (other, False)):
        folder = model.model_.save(tmp_path / "m")
        labelled = rows.assign(y=(rows["y"] == "b").astype(int))
        text = calibrated(folder, labelled, label="y")["text"]
        assert ("WARNING: these are the rows of training" in text) == warned
    assert load(folder).party == "owner"


@pytest.mark.usefixtures("brief_learners")
@pytest.mark.parametrize(
    ("column", "values", "reported"),
    [
        ("Y", [0.0, 1.0] * 20, "its column 'Y' is named like the label 'y' of party 'a'"),
        ("paid", ["n", "j"] * 20, "its column 'paid' equals the label 'y' of party 'a'"),
        ("paid", [0, 1] * 20, 'if it is the label, leave it out: columns = ["*", "-paid"]'),
        ("paid", [0, 1, 1, 0] * 10, None),
    ],
)
def test_a_partners_column_that_is_the_label_is_warned_of(
    column: str, values: list[object], reported: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame({"id": IDS, "z": np.arange(40.0), column: values})
    parties = [dt.Party("a", owner(), id="id", label="y"), dt.Party("b", rows, id="id")]
    dt.fit(dt.Method("apfed-mixed", epochs=1), parties, test=None, quiet=True)
    text = capsys.readouterr().err
    assert ("WARNING: party 'b'" in text) == (reported is not None)
    assert reported is None or reported in text
    dt.inspect(parties)
    assert reported is None or reported in capsys.readouterr().err


def test_a_column_that_equals_a_number_to_predict_is_warned_of() -> None:
    values = np.random.default_rng(1).normal(size=40)
    label = Column(values, np.zeros(40, bool))
    table = table_from_arrays("t.csv", {"copy": values, "other": values[::-1].copy()})
    dataset = Dataset("t.csv", np.arange(40), table, "value", label)
    assert [*copies_of_table(dataset)] == [
        "t.csv: its column 'copy' equals the label 'value'; leave it out of the table"
    ]


@pytest.mark.parametrize("turned", [None, 1, 2500])
def test_copies_in_long_tables_are_seen_by_all_rows(turned: int | None) -> None:
    """Whether a row among the first or after them is unlike."""
    values = np.random.default_rng(2).integers(0, 3, 3000)
    column = np.array(["north", "south", "west"])[values]
    if turned is not None:
        column[turned] = "south" if column[turned] != "south" else "west"
    label = Column(values.astype(float), np.zeros(3000, bool))
    table = table_from_arrays("t.csv", {"region": column})
    dataset = Dataset("t.csv", np.arange(3000), table, "kind", label)
    assert len([*copies_of_table(dataset)]) == (turned is None)


@pytest.mark.usefixtures("brief_learners")
def test_a_seed_gives_one_model_of_sealed_help() -> None:
    """Though each alignment numbers the samples anew, test rows among them."""
    found = []
    for _ in range(2):
        parties = [dt.Party("a", owner(), id="id", label="y"), partner()]
        asked = dt.APFed(distil={"students": ["linear"]})
        run = dt.fit(asked, parties, test=0.25, quiet=True)
        found.append(run.models["a"].predict_proba(owner()))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.usefixtures("brief_learners")
def test_an_own_column_that_equals_the_label_is_remarked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = owner()
    table["answer"] = table["y"].map({"no": "declined", "yes": "accepted"})
    parties = [dt.Party("a", table, id="id", label="y"), partner()]
    dt.fit(dt.APFed(distil={"students": ["linear"]}), parties, test=0, quiet=True)
    assert "its column 'answer' equals the label 'y'" in capsys.readouterr().err


def test_two_labels_are_too_few_in_one_sentence() -> None:
    table = owner()
    table.loc[2:, "y"] = None
    with pytest.raises(ConfigError, match="'a' has 2 labelled rows; the label owner needs three"):
        dt.fit(dt.APFed(), [dt.Party("a", table, id="id", label="y"), partner()], test=0)
