"""What a run's scores show."""

from __future__ import annotations

from rich.console import Console

from dovetail.api.scores import UNTESTED, Scores


def test_without_test_rows_it_is_said_in_place_of_a_table() -> None:
    scores = Scores({"method": "apfed-d", "seeds": [1], "parties": {"clinic": {}}, "baselines": {}})
    console = Console(width=400)
    with console.capture() as captured:
        console.print(scores)
    for shown in (repr(scores), captured.get(), scores._repr_html_()):
        assert UNTESTED in shown
        assert "on the test rows" not in shown


def test_what_parties_say_of_validation_rows_is_not_told_as_of_test_rows() -> None:
    parties = {"north": {"validation": 0.8}, "south": {"validation": 0.9}}
    scores = Scores({"method": "chfl", "seed": 0, "parties": parties, "baselines": {}})
    for shown in (repr(scores), scores._repr_html_(), scores.picture()):
        assert "as each party says" in shown
        assert "test rows" not in shown
