"""A student of TabICL: what it learns, what is kept of its teacher, and what is refused.

The teacher is small and untrained. Where a test asks what its student learnt, a logistic
regression answers in its place: convex, and so the same on every processor.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import dovetail as dt
from dovetail.errors import ConfigError
from dovetail.models.learners import LEARNERS, NO_FOLD, Rows, choice, hard_targets, in_context
from dovetail.models.learners.in_context import InContext
from dovetail.models.learners.network import Network
from dovetail.models.losses import CLASSES, Poisson, SquaredError

SIZES: dict[str, Any] = {
    "embed_dim": 16, "col_num_blocks": 1, "col_nhead": 2, "col_num_inds": 4, "row_num_blocks": 1,
    "row_nhead": 2, "row_num_cls": 2, "icl_num_blocks": 2, "icl_nhead": 2, "ff_factor": 1,
}  # fmt: skip


def people(rows: int = 160) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    age, blood, noise = rng.normal(size=(3, rows))
    ill = age - blood + 0.3 * noise > 0
    return pd.DataFrame({"patient": np.arange(rows), "age": age, "blood": blood, "ill": ill})


def clinic(frame: pd.DataFrame, **tabicl: Any) -> dt.Party:
    more = {"tabicl": tabicl} if tabicl else {}
    return dt.Party("clinic", frame, id="patient", label="ill", **more)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of two classes that were never trained: real in kind, and of no use."""
    pytest.importorskip("tabicl")
    from tabicl._model.tabicl import TabICL

    torch.manual_seed(0)
    sizes = {**SIZES, "max_classes": 2}
    file = tmp_path_factory.mktemp("weights") / "small.ckpt"
    torch.save({"config": sizes, "state_dict": TabICL(**sizes).state_dict()}, file)
    return file


