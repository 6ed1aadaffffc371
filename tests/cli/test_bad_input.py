"""Whatever is wrong with a run, ``dovetail train`` says so in one sentence and ends in 2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COLUMNS = (
    'kind = "columns"\nactive = "clinic"\nparties = { clinic = ["mean *"], lab = ["worst *"] }'
)

#: What is wrong -> a text of the run file, what stands there instead, and the words that tell.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "two ways to test": (
        "test = 0.25",
        'test = 0.25\nsplit_column = "split"',
        r"data: give one of test and split_column",
    ),
    "unknown key": (
        "head = [8]",
        "heda = [8]",
        r"run\.toml: unknown key 'apfed\.heda'; did you mean 'head'\?",
    ),
    "unknown key at the top": (
        "evaluate_every",
        "evaluate_evry",
        r"run\.toml: unknown key 'evaluate_evry'; did you mean 'evaluate_every'\?",
    ),
    "unknown key of a party": (
        "[passive]\n",
        "[passive]\nlab.los = 1\n",
        r"run\.toml, \[passive\.lab\]: unknown key 'los'; did you mean 'loss'\?",
    ),
    "unknown key of a partition": (
        'active = "clinic"',
        'activ = "clinic"',
        r"unknown key 'data\.partition\.activ'; did you mean 'active'\?",
    ),
    "unknown key of an encoder": (
        "encoder = [8]",
        "encoder = { channels = [3], kernel = [1], strides = [1] }",
        r"unknown key 'apfed\.encoder\.kernel'; did you mean 'kernels'\?",
    ),
    "unknown key like no other": ("head = [8]", "zzz = 1", "known keys: .*learning_rate"),
    "missing key": ('source = "breast-cancer"\n', "", r"run\.toml: the key 'data\.source' is miss"),
    "missing key of a partition": (
        'parties = { clinic = ["mean *"], lab = ["worst *"] }\n',
        "",
        r"the key 'data\.partition\.parties' is missing",
    ),
    "no kind of partition": (
        'kind = "columns"\n',
        "",
        r"the key 'data\.partition\.kind' is missing",
    ),
    "unknown kind of partition": (
        'kind = "columns"',
        'kind = "rows"',
        r"data\.partition\.kind: expected one of 'strips', 'columns'.*, got 'rows'",
    ),
    "unknown method": (
        '"apfed-c"',
        '"apfedc"',
        r"method: input should be .*'apfed-c'.* 'apfedc'; did you mean 'apfed-c'",
    ),
    "unknown encoder": (
        "encoder = [8]",
        'encoder = "table-5"',
        r"apfed\.encoder: input should be 'table-3' or 'table-4', got 'table-5'",
    ),
    "a mistyped encoder": ("encoder = [8]", 'encoder = "tabel-3"', "did you mean 'table-3'"),
    "a mistyped baseline": (
        'baselines = ["alone"]',
        'baselines = ["tvfl", "alnoe"]',
        r"baselines\.1: input should be .*'alnoe'; did you mean 'alone'\?",
    ),
    "a mistyped kind of partition": (
        'kind = "columns"',
        'kind = "column"',
        r"data\.partition\.kind: expected one of .*'column'; did you mean 'columns'\?",
    ),
    "fractions of a unit": (
        "encoder = [8]",
        "encoder = [8.5]",
        r"apfed\.encoder\.0: input should be a valid integer.* got 8\.5",
    ),
    "no encoder": ("encoder = [8]", "encoder = []", r"apfed\.encoder: an encoder needs one"),
    "a party's empty encoder": (
        "[passive]\nencoder = [8]",
        "[passive.lab]\nencoder = [0]",
        r"\[passive\.lab\]: encoder: an encoder needs one or more positive widths, got \(0,\)",
    ),
    "a negative head": ("head = [8]", "head = [-8]", r"\[apfed\]: a head's .* got \(-8,\)"),
    "images for columns": (
        "encoder = [8]",
        'encoder = "table-3"',
        r"needs images of shape \(C, H, W\), got rows of shape \(10,\); columns take widths",
    ),
    "another type": ("epochs = 2", 'epochs = "two"', r"apfed\.epochs: .*integer.*, got 'two'"),
    "out of range": ("epochs = 2", "epochs = 0", r"apfed\.epochs: .*greater than.*, got 0"),
    "no table": ("[data]", "recipes = 3\n[data]", r"recipes: input should be .*, got 3"),
    "seed and seeds": ("[data]", "seed = 1\nseeds = [2]\n[data]", "give seed or seeds, not both"),
    "a seed twice": ("[data]", "seeds = [2, 2]\n[data]", r"different numbers, got \[2, 2\]"),
    "no such file": (
        'source = "breast-cancer"',
        'source = "patients.csv"',
        r"there is no file 'patients\.csv'.* Built in are breast-cancer",
    ),
    "no such label": (
        "test = 0.25",
        'test = 0.25\nlabel = "diagnose"',
        r"no column 'diagnose' in breast-cancer; did you mean 'diagnosis'\?",
    ),
    "no such column": ('"mean *"', '"meen *"', r"matches 'meen \*'; did you mean 'mean \*'\?"),
    "no column left": ('"worst *"', '"worst *", "-worst *"', r"party 'lab' has no columns"),
    "no such active party": (
        'active = "clinic"',
        'active = "clinc"',
        r"active party 'clinc' is none of the parties; did you mean 'clinic'\?",
    ),
    "a party that is not there": (
        "[passive]\n",
        "[passive.labb]\nlearning_rate = 1\n[passive]\n",
        r"run\.toml: \[passive\.labb\] is no party of this run; passive parties are \['lab'\]",
    ),
    "a weight for a party that is not there": (
        "epochs = 2",
        "epochs = 2\ntrade_off = { lab = 1.0, shop = 1.0 }",
        r"run\.toml: apfed\.trade_off names 'shop', which is no passive party.*\['lab'\]",
    ),
    "a weight too few": (
        "epochs = 2",
        "epochs = 2\ntrade_off = {}",
        r"trade_off names \[\] but not party 'lab'; add its weight",
    ),
    "widths that differ": (
        "[passive]\nencoder = [8]",
        "[passive]\nencoder = [9]",
        r"party 'lab': .* the active party's is 8, that of this .* another; change .*width",
    ),
    "no test rows": ("test = 0.25\n", "", r"no test rows of its own: set data\.test to a share"),
    "a test share of more than all": ("test = 0.25", "test = 1.5", r"data\.test: .*less than 1"),
    "too many labels asked for": (
        "test = 0.25",
        "test = 0.25\nlabels = 500",
        r"labels is 500, but only 426 training rows of party 'clinic' have a label; ask",
    ),
    "too many rows asked for": (
        "test = 0.25",
        "test = 0.25\nrows = 500",
        r"cannot take 500 rows of breast-cancer, which has 426; ask for 1 to 426",
    ),
    "nothing shared": (
        'active = "clinic"',
        'active = "clinic"\noverlap = 0.0',
        r"overlap must be a share of the rows in \(0, 1\], got 0\.0 for 'lab'",
    ),
    "a device that is not there": (
        "[data]",
        'device = "cuda:99"\n[data]',
        r"there is no device 'cuda:99' here; there is \['cpu'",
    ),
    "a device that is none": ("[data]", 'device = "gpuu"\n[data]', r"there is no device 'gpuu'"),
    "a device without values": ("[data]", 'device = "meta"\n[data]', r"there is no device 'meta'"),
    "a rate that is too high": (
        "epochs = 2",
        "epochs = 2\nlearning_rate = 1e30",
        r"party 'clinic': its loss is \w+ in epoch 1, step 2; lower its learning_rate \(1e\+30\)",
    ),
    "a rate that is too high for one step": (
        "epochs = 2\nsteps_per_epoch = 3",
        "epochs = 1\nsteps_per_epoch = 1\nlearning_rate = 1e30",
        r"party 'clinic': .* outputs are not finite on \d+ of 143 test rows; lower the learning",
    ),
    "strips of a table": (
        COLUMNS,
        'kind = "strips"\nviews = 2',
        "breast-cancer is a table; strips cut images",
    ),
    "a strip too far": (
        f'"breast-cancer"\ntest = 0.25\n\n[data.partition]\n{COLUMNS}',
        '"digits-images"\ntest = 0.25\n\n[data.partition]\nkind = "strips"\nviews = 2\nactive = 3',
        "active must be a place from 1 to 2",
    ),
    "columns of images": (
        '"breast-cancer"',
        '"digits-images"',
        "digits-images holds images; columns splits tables",
    ),
}


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_sentence(
    dovetail: Any, write_run: Any, old: str, new: str, words: str
) -> None:
    write_run((old, new))
    assert_refused(dovetail("train", "run.toml", "--out", "out", "--quiet"), words)
    assert not Path("out/result.json").exists()


def assert_refused(done: Any, words: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert re.search(words, done.err), done.err
    assert done.err.startswith("dovetail: ")
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


def test_classic_learning_at_a_rate_that_is_too_high_names_the_party(
    dovetail: Any, write_run: Any
) -> None:
    write_run(('"apfed-c"', '"tvfl"'), ("epochs = 2", "epochs = 2\nlearning_rate = 1e30"))
    words = r"party '\w+': its (loss is|codes are) .*lower (its|the) learning_rate"
    assert_refused(dovetail("train", "run.toml", "--quiet"), words)


def test_a_device_that_is_not_there_is_told_before_data_are_read(
    dovetail: Any, write_run: Any
) -> None:
    write_run(('source = "breast-cancer"', 'source = "nowhere.csv"'))
    done = dovetail("train", "run.toml", "--device", "cuda:99")
    assert_refused(done, r"there is no device 'cuda:99' here; there is \['cpu'")
    assert not Path("out").exists()


def test_a_file_that_is_not_there_or_no_toml_is_named(dovetail: Any, tmp_path: Path) -> None:
    assert_refused(dovetail("train", "nowhere.toml"), r"there is no file nowhere\.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    assert_refused(dovetail("train", "bad.toml"), r"bad\.toml is not valid TOML: .* line 1")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    assert_refused(dovetail("train", "bad.toml"), r"bad\.toml cannot be read")
    expected = r"\. is a folder, and a run file or party file is expected; "
    assert_refused(dovetail("train", "."), expected + "name a file in it")
    (tmp_path / "run.toml").touch()
    assert_refused(dovetail("train", "."), expected + r"did you mean run\.toml\?")
    (tmp_path / "bad.toml").write_text("data = 3")
    assert_refused(dovetail("train", "bad.toml"), r"bad\.toml: ")


def test_a_recipe_with_a_mistake_is_named_whether_asked_for_or_not(
    dovetail: Any, write_run: Any
) -> None:
    mistake = "[recipes.cpu]\napfed.epoch = 3\n[passive]"
    write_run(("[passive]", mistake))
    for arguments in ((), ("--recipe", "cpu")):
        words = r"run\.toml, recipe 'cpu': unknown key 'apfed\.epoch'; did you mean 'epochs'\?"
        assert_refused(dovetail("train", "run.toml", *arguments), words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apfed.epochs", "--set takes key=value, for example apfed.epochs=5; got 'apfed.epochs'"),
        ("=3", "--set takes key=value"),
        ("apfed.epoch=3", "unknown key 'apfed.epoch'; did you mean 'epochs'"),
        ("apfed=3", "apfed: input should be a table of keys, got 3"),
        ("apfed.epochs=", "apfed.epochs: input should be a valid integer"),
        ("data=x", "data: input should be a table of keys, got 'x'"),
        ("seeds=all", "seeds: input should be a list, got 'all'"),
    ],
)
def test_a_setting_with_a_mistake_is_named(
    dovetail: Any, write_run: Any, text: str, words: str
) -> None:
    write_run()
    assert_refused(dovetail("train", "run.toml", "--set", text), re.escape(words))


def local_table(tmp_path: Path, **columns: Any) -> None:
    from dovetail import data as dd

    numbers = np.arange(20.0)
    given = {"mean 1": numbers, "worst 1": -numbers, "sick": np.arange(20) % 2, **columns}
    dd.write_table(tmp_path / "own.csv", given)


SOURCE = ('source = "breast-cancer"', 'source = "own.csv"\nlabel = "sick"')


def test_a_label_of_one_class_is_named(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    local_table(tmp_path, sick=np.ones(20, dtype=int))
    write_run(SOURCE)
    assert_refused(dovetail("train", "run.toml"), r"label 'sick' has one class only \(1\)")


def test_a_label_that_is_text_is_no_number(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    local_table(tmp_path, sick=np.array(["a", "b"] * 10, dtype=object))
    write_run(SOURCE, ("test = 0.25", 'test = 0.25\ntask = "regression"'))
    words = r"label 'sick' is text \('\w'\); a regression needs"
    assert_refused(dovetail("train", "run.toml"), words)


def test_an_id_that_repeats_is_named(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    local_table(tmp_path, number=np.arange(20) // 2)
    write_run(SOURCE, ("test = 0.25", 'test = 0.25\nid = "number"'))
    assert_refused(dovetail("train", "run.toml"), r"column 'number' of .*own\.csv: 10 of 20 ids")


def test_rows_with_a_label_that_nobody_else_has_are_no_classic_learning(
    dovetail: Any, write_run: Any
) -> None:
    write_run(
        ('"apfed-c"', '"tvfl"'),
        ("test = 0.25", "test = 0.25\nlabels = 1"),
        ('active = "clinic"', 'active = "clinic"\noverlap = 0.001'),
    )
    words = "no row of 'clinic' has both a label and a match at every party"
    assert_refused(dovetail("train", "run.toml", "-q"), words)


def test_a_folder_of_other_files_is_left_alone(
    dovetail: Any, write_run: Any, tmp_path: Path
) -> None:
    write_run()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    words = r"mine holds other files; name an empty folder with --out"
    assert_refused(dovetail("train", "run.toml", "--out", "mine"), words)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    words = r"letter\.txt is a file; name a folder with --out"
    assert_refused(dovetail("train", "run.toml", "--out", "mine/letter.txt"), words)
    words = r"cannot write to the folder mine/letter\.txt/run: Not a directory; allow it, or name"
    assert_refused(dovetail("train", "run.toml", "--out", "mine/letter.txt/run", "-q"), words)


def test_the_run_file_itself_is_left_alone(dovetail: Any, write_run: Any, tmp_path: Path) -> None:
    text = write_run().read_text()
    words = r"\. holds the run file run\.toml itself, which its run would overwrite; name another"
    assert_refused(dovetail("train", "run.toml", "--out", "."), words)
    assert (tmp_path / "run.toml").read_text() == text


def test_a_share_to_test_on_is_refused_where_the_source_has_test_rows(
    dovetail: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        f"x_{part}": rng.integers(256, size=(12, 8, 8), dtype=np.uint8)
        for part in ("train", "test")
    }
    np.savez(tmp_path / "images.npz", **arrays, y_train=np.arange(12) % 2, y_test=np.arange(12) % 2)
    run = (
        'method = "alone"\n[data]\nsource = "images.npz"\ntest = 0.2\n'
        'partition = { kind = "strips", views = 2 }\n'
    )
    (tmp_path / "run.toml").write_text(run)
    words = r"images\.npz has 12 test rows of its own; leave data\.test out"
    assert_refused(dovetail("train", "run.toml", "-q"), words)
    (tmp_path / "run.toml").write_text(run.replace("test = 0.2", "max_categories = 5"))
    words = "data: max_categories is for tables; images are cut into strips"
    assert_refused(dovetail("train", "run.toml", "-q"), words)
