"""A table with a column of text, dates and a code: trained, saved, exported, served, inspected."""

import asyncio
import sys

import httpx
import numpy as np
import pandas as pd
import pytest

import dovetail as dt
from dovetail.companions.service.application import Limits, Service
from dovetail.companions.service.export import export
from dovetail.companions.service.served import Shelf
from dovetail.errors import ConfigError

TOPICS = (
    ["cough", "fever", "cold", "sneeze", "throat"],
    ["knee", "ankle", "wrist", "elbow", "fracture"],
)


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(0)
    ward = rng.integers(0, 2, 240)
    words = [" ".join(rng.choice(TOPICS[each], 5)) for each in ward]
    return pd.DataFrame(
        {
            "patient": np.arange(240),
            "age": rng.normal(50, 10, 240),
            "notes": [f"Complains of {each}." for each in words],
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, 240), "D"),
            "doctor": [f"Dr {each}" for each in rng.integers(0, 150, 240)],
            "ward": np.where(ward, "surgery", "medicine"),
        }
    )


@pytest.fixture(scope="module")
def parties(visits):
    lab = pd.DataFrame(
        {"patient": visits.patient, "crp": np.random.default_rng(1).normal(size=240)}
    )
    encode = {"doctor": {"kind": "frequency"}}
    return [
        dt.Party("clinic", visits, id="patient", label="ward", encode=encode),
        dt.Party("lab", lab, id="patient"),
    ]


@pytest.fixture(scope="module")
def model(parties, tmp_path_factory):
    run = dt.fit(dt.Method("linear"), parties, test=0.3, quiet=True)
    folder = tmp_path_factory.mktemp("texts") / "clinic"
    run.models["clinic"].save(folder)
    return dt.load(folder)


def test_a_label_that_stands_in_the_text_alone_is_learned_and_predicted(model, visits):
    rng = np.random.default_rng(7)
    ward = rng.integers(0, 2, 100)
    new = visits[:100].assign(notes=[f"{' and '.join(rng.choice(TOPICS[w], 3))}" for w in ward])
    said = model.predict(new) == "surgery"
    assert (said == ward.astype(bool)).mean() > 0.95
    assert np.isfinite(model.predict_proba(new.assign(notes=None))).all()


@pytest.mark.slow
def test_the_onnx_file_and_the_service_read_the_same_texts(model, visits, tmp_path):
    new = visits[["age", "notes", "seen", "doctor"]][:50].assign(doctor="Dr Nobody")
    expected = model.predict_proba(new)
    export(model, tmp_path / "clinic.onnx", check=new)
    np.testing.assert_allclose(
        dt.load(tmp_path / "clinic.onnx").predict_proba(new), expected, atol=1e-5
    )
    model.save(tmp_path / "clinic")
    service = Service(Shelf({"m": tmp_path / "clinic"}, print), Limits(), watch_s=0)
    rows = new.assign(seen=new.seen.astype(str)).to_dict(orient="records")

    async def ask():
        transport = httpx.ASGITransport(service.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            schema = (await client.get("/models/m/schema")).json()
            return schema, (await client.post("/models/m/predict", json={"rows": rows})).json()

    schema, answer = asyncio.run(ask())
    assert schema["properties"]["notes"]["type"] == ["string", "null"]
    said = [each["prediction"] for each in answer["predictions"]]
    assert said == model.predict(new).tolist()


@pytest.mark.slow
def test_inspect_says_how_each_column_is_read(parties):
    found = dt.inspect(parties, quiet=True)
    (clinic, lab) = found.to_json()["parties"]
    by_type = "the type of the source is"
    for column, words, rule in (
        ("age", "number", f"{by_type} number"),
        ("notes", "text: hashed words, in 32 features", "not all are numbers, dates or"),
        ("seen", "date: days, place in the year and week", f"{by_type} date"),
        ("doctor", "how frequent each value is", "the party's file says so (Dr "),
    ):
        assert clinic["read"][column].startswith(f"{words}; {rule}")
    assert lab["read"]["crp"].startswith(f"number; {by_type} number (")
    assert "clinic reads notes (Complains of" in str(found)


@pytest.mark.slow
def test_shares_go_to_shap_with_the_values_they_are_about(model, visits):
    shap = pytest.importorskip("shap")
    explained = model.explain(visits[:30], to="shap")
    assert isinstance(explained, shap.Explanation)
    assert explained.shape == (30, 4)
    assert explained.feature_names == ["age", "notes", "seen", "doctor"]
    assert explained.data[0, 1] == visits.notes[0]
    ours = model.explain(visits[:30])
    np.testing.assert_allclose(
        explained.base_values + explained.values.sum(axis=1), ours.outputs, rtol=0.02, atol=0.02
    )


def test_without_shap_a_sentence_says_what_to_install(model, visits, monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ConfigError, match="pip install shap"):
        model.explain(visits[:30], to="shap")


@pytest.mark.slow
def test_curves_are_a_line_an_epoch_of_each_variant(parties):
    method = dt.APFed("contrastive", epochs=3, patience=None)
    run = dt.fit(method, parties, test=0.3, baselines=["alone"], seeds=2, quiet=True)
    curves = run.curves()
    assert set(curves.variant) == {"apfed-c", "alone"}
    assert set(curves.seed) == {0, 1}
    one = curves[(curves.variant == "apfed-c") & (curves.seed == 1)]
    assert one.number.tolist() == [1, 2, 3]
    assert one.accuracy.between(0, 1).all()


def test_what_moves_a_prediction_is_told_by_column_not_by_feature(model, visits):
    explained = model.explain(visits)
    assert explained.importance[0].column == "notes"
    assert "notes" not in explained.dependence
