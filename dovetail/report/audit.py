"""An audit as one page, to read and to print: who could learn what, under which assumptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail.audit.measured import reported_of
from dovetail.audit.verdict import HIGH_FROM, LOW_FROM
from dovetail.report.chart import HEIGHT_REM, Spread, Tick, dots, ticks
from dovetail.report.views import COLOURS, TableView, render

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
    """Self-contained page of what ``audit.json`` holds.

    Args:
        audit: as ``Audit.to_json`` gives it.
        name: what the run is called.
    """
    findings = sorted(
        audit["findings"], key=lambda each: (-_rank(each["verdict"]), -each["advantage"])
    )
    plots = []
    for variant in audit["variants"]:
        rows = [_row(each) for each in findings if each["variant"] == variant]
        title = f"{variant}: share of the unknown that is gained, with its 95 % interval"
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
        colours=len(COLOURS),
        height=HEIGHT_REM,
        tables=[_findings(findings), _assumptions(findings), _cost(audit), _configured(audit)],
        tried=None if "tried" not in audit else _tried(audit["tried"]),
        notes=sorted({each["note"] for each in findings if each["note"]}),
        not_tried=audit["not_tried"],
        kept_rows=audit["kept_rows"],
        seconds=f"{audit['seconds']:.0f}",
    )


def _rank(verdict: str) -> int:
    return ("none", "low", "high").index(verdict)


def _row(each: Mapping[str, Any]) -> Spread:
    owner, target = each["owner"], _TARGETS[each["target"]]
    return Spread(
        f"{each['observer']}: {owner}'s {target} from {each['channel']}, "
        f"{each['threat']['attack']}",
        f"{each['advantage']:+.0%}, {each['verdict']}",
        each["advantage"],
        (each["high"] - each["low"]) / 2,
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
                f"{_TARGETS[each['target']]} from {each['channel']} ({each['variant']})",
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


def audit_view(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of an audit for a run's report; the audit's own page has all of it."""
    worst: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for each in audit["findings"]:
        key = each["variant"], each["observer"], each["owner"], each["target"]
        rank = _rank(each["verdict"]), each["advantage"]
        if key not in worst or rank > (_rank(worst[key]["verdict"]), worst[key]["advantage"]):
            worst[key] = each
    findings = sorted(
        worst.values(), key=lambda each: (-_rank(each["verdict"]), -each["advantage"])
    )
    table = _findings(findings)
    verdict = audit["verdict"]
    return {
        "verdict": verdict,
        "words": _WORDS[verdict],
        "thresholds": audit["thresholds"],
        "table": replace(table, caption="of each kind, the attack that gained most"),
    }


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
        [variant, *(f"{each[name]:.4f}" if name in each else "" for name in names)]
        for variant, each in audit["scores"].items()
    ]
    return TableView(
        "What the model is worth, on test rows", ("variant", *names), rows, range(1, len(names) + 1)
    )


def _cloud(cells: Sequence[Mapping[str, Any]], score: Callable[[Any], float]) -> dict[str, Any]:
    """Defences as dots: score against the largest share that is gained, in per cent of the plot."""
    worst = [max(0.0, cell["worst"]) for cell in cells]
    scores = [score(cell) for cell in cells]
    across, upright = ticks(0.0, max([*worst, 0.25])), ticks(min(scores), max(scores))

    def x_of(value: float) -> str:
        return f"{100 * value / across[-1]:.2f}"

    def y_of(value: float) -> str:
        return f"{100 * (upright[-1] - value) / (upright[-1] - upright[0]):.2f}"

    marks = [
        {
            "name": cell["name"],
            "text": f"{y:.3f}",
            "x": x_of(x),
            "y": y_of(y),
            "verdict": cell["verdict"],
            "sends": bool(cell["advantage"]),
        }
        for cell, x, y in zip(cells, worst, scores, strict=True)
    ]
    return {
        "marks": marks,
        "left": [Tick(y_of(each), f"{each:.3g}") for each in upright],
        "below": [Tick(x_of(each), f"{each:.0%}") for each in across],
        "verdicts": {"low": x_of(LOW_FROM), "high": x_of(HIGH_FROM)},
    }


