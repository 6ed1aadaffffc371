"""The service's answers: what is right, what is refused, and that nothing breaks it."""

import asyncio
import io
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request

import forked
import httpx
import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from fuzzing import fire
from learned import clinic_table, fitted_model

from dovetail.companions.service.application import Limits, Service
from dovetail.companions.service.bodies import read_body
from dovetail.companions.service.served import Shelf
from dovetail.companions.service.serving import Address, named
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.models import load
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.sklearn import SoloClassifier

ROW = {"age": 51.5, "job": "cook", "smoker": True, "admitted": "2024-05-01"}


@pytest.fixture(scope="module")
def table():
    return clinic_table(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("served") / "clinic"
    fitted_model(table, [Linear(), Boosting()]).save(path)
    return path


def service(paths, limits=None, warnings=None):
    shelf = Shelf(paths, (warnings if warnings is not None else []).append)
    return Service(shelf, limits or Limits(rows=200, body=200_000), watch_s=0)


def answers_of(made, what):
    """What ``what(client)`` gives, asked of the service in this process."""

    async def ask():
        transport = httpx.ASGITransport(made.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await what(client)

    return asyncio.run(ask())


def raw(table):
    return table.drop(columns=["ill", "cost"])


def probabilities(reply):
    return np.array([list(each["probabilities"].values()) for each in reply.json()["predictions"]])


def test_json_csv_and_parquet_are_answered_as_the_model_predicts(folder, table):
    rows = raw(table).head(60)
    expected = load(folder).predict_proba(rows)
    as_json = json.loads(rows.to_json(orient="records", date_format="iso"))
    parquet = io.BytesIO()
    rows.to_parquet(parquet)
    bodies = [
        ("application/json", json.dumps({"rows": as_json}).encode()),
        ("text/csv", rows.to_csv(index=False).encode()),
        ("application/vnd.apache.parquet", parquet.getvalue()),
    ]

    async def ask(client):
        for kind, body in bodies:
            reply = await client.post("/predict", headers={"content-type": kind}, content=body)
            assert reply.status_code == 200, reply.text
            np.testing.assert_allclose(probabilities(reply), expected, atol=2e-6)

    answers_of(service({"clinic": folder}), ask)


def test_a_body_that_unpacks_to_gigabytes_is_refused_before_it_does(folder, table):
    """One text in each of 20,000 rows is kept once in the file, and would be once a row here."""
    rows = raw(table).head(1)
    text = pyarrow.array(["a" * 200_000])
    long = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 20_000, "int32"), text)
    columns = {name: pyarrow.array([rows[name].iloc[0]] * 20_000) for name in rows}
    parquet = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({**columns, "job": long}), parquet)
    assert len(parquet.getvalue()) < 20_000

    async def ask(client):
        kind = {"content-type": "application/vnd.apache.parquet"}
        return await client.post("/predict", headers=kind, content=parquet.getvalue())

    reply = answers_of(service({"clinic": folder}, Limits(rows=20_000)), ask)
    assert reply.status_code == 422
    assert "texts take 4000000000 bytes unpacked" in reply.json()["error"]


def test_a_body_of_far_more_columns_than_the_model_has_is_refused_before_it_is_read():
    """260 kB of CSV with 30,000 columns take 12 s of processor time, and more take far more."""
    names = [f"c{number}" for number in range(1100)]
    parquet = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: [1.0] for name in names}), parquet)
    wide = ",".join(names).encode()
    for body, suffix in (
        (parquet.getvalue(), ".parquet"),
        (wide + b"\n" + wide, ".csv"),
        (b"one\n" + wide.replace(b",", b";"), ".csv"),  # DuckDB looks for the header
    ):
        with pytest.raises(DataError, match=r"the body has 1.* columns, and the model 1; send"):
            read_body(body, suffix, most_rows=10, columns=["c1"])


def test_columns_that_the_model_does_not_have_are_not_read():
    body = b"age,other\n1,2\n"
    read = read_body(body, ".csv", most_rows=10, columns=["age"])
    assert read.column("age").values.tolist() == [1]
    with pytest.raises(KeyError):
        read.column("other")


