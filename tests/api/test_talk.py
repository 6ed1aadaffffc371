"""What a run shows while it trains."""

from __future__ import annotations

import pytest

from dovetail.api.progress import talk_of


@pytest.mark.parametrize(
    ("columns", "scores"),
    [
        (60, ["loss 0.522"]),
        (80, ["loss 0.522", "accuracy 0.909"]),
        (120, ["loss 0.522", "accuracy 0.909", "auc 0.958"]),
    ],
)
def test_a_bar_shows_the_scores_that_fit_its_terminal_and_cuts_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int,
    scores: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    line = {"epoch": 118, "loss": 0.522, "accuracy": 0.909, "auc": 0.958}
    with talk_of(shown=True).epochs("seed 3 ") as bars:
        bars("best-alone", 119, line)
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith("seed 3 best-alone ")
    assert " 118/118 epochs " in shown  # patience ended it
    assert "…" not in shown
    assert shown.rstrip().endswith("  ".join(scores))


def test_a_variant_that_stops_when_it_is_good_shows_no_total_before_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def interrupted() -> None:
        with talk_of(shown=True).epochs("") as bars:
            bars("apfed-d", 802, {"epoch": 54, "held_out_loss": {"deep": 0.2}})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (left,) = capsys.readouterr().err.splitlines()
    assert " 54 epochs" in left
    assert "802" not in left


def test_who_waits_says_what_the_partner_types(capsys: pytest.CaptureFixture[str]) -> None:
    with talk_of(shown=True).waiting("bank.example.org:7443") as status:
        status([], ["shop"])
        status([], ["shop"])
    lines = capsys.readouterr().err.splitlines()
    command = "dovetail: at shop: dovetail join shop.toml --driver bank.example.org:7443"
    assert lines.count(command) == 1


def test_a_variant_that_was_interrupted_is_left_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def interrupted() -> None:
        with talk_of(shown=True).epochs("") as bars:
            bars("apfed", 9, {"epoch": 4})
            bars("alone", 9, {"epoch": 2})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    done, left = capsys.readouterr().err.splitlines()
    assert " 4/4 epochs " in done
    assert " 2/9 epochs " in left
