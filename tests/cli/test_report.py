"""``dovetail report``, of a run that ``dovetail train`` made."""

import re
import tomllib

import pytest
import tomli_w


@pytest.fixture
def trained(dovetail, write_run):
    assert dovetail("train", write_run(), "--out", "one", "-q").code == 0
    return "one"


def test_a_run_becomes_a_page_beside_it(dovetail, trained, tmp_path):
    done = dovetail("report", trained)
    assert done.code == 0
    assert done.out == "Report: one/report.html\n"
    page = (tmp_path / "one" / "report.html").read_text(encoding="ascii")
    for part in ("APFed-C, predicts alone", "learned alone", "clinic now predicts alone"):
        assert part in page
    assert "apfed.Codes" in page  # what left
    assert 'aria-label="clinic, columns (10): 426 of 426 samples, 100 %; groups A"' in page
    assert len(page) < 1.5e6


def test_the_same_runs_give_the_same_page(dovetail, trained, tmp_path):
    dovetail("report", trained, "--out", "a.html", "-q")
    assert dovetail("report", trained, "--out", "b.html", "-q").out == ""
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()


def test_a_report_does_not_keep_a_run_from_its_folder(dovetail, trained, write_run):
    dovetail("report", trained, "-q")
    done = dovetail("train", write_run(), "--out", trained, "-q", "--overwrite")
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_two_runs_stand_side_by_side(dovetail, trained, write_run, tmp_path):
    dovetail("train", write_run(), "--out", "two", "--seed", "1", "--seed", "2", "-q")
    assert dovetail("report", "one", "two", "--out", "both.html", "-q").code == 0
    page = (tmp_path / "both.html").read_text()
    assert "2 runs: one, two" in page
    assert re.search(r"<th scope=\"col\"[^>]*>one</th><th scope=\"col\"[^>]*>two</th>", page)


def test_tables_are_read_only_when_asked_for(dovetail, trained, tmp_path):
    path = tmp_path / "one" / "run.toml"
    run = tomllib.loads(path.read_text())
    run["data"]["source"] = "SELECT * FROM 'elsewhere.csv'"
    path.write_text(tomli_w.dumps(run))
    assert dovetail("report", trained).code == 0
    page = (tmp_path / "one" / "report.html").read_text()
    assert "With --data they are read." in page
    assert dovetail("report", trained, "--data").code == 0
    page = (tmp_path / "one" / "report.html").read_text()
    assert "Not drawn, as the data cannot be read" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), r"dovetail: there is no folder .*nowhere; name a run folder"),
        ((".",), r"is no run folder: it has neither run\.toml nor"),
    ],
)
def test_what_is_no_run_is_one_sentence(dovetail, arguments, words):
    done = dovetail("report", *arguments)
    assert done.code == 2
    assert re.search(words, done.err)
    assert "Traceback" not in done.err


def test_a_page_that_cannot_be_written_is_one_sentence(dovetail, trained):
    done = dovetail("report", trained, "--out", "one/run.toml/page.html")
    assert done.code == 2
    assert "cannot write to the folder one/run.toml" in done.err


def test_few_shared_samples_are_hidden_from_a_page_to_be_handed_on(dovetail, deal, tmp_path):
    deal()
    brief = ("--set", "baselines=[]", "--set", "apfed.epochs=1", "-q")
    done = dovetail("train", "run.toml", *brief)
    assert done.code == 0, done.err

    def page_with(*options):
        done = dovetail("report", "out/run", "--data", *options, "--out", "page.html")
        assert done.code == 0, done.err
        return re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text())

    page = page_with()
    assert "groups of samples by who holds them" in page
    assert "Rows of the label owner that a partner has, too: lab 60; registry 90." in page
    page = page_with("--hide-below", 70)
    assert "too: lab fewer than 70 (hidden); registry 90." in page
    assert re.search(r"registry\s+100\s+90\s", page), page
    assert "held by" not in page  # no picture, which would tell
    toml = tmp_path / "lab.toml"
    toml.write_text(toml.read_text().replace('id = "person"', 'id = "number"'))
    page = page_with()
    assert re.search(r"lab\s+-\s+column missing", page)