def _tried(tried: Mapping[str, Any]) -> dict[str, Any]:
    """Defences: a dot for each, and their table."""
    cells = tried["cells"]
    names = list(dict.fromkeys(name for cell in cells for name in cell["advantage"]))
    rows = []
    for cell in cells:
        test = cell["test"]
        worth = test.get("auc", test.get("accuracy", test.get("r2")))
        rows.append(
            [
                cell["name"],
                f"{cell['held_out']:.3f}",
                "" if worth is None else f"{worth:.3f}",
                *(f"{cell['advantage'].get(name, 0):+.0%}" for name in names),
                cell["verdict"] if cell["advantage"] else "nothing is asked",
                "" if cell["epsilon"] is None else f"{cell['epsilon']:.3g}",
                cell["guarantee"] or "no guarantee",
            ]
        )
    head = ("defence", "held-out rows", "test rows", *names, "verdict", "epsilon", "guarantee")
    return {
        "cloud": _cloud(cells, lambda cell: float(cell["held_out"])),
        "table": TableView(
            "Defences: what each costs and leaves", head, rows, range(1, 3 + len(names))
        ),
        "recommended": tried["recommended"] or "",
        "limit": tried["limit"],
        "failed": tried.get("failed", {}),
    }


def _configured(audit: Mapping[str, Any]) -> TableView:
    """Defences that were set, and those that were not."""
    rows = [[key, value] for key, value in defences(audit["run"]).items()]
    return TableView("Defences that were set", ("setting", "value"), rows, (), True)


#: Variants of a method by other names, whose settings are those of a section.
_SECTIONS = {
    "common": ("chfl",), "simple": ("chfl",), "fedavg": ("hyfem",), "fedper": ("hyfem",),
    "fedprox": ("chfl", "hyfem"), "classic": ("fedoptimus",), "fedma": ("hyfem",),
    "lg-fedavg": ("hyfem",),
}  # fmt: skip


def defences(run: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a resolved run that bound what messages reveal -> value, "off" where not set."""
    method = str(run.get("method", ""))
    sections = [each for each in _SECTIONS.get(method, ()) if each in run]
    keys = [key for each in sections or [method] for key in reported_of(each).bounds]
    settings: dict[str, str] = {}
    for key in keys:
        section, _, rest = key.partition(".")
        section_values = run.get(section) or {}
        settings[key] = _text(_at(section_values, rest))
        if section == "passive":  # [passive.NAME] is one partner's
            for name, each in section_values.items():
                if isinstance(each, Mapping) and (value := _at(each, rest)) is not None:
                    settings[f"passive.{name}.{rest}"] = _text(value)
    if not settings:
        settings["none"] = "this method has no defence that a run can set"
    return settings


def _at(settings: Any, key: str) -> Any:
    """Value at a dotted key; None: nothing."""
    for name in key.split("."):
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _text(value: Any) -> str:
    if value is None or value is False:
        return "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {each}" for key, each in value.items()) or "off"
    return str(value)


#: Colours of the verdicts, told apart by those who see few, too.
_COLOURS = {"none": "#1b7f5c", "low": "#b07a00", "high": "#b3261e"}


def defences_svg(tried: Mapping[str, Any]) -> str:
    """Defences as a drawing: score on test rows against the largest share that is gained.

    Dashed lines are models that nobody helped; dotted ones are where "low" and "high" begin.
    """
    cloud = _cloud(tried["cells"], _worth)
    return render("defences.svg", cloud=cloud, variant=tried["variant"], colours=_COLOURS)


def _worth(cell: Mapping[str, Any]) -> float:
    test = cell["test"]
    return float(test.get("auc", test.get("accuracy", test.get("r2", cell["held_out"]))))
