"""An ONNX file says what its model says: every learner, every method that predicts alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from learned import clinic_table, fitted_model

import dovetail as dt
from dovetail.companions.service.export import TOLERANCE, export, onnx_bytes
from dovetail.data import Regression, table_from_arrays
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.models.decisions import Decision
from dovetail.models.exported import of_bytes
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"


@pytest.fixture(scope="module")
def table():
    return clinic_table(300)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [Linear(), Boosting(), Network()], ids=lambda each: each.name)
def test_the_file_says_what_each_learner_says(tmp_path, table, learner):
    model = fitted_model(table, [learner])
    written = export(model, tmp_path / "m.onnx", check=table)
    assert written.rows == 64 + len(table)
    assert written.difference <= TOLERANCE
    loaded = dt.load(tmp_path / "m.onnx")
    assert repr(loaded) == "<ONNX model of clinic: label ill>"
    np.testing.assert_allclose(loaded.predict_proba(table), model.predict_proba(table), atol=1e-5)
    assert loaded.score(table) == pytest.approx(model.score(table), abs=1e-5)


@pytest.mark.parametrize("threshold", [0.2, 0.8])
def test_the_file_says_a_class_from_the_models_threshold_on(tmp_path, table, threshold):
    model = fitted_model(table, [Linear()])
    plain = model.predictions(table)
    decision = Decision(threshold, {"goal": "f1"}, 60, 0.5)
    model = replace(model, about={**model.about, "decision": decision.to_json()})
    assert export(model, tmp_path / "m.onnx", check=table).difference <= TOLERANCE
    loaded = dt.load(tmp_path / "m.onnx")
    values = loaded.predictions(table).values.tolist()
    assert values == np.where(plain.probabilities[:, 1] >= threshold, "yes", "no").tolist()
    assert values != plain.values.tolist()
    assert loaded.score(table) == pytest.approx(model.score(table), abs=1e-5)


def test_a_mean_of_learners_and_a_regression_are_exported_too(tmp_path, table):
    model = fitted_model(table, [Linear(), Boosting()], regression=True)
    export(model, tmp_path / "m.onnx", check=table)
    prediction = dt.load(tmp_path / "m.onnx").predictions(table)
    assert prediction.probabilities is None
    np.testing.assert_allclose(
        prediction.values, model.predictions(table).values, rtol=1e-5, atol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("regression", [False, True])
def test_a_weighted_mean_is_exported_with_its_weights(tmp_path, table, regression):
    learners = [Linear(), Boosting()]
    model = fitted_model(table, learners, regression=regression, weights=(0.9, 0.1))
    export(model, tmp_path / "m.onnx", check=table)
    prediction, expected = dt.load(tmp_path / "m.onnx").predictions(table), model.predictions(table)
    alike = fitted_model(table, learners, regression=regression).predictions(table)
    what = "values" if regression else "probabilities"
    np.testing.assert_allclose(
        getattr(prediction, what),
        getattr(expected, what),
        rtol=1e-4,
        atol=1e-3 if regression else 1e-5,
    )
    assert not np.allclose(getattr(prediction, what), getattr(alike, what), rtol=1e-4, atol=1e-3)


def test_raw_columns_go_in_by_name_and_nothing_of_dovetail_is_needed(tmp_path, table):
    model = fitted_model(table, [Linear()])
    export(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    kinds = {each.name: each.type for each in session.get_inputs()}
    assert kinds["age"] == kinds["admitted"] == "tensor(double)"
    assert kinds["job"] == "tensor(string)"
    smoker = [[1.0]] if kinds["smoker"] == "tensor(double)" else np.array([["true"]], dtype=object)
    row = {
        "age": np.array([[np.nan]]),  # missing
        "job": np.array([["astronaut"]], dtype=object),  # never seen: counts as missing
        "smoker": np.array(smoker),
        "admitted": np.array([[20089.0]]),  # 2025-01-01, in days since 1970
    }
    values, probabilities = session.run(None, row)
    frame = pd.DataFrame(
        {"age": [None], "job": [None], "smoker": [True], "admitted": [pd.Timestamp("2025-01-01")]}
    )
    expected = model.predictions(frame.astype({"age": float}))
    assert values.tolist() == expected.values.tolist()
    np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_folder",
    ["apfed/models/clinic", "apfed-strips/models/view-1", "chfl/models/party-1"],
)
def test_models_that_were_written_before_are_exported(tmp_path, model_folder):
    model = dt.load(GOLDEN / model_folder)
    assert export(model, tmp_path / "m.onnx").difference <= TOLERANCE


@pytest.mark.slow
def test_a_model_of_blocks_is_exported_with_all_or_one_of_them(tmp_path):
    folder = sorted((GOLDEN / "hyfem" / "models").iterdir())[0]
    model = dt.load(folder)
    whole = export(model, tmp_path / "m.onnx")
    one = export(model, tmp_path / "one.onnx", blocks=list(model.shapes)[:1])
    assert max(whole.difference, one.difference) <= TOLERANCE
    assert set(one.inputs) <= set(whole.inputs)
    with pytest.raises(ModelError, match="has the blocks"):
        export(model, tmp_path / "m.onnx", blocks=["nowhere"])


def test_a_file_that_differs_from_its_model_is_not_written(tmp_path, table, monkeypatch):
    model = fitted_model(table, [Linear()])
    other = fitted_model(table.iloc[:150], [Linear()])
    content = onnx_bytes(other)
    monkeypatch.setattr("dovetail.companions.service.export.onnx_bytes", lambda *_, **__: content)
    with pytest.raises(ModelError, match="differs from the model of party 'clinic'"):
        export(model, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_a_loaded_file_refuses_what_its_model_refuses(tmp_path, table):
    model = fitted_model(table, [Linear()])
    export(model, tmp_path / "m.onnx")
    loaded = dt.load(tmp_path / "m.onnx")
    strange = table.assign(job="astronaut")
    with pytest.raises(DataError, match="training did not see, such as 'astronaut'"):
        loaded.predict(strange)
    assert len(loaded.predict(strange, allow_unseen=True)) == len(table)
    with pytest.raises(DataError, match=r"lacks the columns \['age'\]"):
        loaded.predict(table.drop(columns="age"))


def test_foreign_files_and_names_are_refused_in_a_sentence(tmp_path, table):
    model = fitted_model(table, [Linear()])
    with pytest.raises(ConfigError, match=r"ends in .onnx, got .*m.pt"):
        export(model, tmp_path / "m.pt")
    with pytest.raises(ConfigError, match="there is no folder"):
        export(model, tmp_path / "nowhere" / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    with pytest.raises(ModelError, match="no ONNX file that onnxruntime runs"):
        dt.load(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="there is no file"):
        dt.load(tmp_path / "absent.onnx")


def test_a_strangers_file_has_no_weights_of_files_beside_it(tmp_path, monkeypatch):
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    monkeypatch.chdir(tmp_path)
    outside = onnx.TensorProto(name="w", data_type=1, dims=[8], data_location=1)
    outside.external_data.add(key="location", value="secret.bin")
    inputs = [onnx.helper.make_tensor_value_info("x", 1, [8])]
    outputs = [onnx.helper.make_tensor_value_info("y", 1, [8])]
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", inputs, outputs, [outside])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    made.ir_version = 8
    with pytest.raises(ModelError, match="External data"):
        of_bytes(made.SerializeToString(), where="m.onnx")


def test_a_column_that_is_called_as_an_output_is_no_trouble():
    table = pd.DataFrame(
        {"prediction": [0.0, 1.0, 2.0, 3.0] * 10, "y": ["a", "b", "a", "b"] * 10, "p": range(40)}
    )
    model = fitted_model(table, [Linear()], label="y")
    written = of_bytes(onnx_bytes(model), where="memory")
    assert written.outputs == ("dovetail_prediction", "probabilities")


def test_the_command_writes_the_file_and_says_so(tmp_path, capsys, table):
    from dovetail.companions.service.export_command import export as command

    fitted_model(table, [Linear()]).save(tmp_path / "model")
    table.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "m.onnx"
    command(tmp_path / "model", out, check=tmp_path / "rows.parquet", as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["bytes"] == out.stat().st_size
    assert report["checked_rows"] == 364
    assert report["difference"] <= TOLERANCE


def test_thresholds_are_kept_exact_for_float32():
    from dovetail.companions.service.graph import _below

    thresholds = np.array([0.1, 1 / 3, -0.7, 1e-40, 2.0])
    below = _below(thresholds)
    x = np.concatenate([below, np.nextafter(below, np.float32(np.inf))])
    for threshold, kept in zip(thresholds, below, strict=True):
        assert ((x.astype(np.float64) <= threshold) == (x <= kept)).all()


def test_a_regression_keeps_its_unit():
    table = table_from_arrays("t", {"a": np.arange(50.0), "y": np.arange(50.0) * 1e6})
    model = fitted_model(table, [Linear()], label="y", regression=True)
    assert isinstance(model.task, Regression)
    prediction = of_bytes(onnx_bytes(model), where="memory").predictions(table)
    np.testing.assert_allclose(prediction.values, model.predictions(table).values, rtol=1e-5)
    assert torch.tensor(prediction.values).dtype == torch.float64
