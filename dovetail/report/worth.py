"""Values of the partners, if a run or ``dovetail value`` found them out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dovetail.models.metrics import TITLES as NAMES
from dovetail.report.chart import Spread, dots, mean_std
from dovetail.report.folder import Run, ValueFile, number_of
from dovetail.report.views import TableView

_MEASURES: Mapping[str, str] = {
    "shapley": "Shapley value",
    "loo": "leave-one-out",
    "mi": "mutual information with the labels (nats)",
    "joint_shapley": "Shapley value, joint model",
    "joint_loo": "leave-one-out, joint model",
}


def worths(run: Run) -> list[dict[str, Any]]:
    """Views of ``value.json`` and of the run's choice of partners; none if there is neither."""
    worths = []
    if run.value is not None and run.value.partners:
        worths.append(_valued(run.value))
    chosen = _chosen(run)
    return [*worths, *([] if chosen is None else [chosen])]


def _valued(value: ValueFile) -> dict[str, Any]:
    metric = NAMES.get(value.metric, value.metric)
    rows = []
    body = []
    measures = [
        name for name in _MEASURES if any(name in shares for shares in value.partners.values())
    ]
    for partner, shares in value.partners.items():
        partner_shares = {name: shares[name] for name in measures if name in shares}
        texts = {
            name: _text(each.mean, each.std, len(value.seeds))
            for name, each in partner_shares.items()
        }
        body.append((partner, *(texts.get(name, "–") for name in measures)))
        if value.by in partner_shares:
            rows.append(
                Spread(
                    partner,
                    texts[value.by],
                    partner_shares[value.by].mean,
                    partner_shares[value.by].std,
                )
            )
    what = _MEASURES.get(value.by, value.by)
    unit = "" if value.by == "mi" else f" in {metric}"
    text = f"By {what}{unit}, of {len(value.seeds)} {'seed' if len(value.seeds) == 1 else 'seeds'}."
    if value.all is not None and value.none is not None:
        better = "less" if value.lower_is_better else "more"
        text += (
            f" With all partners the {metric} is {value.all.mean:.3f}, with none "
            f"{value.none.mean:.3f}; {better} is better. A value above 0 is a partner that helps."
        )
    if value.always:
        text += f" In every coalition: {', '.join(value.always)}."
    spread = "; a bar spans one standard deviation to either side" if len(value.seeds) > 1 else ""
    head = ("partner", *(_MEASURES[name] for name in measures))
    return {
        "summary": text,
        "drawn": dots(f"{what}{unit} of each partner{spread}", rows, zero=True),
        "table": TableView("", head, body, numbers=range(1, len(head))),
    }


def _chosen(run: Run) -> dict[str, Any] | None:
    """Partners that took part, if the method itself chooses among data owners."""
    nats: dict[str, list[float]] = {}
    times: dict[str, int] = {}
    choices = 0
    for seed in run.seeds:
        for line in seed.lines.get(run.method, []):
            scores, taken = line.get("scores"), line.get("participants")
            if not isinstance(scores, dict) or not isinstance(taken, list) or not number_of(line):
                continue
            choices += 1
            for name in taken:
                times[str(name)] = times.get(str(name), 0) + 1
            for name, value in scores.items():
                if _is_number(value):
                    nats.setdefault(str(name), []).append(float(value))
    if not nats:
        return None
    order = sorted(nats, key=lambda name: -mean_std(nats[name])[0])
    rows = [
        Spread(name, _text(*mean_std(nats[name]), len(nats[name])), *mean_std(nats[name]))
        for name in order
    ]
    body = [(row.name, row.text, f"{times.get(row.name, 0)} of {choices}") for row in rows]
    title = "mutual information (nats), mean over choices; a bar spans one standard deviation"
    return {
        "summary": "The method chose its data owners by mutual information with the labels, "
        f"{choices} {'time' if choices == 1 else 'times'} over all seeds.",
        "drawn": dots(title, rows),
        "table": TableView("", ("data owner", "nats", "chosen"), body, numbers=(1, 2)),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _text(mean: float, std: float, count: int) -> str:
    """A value with its sign's room: small ones matter here.

    >>> _text(0.00377, 0.00824, 3), _text(-0.5, 0.0, 1)
    ('0.0038 ±\\xa00.0082', '-0.5000')
    """
    return f"{mean:.4f}" + (f" ±\u00a0{std:.4f}" if count > 1 else "")
