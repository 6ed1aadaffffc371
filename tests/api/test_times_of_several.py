"""Times to an event that several hospitals have, each of its own patients: CHFL and HyFEM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import people

import dovetail as dt
from dovetail.alignment.columns import agreed_times
from dovetail.errors import ConfigError, DataError, MessageError

LABEL = {"time": "days", "event": "died"}
#: Each hospital's columns; "age" is at all.
COLUMNS = {"north": ("age", "blood"), "south": ("age", "heart"), "west": ("age",)}


def hospitals(frame: pd.DataFrame, *, blocks: bool = False) -> Iterator[dt.Party]:
    for index, (name, columns) in enumerate(COLUMNS.items()):
        rows = frame.iloc[index::3][["patient", *columns, "days", "died"]]
        named = {"blocks": {column: [column] for column in columns}} if blocks else {}
        yield dt.Party(name, rows, id="patient", label=LABEL, **named)


METHODS = {
    "chfl": dt.CHFL(widths=(8,), rounds=4, local_epochs=2, learning_rate=0.02, batch_size=32),
    "hyfem": dt.HyFEM(rounds=6, local_steps=8, learning_rate=0.1, batch_size=32),
}


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest) -> dt.Run:
    parties = list(hospitals(people(450), blocks=request.param == "hyfem"))
    return dt.fit(METHODS[request.param], parties, test=0.25, quiet=True)


@pytest.mark.trained
def test_every_hospital_has_a_model_that_says_when(run: dt.Run, tmp_path: Path) -> None:
    frame = people(450)
    cuts = set()
    for name in COLUMNS:
        model = run.models[name]
        said = model.predictions(frame)
        shares = np.stack([v for key, v in said.named.items() if key.startswith("S(")], axis=1)
        assert (np.diff(shares, axis=1) <= 0).all()
        assert model.score(frame)["c_index"] > 0.6
        cuts.add(model.task.cuts)
        again = dt.load(model.save(tmp_path / name))
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    (agreed,) = cuts  # the same at all
    assert 2 <= len(agreed) <= 10
    assert all(float(f"{end:.2g}") == pytest.approx(end) for end in agreed)
    assert len({run.models[name].task.base for name in COLUMNS}) == 3  # each has its own
    assert run.result["mean"]["brier_integrated"] < 0.25


def test_a_hospital_without_times_is_refused() -> None:
    frame = people(450)
    odd = dt.Party("east", frame[["patient", "age", "died"]], id="patient", label="died")
    for method in METHODS.values():
        with pytest.raises((ConfigError, DataError)):
            dt.fit(method, [*hospitals(frame), odd], quiet=True)


@pytest.mark.parametrize("times", ["[3, 2]", "[0, 1]", "[1, 1e999]", str([*range(1, 12)])])
def test_agreed_times_that_cannot_be_are_refused(times: str) -> None:
    with pytest.raises(MessageError, match="do not rise from 0 on"):
        agreed_times(f'{{"times": {times}}}')