def test_columns_that_the_model_does_not_have_are_ignored_and_named_in_any_kind_of_body(folder):
    rows = [{**ROW, "name": "Ada"}, {**ROW, "ward": 7}]
    frame = pd.DataFrame(rows)
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    csv = frame.to_csv(index=False).encode()

    async def ask(client):
        csv_kind = {"content-type": "text/csv"}
        parquet_kind = {"content-type": "application/vnd.apache.parquet"}
        return (
            await client.post("/predict", json=[ROW, ROW]),
            await client.post("/predict", json=rows),
            await client.post("/predict", headers=csv_kind, content=csv),
            await client.post("/predict", headers=parquet_kind, content=parquet.getvalue()),
            await client.get("/schema"),
            await client.post("/predict", json={**ROW, **{f"c{n}": n for n in range(1000)}}),
        )

    bare, *others, schema, many = (
        reply.json() for reply in answers_of(service({"c": folder}), ask)
    )
    assert "ignored" not in bare
    for reply in others:
        assert reply["predictions"] == bare["predictions"]
        assert reply["ignored"] == ["name", "ward"]
    assert schema["additionalProperties"] is True
    assert many["ignored"] == [f"c{number}" for number in range(20)]


def test_a_column_that_is_missing_is_told_with_the_one_that_may_be_meant(folder):
    async def ask(client):
        row = {name.capitalize() if name == "age" else name: cell for name, cell in ROW.items()}
        return await client.post("/predict", json=row)

    (error,) = answers_of(service({"c": folder}), ask).json()["errors"]
    words = "the column is missing (is it 'Age'?); give null where there is no value"
    assert error == {"row": 1, "column": "age", "error": words}


def test_a_body_means_the_same_in_each_form_and_beside_other_rows(folder):
    async def ask(client):
        header = "age,job,smoker,admitted\n"
        first = "51.5,cook,{},2024-05-01\n"
        late = "51.5,cook,true,2024-05-01T23:30:00Z\n51.5,cook,true,04/25/2018\n"
        texts = [header + first.format(each) for each in ("1", "true", "TRUE")]
        texts.append(header + first.format(1) + late)
        typed = {"age": 51.5, "job": "cook", "smoker": True, "admitted": "2024-05-01T02:00+02:00"}
        csv = {"content-type": "text/csv"}
        url = "/predict?partial=true"
        return [
            *[await client.post(url, headers=csv, content=text) for text in texts],
            await client.post(url, json=typed),
            await client.post(url, json={**typed, "smoker": 1, "age": "51.5"}),
        ]

    replies = [reply.json() for reply in answers_of(service({"clinic": folder}), ask)]
    first = replies[0]["predictions"][0]["probabilities"]
    assert [reply["predictions"][0]["probabilities"] for reply in replies] == [first] * 6
    (error,) = replies[3]["errors"]
    expected = "expected a date (ISO 8601, such as 2026-01-31) or null, got '04/25/2018'"
    assert error == {"row": 3, "column": "admitted", "error": expected}


def test_a_number_is_no_date(folder):
    async def ask(client):
        row = {"age": 51.5, "job": "cook", "smoker": True, "admitted": 1520121600000}
        return await client.post("/predict", json=row)

    reply = answers_of(service({"clinic": folder}), ask)
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    words = 'or null as text (pandas: to_json(date_format="iso")), got 1520121600000'
    assert (error["column"], error["error"][-len(words) :]) == ("admitted", words)


def test_a_bad_row_is_named_and_the_others_are_answered_if_asked(folder):
    rows = [ROW, {**ROW, "age": "old"}, {**ROW, "job": "astronaut"}, {"age": 1}, ROW]

    async def ask(client):
        return (
            await client.post("/predict", json=rows),
            await client.post("/predict?partial=true", json=rows),
            await client.post("/predict?partial=true&allow_unseen=true", json=rows[:3]),
        )

    refused, partly, unseen = answers_of(service({"clinic": folder}), ask)
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("3 of 5 rows cannot be used; with ?partial=true the")
    assert "?allow_unseen=true" in refused.json()["error"]
    errors = refused.json()["errors"]
    assert errors[0] == {"row": 2, "column": "age", "error": "expected a number or null, got 'old'"}
    assert errors[1]["error"].startswith("expected one of 'clerk', 'cook'")
    assert {each["column"] for each in errors if each["row"] == 4} == {"job", "smoker", "admitted"}
    assert [each["row"] for each in partly.json()["predictions"]] == [1, 5]
    assert len(partly.json()["errors"]) == len(errors)
    assert [each["row"] for each in unseen.json()["predictions"]] == [1, 3]