@pytest.fixture
def plain_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher that tells classes apart by the plane that fits the rows it is shown."""
    tabicl = pytest.importorskip("tabicl")
    real = tabicl.TabICLClassifier.fit

    def fit(self: Any, x: np.ndarray, y: np.ndarray) -> Any:
        self.plane = LogisticRegression().fit(x, y)
        return real(self, x, y)

    monkeypatch.setattr(tabicl.TabICLClassifier, "fit", fit)
    monkeypatch.setattr(
        tabicl.TabICLClassifier, "predict_proba", lambda self, x: self.plane.predict_proba(x)
    )


def a_plane(seed: int) -> tuple[torch.Tensor, Rows]:
    """600 rows, and 24 of them with the side of a plane that each is on."""
    x = torch.randn(600, 3, generator=torch.manual_seed(seed))
    y = (x[:24] @ torch.tensor([1.0, -1.0, 0.0]) > 0).long()
    targets = hard_targets(y, 2, regression=False)
    return x, Rows(x[:24], targets, torch.arange(24) % 3, loss=CLASSES)


@pytest.mark.trained
@pytest.mark.usefixtures("plain_teacher")
def test_a_student_says_what_its_teacher_showed_it(weights: Path) -> None:
    x, rows = a_plane(seed=1)
    fitted = InContext(weights, "ours").fit(rows, seed=0, encode_on=x[:400])
    teacher = LogisticRegression().fit(rows.x_NF, rows.targets_NC.argmax(dim=1))
    taught = torch.from_numpy(teacher.predict(x[400:].numpy()))
    said = fitted.outputs(x[400:]).argmax(dim=1)
    assert (said == taught).float().mean() > 0.9  # 3 tables, 4 seeds: 0.975 at least
    assert fitted.by_fold(x[400:]).shape == (3, 200, 2)
    assert not fitted.held_out_NC.isnan().any()
    # Only the student is kept: what is saved is built without the teacher.
    built = fitted.spec.build()
    built.load_state_dict(fitted.network.state_dict())
    assert torch.equal(built.eval()(x), fitted.outputs(x))
    assert "tabicl" not in str(fitted.spec.to_json())
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert fitted.settings["weights"] == digest


def test_a_teacher_is_asked_with_its_weights_and_answers_in_order_of_classes(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rows = a_plane(seed=1)
    learnt: list[Rows] = []

    def fit_each(learner: Network, rows_of_folds: list[Rows], **more: Any) -> list[Any]:
        learnt.extend(rows_of_folds)
        return choice.fit_each(learner, rows_of_folds, **more)

    monkeypatch.setattr(in_context, "fit_each", fit_each)
    InContext(weights, "ours", label_share=0).fit(rows, seed=0)
    tabicl = pytest.importorskip("tabicl")
    for fold, taught in enumerate(learnt):
        shown = rows.folds_N != fold
        teacher = tabicl.TabICLClassifier(model_path=weights, random_state=0, device="cpu")
        y = rows.targets_NC[shown].argmax(dim=1)
        teacher.fit(rows.x_NF[shown].numpy(), y.numpy())
        assert teacher.classes_.tolist() == [0, 1]
        says = torch.from_numpy(teacher.predict_proba(taught.x_NF.numpy()))
        torch.testing.assert_close(taught.targets_NC, says.float())


def test_no_teacher_of_a_fold_is_shown_its_labels(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray] = []
    import tabicl

    real = tabicl.TabICLClassifier.fit

    def fit(self: Any, x: np.ndarray, y: np.ndarray) -> Any:
        shown.append(x)
        return real(self, x, y)

    monkeypatch.setattr(tabicl.TabICLClassifier, "fit", fit)
    x = torch.randn(30, 3)
    y = (x[:, 0] > 0).long()
    folds = torch.where(torch.arange(30) < 20, torch.arange(30) % 2, NO_FOLD)
    rows = Rows(x, hard_targets(y, 2, regression=False), folds)
    InContext(weights, "ours").fit(rows, seed=0)
    for fold, rows_shown in enumerate(shown):
        held = x[folds == fold].numpy()
        assert not (rows_shown[:, None] == held[None]).all(axis=2).any()
        assert len(rows_shown) == 20
    assert len(shown) == 2


@pytest.mark.trained
@pytest.mark.usefixtures("plain_teacher", "brief_learners")
def test_a_clinic_whose_file_names_weights_has_one_learner_more(
    weights: Path, tmp_path: Path
) -> None:
    frame = people()
    named = clinic(frame, weights=str(weights), weights_licence="BSD-3-Clause")
    lab = dt.Party("lab", people()[["patient", "blood"]], id="patient")
    run = dt.fit(dt.APFed(), [named, lab], test=0.25, quiet=True)
    scores = run.result["baselines"]
    assert scores["tabicl"]["auc"] > 0.9  # seeds 0 to 2: 0.977
    assert {*LEARNERS, "tabicl", "joint"} <= set(scores)
    assert "student of TabICL" in run.report(tmp_path / "r.html").read_text()
    model = run.models["clinic"]
    again = dt.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


@pytest.mark.parametrize(("regression", "words"), [(True, "of classes"), (False, "of numbers")])
def test_weights_of_the_other_kind_are_refused(
    regression: bool, words: str, weights: Path, tmp_path: Path
) -> None:
    from tabicl._model.tabicl import TabICL

    file = weights
    if not regression:
        sizes = {**SIZES, "max_classes": 0, "num_quantiles": 9}
        file = tmp_path / "numbers.ckpt"
        torch.save({"config": sizes, "state_dict": TabICL(**sizes).state_dict()}, file)
    x = torch.randn(12, 2)
    loss = SquaredError() if regression else CLASSES
    targets = x[:, :1] if regression else hard_targets((x[:, 0] > 0).long(), 2, regression=False)
    with pytest.raises(ConfigError, match=words):
        InContext(file, "ours").fit(Rows(x, targets, torch.arange(12) % 2, loss=loss), seed=0)


def test_files_that_are_no_weights_are_refused(tmp_path: Path, weights: Path) -> None:
    x = torch.randn(12, 2)
    rows = Rows(x, hard_targets((x[:, 0] > 0).long(), 2, regression=False), torch.arange(12) % 2)
    bad = tmp_path / "bad.ckpt"
    torch.save({"config": {}, "state_dict": {"x": pd.DataFrame()}}, bad)  # code, which is not run
    junk = tmp_path / "junk.ckpt"
    junk.write_bytes(b"no weights")
    for file in (bad, junk):
        with pytest.raises(ConfigError, match="has no weights that tabicl can use here"):
            InContext(file, "ours").fit(rows, seed=0)


def test_labels_that_are_neither_classes_nor_numbers_are_refused(tmp_path: Path) -> None:
    rows = Rows(torch.randn(9, 2), torch.rand(9, 1), torch.arange(9) % 2, loss=Poisson())
    with pytest.raises(ConfigError, match="teaches a class or a number"):
        InContext(tmp_path / "none.ckpt", "ours").fit(rows, seed=0)


def test_whoever_lacks_the_package_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tabicl", None)
    x = torch.randn(9, 2)
    rows = Rows(x, hard_targets((x[:, 0] > 0).long(), 2, regression=False), torch.arange(9) % 2)
    with pytest.raises(ConfigError, match=r"pip install 'dovetail-fl\[tabicl\]'"):
        InContext(tmp_path / "none.ckpt", "ours").fit(rows, seed=0)


@pytest.mark.parametrize("licence", ["CC-BY-NC-4.0", "Prior Labs, non-commercial", "research only"])
def test_a_licence_that_forbids_the_stated_use_is_refused(licence: str, tmp_path: Path) -> None:
    file = tmp_path / "small.ckpt"
    file.write_bytes(b"weights")
    stated = {"weights": str(file), "weights_licence": licence}
    with pytest.raises(ConfigError, match='are not for commercial use, and use is "commercial"'):
        clinic(people(), **stated)
    assert clinic(people(), **stated, use="non-commercial").name == "clinic"
    assert clinic(people(), **{**stated, "weights_licence": "BSD-3-Clause"}).name == "clinic"


def test_weights_that_are_not_there_are_refused_and_never_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.ckpt, which is no file; nothing is downloaded"):
        clinic(people(), weights=str(tmp_path / "none.ckpt"), weights_licence="BSD-3-Clause")
