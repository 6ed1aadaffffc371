"""An audit as one page, to be read and to be printed: who could learn what, under which assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.report.chart import Spread, dots
from dovetail.report.views import TableView, render

#: Verdict -> its place among the page's colours, and what it says.
_WORDS = {
    "high": "The receivers of these messages learn much that they did not know.",
    "low": "The receivers of these messages learn something that they did not know.",
    "none": "The attacks that were tried found nothing beyond what receivers know already.",
}

_TARGETS = {
    "labels": "labels",
    "columns": "columns",
    "membership": "who was trained on",
    "rows": "whole rows",
}


def audit_page(audit: Mapping[str, Any], name: str) -> str:
    """What ``audit.json`` holds, as one self-contained page.

    Args:
        audit: as ``Audit.to_json`` gives it.
        name: what the run is called.
    """
    findings = sorted(
        audit["findings"], key=lambda each: (-_rank(each["verdict"]), -each["advantage"])
    )
    plots = []
    for stage in audit["stages"]:
        rows = [_row(each) for each in findings if each["stage"] == stage]
        title = f"{stage}: share of the unknown that is gained, with its 95 % interval"
        plot = dots(title, rows, zero=True)
        if plot is not None:
            plots.append(plot)
    return render(
        "audit.html",
        title=f"What could they learn? {name}",
        verdict=audit["verdict"],
        words=_WORDS[audit["verdict"]],
        thresholds=audit["thresholds"],
        seeds=", ".join(map(str, audit["seeds"])),
        dots=plots,
        tables=[_findings(findings), _assumptions(findings), _cost(audit), _configured(audit)],
        notes=sorted({each["note"] for each in findings if each["note"]}),
        not_tried=audit["not_tried"],
        kept_rows=audit["kept_rows"],
        seconds=f"{audit['seconds']:.0f}",
    )


def _rank(verdict: str) -> int:
    return ("none", "low", "high").index(verdict)


def _row(each: Mapping[str, Any]) -> Spread:
    what = f"{each['observer']}: {each['owner']}'s {_TARGETS[each['target']]} from {each['channel']}"
    return Spread(
        f"{what}, {each['threat']['attack']}",
        f"{each['advantage']:+.0%}, {each['verdict']}",
        each["advantage"],
        (each["high"] - each["low"]) / 2,
        (each["advantage"],),
        _rank(each["verdict"]),
        each["verdict"] == "high",
    )


def _findings(findings: Sequence[Mapping[str, Any]]) -> TableView:
    rows = []
    for each in findings:
        worst = "" if each["worst"] is None else (
            f"{each['worst'][0]}: {each['worst'][1]:.2f} to {each['worst'][2]:.2f}"
        )  # fmt: skip
        rows.append(
            [
                f"{each['observer']} of {each['owner']}",
                f"{_TARGETS[each['target']]} from {each['channel']} ({each['stage']})",
                each["threat"]["attack"],
                f"{each['baseline']:.3f}",
                f"{each['score']:.3f}",
                f"{each['advantage']:+.0%}",
                f"{each['low']:+.0%} to {each['high']:+.0%}",
                each["verdict"],
                worst,
            ]
        )
    head = ("who of whom", "what", "attack", "without messages", "with", "gained", "95 %",
            "verdict", "column worst off")  # fmt: skip
    return TableView("What was found", head, rows, (3, 4, 5, 6), True)


def _assumptions(findings: Sequence[Mapping[str, Any]]) -> TableView:
    threats = {each["threat"]["attack"]: each["threat"] for each in findings}
    rows = [
        [t["attack"], t["given"], t["baseline"], t["metric"], t["paper"]] for t in threats.values()
    ]
    head = ("attack", "the attacker is given", "without messages", "scored by", "after")
    return TableView("Under which assumptions", head, rows, (), True)


def _cost(audit: Mapping[str, Any]) -> TableView:
    names = list(dict.fromkeys(name for each in audit["scores"].values() for name in each))
    rows = [
        [stage, *(f"{each[name]:.4f}" if name in each else "" for name in names)]
        for stage, each in audit["scores"].items()
    ]
    return TableView(
        "What the model is worth, on test rows", ("stage", *names), rows, range(1, len(names) + 1)
    )


def _configured(audit: Mapping[str, Any]) -> TableView:
    """Defences that were set, and those that were not."""
    rows = [[key, value] for key, value in defences(audit["run"]).items()]
    return TableView("Defences that were set", ("setting", "value"), rows, (), True)


def defences(run: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a resolved run that bound what messages tell -> value, "off" where not set."""
    found: dict[str, str] = {}
    method = str(run.get("method", ""))
    apfed, passive = run.get("apfed") or {}, run.get("passive") or {}
    if method.startswith("apfed") or method == "tvfl":
        for key in ("projection", "codes", "label_epsilon", "decorrelate"):
            found[f"apfed.{key}"] = _text(apfed.get(key))
        found["passive.gradients"] = _text(passive.get("gradients"))
    if "chfl" in method or method in ("common", "fedavg", "fedprox"):
        found["chfl.secure"] = _text((run.get("chfl") or {}).get("secure") or None)
    if not found:
        found["none"] = "this method has no defence that a run can set"
    return found


def _text(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {each}" for key, each in value.items()) or "off"
    return str(value)