def test_what_is_not_for_the_service_is_refused_in_a_sentence(folder):
    limits = Limits(rows=3, body=1000)

    async def ask(client):
        csv, as_json = {"content-type": "text/csv"}, {"content-type": "application/json"}
        return [
            await client.post("/predict", json=[ROW] * 4),
            await client.post("/predict", headers=as_json, content=b" " * 1001),
            await client.post("/predict", headers=as_json, content=b""),
            await client.post("/predict", headers=csv, content=b"age\n1\n"),
            await client.post("/predict", headers={"content-type": "text/html"}, content=b"x"),
            await client.get("/predict"),
            await client.get("/nowhere"),
            await client.post("/models/other/predict", json=ROW),
            await client.post("/predict?covrage=0.9", json=ROW),
            await client.post(
                "/predict", headers=csv, content="age,job\n1,Köchin\n".encode("cp1252")
            ),
        ]

    replies = answers_of(service({"clinic": folder}, limits), ask)
    codes = [422, 413, 400, 422, 415, 405, 404, 404, 422, 422]
    assert [each.status_code for each in replies] == codes
    errors = [each.json()["error"] for each in replies]
    assert (
        errors[0] == "the body has 4 rows, more than the 3 that one request may have; send several"
    )
    assert errors[3].startswith("the table lacks the columns ['job', 'smoker', 'admitted']")
    assert errors[7] == "no model 'other' is served; there are ['clinic']"
    assert errors[8].startswith("no option 'covrage'; there are ")
    assert errors[8].endswith("; did you mean 'coverage'?")
    assert errors[9] == "the body is no CSV in UTF-8; send it so"


def test_several_models_are_asked_by_name_and_their_schemas_are_theirs(folder, tmp_path, table):
    fitted_model(table, [Linear()], regression=True).save(tmp_path / "costs")

    async def ask(client):
        return (
            await client.post("/predict", json=ROW),
            await client.post("/models/costs/predict", json=ROW),
            await client.get("/models/clinic/schema"),
            await client.get("/health"),
            await client.get("/metrics"),
            await client.get("/"),
        )

    made = service({"clinic": folder, "costs": tmp_path / "costs"})
    which, cost, schema, health, metrics, page = answers_of(made, ask)
    assert which.status_code == 404
    assert "name one" in which.json()["error"]
    assert isinstance(cost.json()["predictions"][0]["prediction"], float)
    assert list(schema.json()["properties"]) == ["age", "job", "smoker", "admitted"]
    assert schema.json()["properties"]["job"]["enum"] == ["clerk", "cook", "nurse", "pilot", None]
    assert health.json()["models"].keys() == {"clinic", "costs"}
    assert 'dovetail_rows_total{model="costs"} 1.0' in metrics.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_several_labels_are_answered_by_name(tmp_path, table):
    x = table[["age", "job", "smoker"]]
    y = np.stack([table["ill"] == "yes", table["cost"] > 1000], axis=1).astype(int)
    model = SoloClassifier(learners=["linear"]).fit(x, y).model_
    model.save(tmp_path / "several")
    row = {"age": 70, "job": "pilot", "smoker": True}

    async def ask(client):
        return (
            await client.post("/predict", json=[row, row]),
            await client.get("/schema"),
            await client.get("/openapi.json"),
        )

    answer, schema, described = answers_of(service({"several": tmp_path / "several"}), ask)
    first, second = answer.json()["predictions"]
    assert first == second
    assert first["prediction"] == {"label 1": 1, "label 2": 1}
    assert 0.5 < first["probabilities"]["label 1"] <= 1
    asked = {"kind": "several labels", "labels": ["label 1", "label 2"]}
    assert schema.json()["x-answer"] == asked
    assert "label 2" in described.text


def test_requests_that_wait_together_are_one_run_of_the_model(folder):
    made = service({"clinic": folder})
    runs = []
    made._batcher._seen = lambda model, num_rows: runs.append(num_rows)

    async def ask(client):
        rows = [{**ROW, "age": float(age)} for age in range(20, 60)]
        together = await asyncio.gather(*(client.post("/predict", json=row) for row in rows))
        alone = await client.post("/predict", json=rows)
        return together, alone

    together, alone = answers_of(made, ask)
    predictions = [each.json()["predictions"][0] for each in together]
    assert predictions == alone.json()["predictions"]
    assert sum(runs) == 80
    assert len(runs) < 41


def test_a_token_is_needed_where_there_is_one(folder):
    limits = Limits(token="0123456789abcdef")

    async def ask(client):
        good = {"authorization": "Bearer 0123456789abcdef"}
        return [
            (await client.post("/predict", json=ROW)).status_code,
            (await client.post("/predict", json=ROW, headers={"authorization": "x"})).status_code,
            (await client.get("/schema")).status_code,
            (await client.get("/metrics")).status_code,
            (await client.post("/reload")).status_code,
            (await client.post("/predict", json=ROW, headers=good)).status_code,
        ]

    codes = answers_of(service({"clinic": folder}, limits), ask)
    assert codes == [401, 401, 401, 401, 401, 200]


def test_a_service_that_answers_is_ready(folder):
    reply = answers_of(service({"clinic": folder}), lambda client: client.get("/ready"))
    assert (reply.status_code, reply.json()) == (200, {"status": "ready", "models": ["clinic"]})


def test_names_of_other_hosts_are_refused_on_this_machine(folder):
    made = service({"clinic": folder}, Limits(hosts=["localhost"]))
    reply = answers_of(made, lambda client: client.get("/health"))
    assert reply.status_code == 400


def test_an_address_beyond_this_machine_needs_a_guard(tmp_path):
    with pytest.raises(ConfigError, match="is not this machine alone"):
        Address("0.0.0.0", 1).check()
    (tmp_path / "token").write_text("short")
    with pytest.raises(ConfigError, match="16 printable characters"):
        Address("0.0.0.0", 1, tmp_path / "token").token()
    with pytest.raises(ConfigError, match="needs ca"):
        Address("0.0.0.0", 1, certificates=tmp_path).tls()
    assert Address("127.0.0.1", 1).hosts() == ["localhost", "127.0.0.1", "[::1]"]
    with pytest.raises(ConfigError, match="two models are called 'a'"):
        named(["x/a", "y/a"], lambda path: path)


def test_a_changed_model_is_taken_whole_and_a_broken_one_is_not(tmp_path, table):
    path = tmp_path / "m"
    fitted_model(table, [Linear()]).save(path)
    warnings = []
    made = service({"m": path}, warnings=warnings)
    first = made.shelf.models["m"].version
    assert made.shelf.changed() == []
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-8])
    os.utime(path / "model.json", ns=(1, 1))
    assert made.shelf.changed() == ["m"]
    assert made.shelf.reload(["m"])["m"].startswith("not read")
    assert made.shelf.models["m"].version == first
    assert len(warnings) == 1
    fitted_model(table.head(200), [Linear()]).save(path)
    assert made.shelf.changed() == ["m"]
    assert made.shelf.reload() == {"m": made.shelf.models["m"].version}
    assert made.shelf.models["m"].version != first


@pytest.mark.slow
def test_a_model_of_images_is_no_service_of_columns(tmp_path):
    from pathlib import Path

    path = Path(__file__).parents[1] / "golden/runs/apfed-strips/models/view-1"
    with pytest.raises(ModelError, match="takes images or arrays"):
        Shelf({"strips": path}, print)


@pytest.mark.slow
def test_malformed_requests_get_a_sentence_and_break_nothing(folder):
    made = service({"clinic": folder})

    async def ask(client):
        statuses, wrong = await fire(client, 2000, seed=7)
        return statuses, wrong, await client.post("/predict", json=ROW)

    statuses, wrong, after = answers_of(made, ask)
    assert wrong == []
    assert statuses[422] > 100
    assert statuses[400] > 100
    assert after.status_code == 200


@pytest.mark.network
def test_killed_under_load_and_started_again_it_answers_from_a_whole_model(tmp_path, table):
    """Real processes and sockets; the model is written anew all the while."""
    path = tmp_path / "m"
    models = [fitted_model(table.head(n), [Linear()]) for n in (200, 300)]
    expected = [
        round(
            float(
                m.predict_proba(pd.DataFrame([{**ROW, "admitted": pd.Timestamp("2024-05-01")}]))[
                    0, 1
                ]
            ),
            4,
        )
        for m in models
    ]
    models[0].save(path)
    (tmp_path / "token").write_text("a-token-of-this-test")
    stop = threading.Event()

    def write():
        turn = 0
        while not stop.is_set():
            turn += 1
            models[turn % 2].save(path)
            time.sleep(0.05)

    def start():
        log = tmp_path / "log"
        command = ["serve", f"m={path}", "--port", "0", "--watch", "0.1"]
        command += ["--token-file", str(tmp_path / "token")]
        process = forked.begin(tmp_path, None, *command, stdout=tmp_path / "said", stderr=log)
        while process.poll() is None:
            matched = re.search(r"http://127.0.0.1:(\d+)", log.read_text())
            if matched:
                return process, int(matched[1])
            time.sleep(0.1)
        raise AssertionError(log.read_text())

    def ask(port):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict",
            json.dumps(ROW).encode(),
            {"content-type": "application/json", "authorization": "Bearer a-token-of-this-test"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            reply_json = json.loads(reply.read())
        return round(reply_json["predictions"][0]["probabilities"]["yes"], 4), reply_json["version"]

    writer = threading.Thread(target=write)
    seen, versions = set(), set()
    try:
        for turn in range(2):
            process, port = start()
            if turn == 0:
                writer.start()
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                value, version = ask(port)
                seen.add(value)
                versions.add(version)
            process.send_signal(signal.SIGKILL)
            process.wait()
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                ask(port)
            stop.set()
            writer.join()
    finally:
        stop.set()
        process.kill()
        process.wait()
    assert seen <= {*expected}
    assert versions
