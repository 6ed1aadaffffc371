"""The report's page: what is drawn and said of each run, handed to ``templates/report.html``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.data.coverage import Groups, Overlaps, Part, group, summary
from dovetail.data.wording import name_list
from dovetail.methods.outcome import ALONE
from dovetail.models.metrics import SCORES
from dovetail.models.metrics import TITLES as NAMES
from dovetail.report import chart as charts
from dovetail.report import tables, views
from dovetail.report.audit import audit_view
from dovetail.report.folder import Run, number_of, scores_of
from dovetail.report.judged import judged, relied
from dovetail.report.worth import worths
from dovetail.runs.situations import overlaps


@dataclass(frozen=True, eq=False)
class Coverage:
    """Coverage in training: which party held what.

    Attributes:
        parts: the parties; none where they are not known.
        note: what to say of it; why there is no picture, or what may have changed since.
        least: smaller numbers of shared samples are hidden, and the picture, which would reveal
            them.
        withheld: party -> why nothing is shown of it.
    """

    parts: Sequence[Part] = ()
    note: str = ""
    least: int = 0
    withheld: Mapping[str, str] = field(default_factory=dict)


def html(
    runs: Sequence[Run],
    names: tables.Names,
    *,
    coverage: Mapping[str, Coverage] | None = None,
    versions: Mapping[str, str] | None = None,
) -> str:
    """HTML page of one run, or of several side by side.

    Args:
        runs: at least one, of different names.
        names: what methods are called.
        coverage: run's name -> who held what.
        versions: package -> version, of what makes this page.
    """
    pages = [_view(run, names.of(run.method), (coverage or {}).get(run.name)) for run in runs]
    one = len(runs) == 1
    scores = tables.headline_scores(runs)
    return views.render(
        "report.html",
        title=f"{runs[0].name}: a run of Dovetail" if one else "Runs of Dovetail, side by side",
        views=pages,
        one=one,
        dots=[*_pictures(runs, names, scores)],
        charts=list(_charts(runs, names)),
        warning="" if one else tables.comparable(runs),
        curve_note=_curve_note(runs),
        compared=[] if one else [tables.compared_table(runs, names, score) for score in scores],
        settings=tables.settings_table(runs, names),
        versions=_versions(runs, versions or {}),
        dashes=charts.DASHES,
        colours=len(views.COLOURS),
        height=charts.HEIGHT_REM,
    )


def _view(run: Run, titles: tables.Titles, coverage: Coverage | None) -> dict[str, Any]:
    """All that the page says of one run."""
    return {
        "name": run.name,
        "path": str(run.path),
        "headline": tables.headline(run, titles),
        "trained_on": tables.trained_on(run, coverage.least if coverage else 0),
        "next": list(tables.next_steps(run)),
        "notes": run.notes,
        "scores": tables.score_table(run, titles),
        "parties": tables.party_table(run, titles),
        "held": None if coverage is None else _held(coverage),
        "flows": tables.flows(run),
        "messages": tables.message_table(run),
        "baselines_sent": tables.baselines_sent(run, titles),
        "missed": tables.missed_table(run, titles),
        "searched": tables.search_table(run),
        "worths": worths(run),
        "judged": judged(run),
        "relied": relied(run),
        "audit": None if run.audit is None else audit_view(run.audit.model_dump()),
    }


def _held(coverage: Coverage) -> dict[str, Any]:
    """View of the coverage, as it is drawn."""
    held: dict[str, Any] = {"summary": "", "drawn": None, "tables": [], "note": coverage.note}
    if not coverage.parts:
        return held
    brought = views.parties_table(coverage.parts, "what each party brought")
    if coverage.least or coverage.withheld:
        counted = overlaps(coverage.parts, withheld=coverage.withheld, least=coverage.least)
        held["tables"] = (
            [views.overlaps_table(counted)] if counted.shared or counted.withheld else []
        )
    else:
        groups: Groups = group(coverage.parts)
        rows = {part.name: part.data.num_rows for part in coverage.parts}
        counted = Overlaps(coverage.parts[0].name, rows, {}, groups.common(), groups)
        held["drawn"] = views.picture(coverage.parts, groups)
        table = views.groups_table(groups)
        if len(table.rows) > 1:  # one group: all that the picture says already
            held["tables"] = [table]
    held["summary"] = summary(coverage.parts, counted)
    held["tables"].append(brought)
    return held


# --- Curves ---------------------------------------------------------------------------------------


@dataclass
class _Curve:
    """Curve of every plot: a run's method, or a baseline."""

    name: str
    is_main: bool
    style: int
    seeds: list[list[dict[str, Any]]] = field(default_factory=list)


def _curves(runs: Sequence[Run], names: tables.Names) -> list[_Curve]:
    """Methods first. Of several runs: each one's method, and its baseline that learns alone."""
    curves: list[_Curve] = []
    for index, run in enumerate(runs):
        variants = dict.fromkeys([run.method, *(s for seed in run.seeds for s in seed.variants)])
        if len(runs) > 1:
            variants = dict.fromkeys(s for s in variants if s == run.method or s in ALONE)
        titles = names.of(run.method)
        for number, variant in enumerate(variants):
            short = titles.short(variant)
            curve = _Curve(
                short if len(runs) == 1 else f"{run.name}: {short}",
                variant == run.method,
                index + len(runs) * number,
            )
            # A variant that has not come to its end would cut the others' mean short.
            ended = [seed for seed in run.seeds if variant in seed.done] or run.seeds
            curve.seeds = [seed.lines[variant] for seed in ended if variant in seed.lines]
            curves += [curve, *(_inner(curve, titles) if len(runs) == 1 else ())]
    if len(runs) == 1:
        for number, curve in enumerate(curves):
            curve.style = number
    return sorted(curves, key=lambda curve: not curve.is_main)


def _inner(curve: _Curve, titles: tables.Titles) -> Iterator[_Curve]:
    """Curves that lines have under other names, such as the scores of a server's own model."""
    seen = dict.fromkeys(
        key
        for lines in curve.seeds
        for line in lines
        for key, value in line.items()
        if key in titles.known and isinstance(value, dict)
    )
    for key in seen:
        other = _Curve(titles.short(key), False, 0)
        for lines in curve.seeds:
            other.seeds.append(
                [
                    {**_position(line), **line[key]}
                    for line in lines
                    if isinstance(line.get(key), dict)
                ]
            )
        yield other


def _position(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line[key] for key in ("epoch", "round") if key in line}


def _charts(runs: Sequence[Run], names: tables.Names) -> Iterator[charts.Chart]:
    """The first score and the loss by epoch or round; validation where no score is shown."""
    curves = _curves(runs, names)
    units = {
        unit
        for curve in curves
        for lines in curve.seeds
        for line in lines
        for unit in ("epoch", "round")
        if unit in line
    }
    x_name = " or ".join(sorted(units)) or "epoch"
    wanted = tables.headline_scores(runs)
    drawn = [plot for name in wanted if (plot := _chart(curves, name, x_name)) is not None]
    if not drawn and "validation" not in wanted:
        plot = _chart(curves, "validation", x_name)
        drawn = [] if plot is None else [plot]
    yield from drawn
    loss = _chart(curves, "loss", x_name)
    if loss is not None:
        yield loss
    spent = _chart(curves, "epsilon", x_name)
    if spent is not None:
        yield spent


def _curve_note(runs: Sequence[Run]) -> str:
    """Why a run has no curve of its score."""
    last = [run.name for run in runs if run.settings.get("evaluate_every") == 0]
    if not last:
        return ""
    where = "" if len(runs) == 1 else f" in {name_list(last)}"
    return (
        f"Parties were scored after the last epoch or round only{where} (evaluate_every = 0); "
        "--set evaluate_every=1 gives curves of scores."
    )


#: What a line of ``metrics.jsonl`` tells beside scores, and its title.
_OF_TRAINING = {
    "loss": "training loss",
    "epsilon": "epsilon of the sample that releases have cost most",
}


def _by_teachers(curve: _Curve) -> list[_Curve]:
    """A line for each set of networks whose mean loss lines have: it jumps where one has ended."""
    kinds = dict.fromkeys(
        tuple(line["held_out_loss"])
        for lines in curve.seeds
        for line in lines
        if isinstance(line.get("held_out_loss"), dict)
    )
    if len(kinds) < 2:
        return [curve]
    split = []
    for number, kind in enumerate(kinds):
        seeds = [
            [line for line in lines if tuple(line.get("held_out_loss") or ()) == kind]
            for lines in curve.seeds
        ]
        name = f"{curve.name}: {' and '.join(map(str, kind))}"
        split.append(_Curve(name, curve.is_main, curve.style + number, [s for s in seeds if s]))
    return split


def _chart(curves: Sequence[_Curve], what: str, x_name: str) -> charts.Chart | None:
    series = []
    if what == "loss":
        curves = [part for curve in curves for part in _by_teachers(curve)]
    for curve in curves:
        seeds = []
        for lines in curve.seeds:
            points: dict[int, float] = {}
            for line in lines:
                value = line.get(what) if what in _OF_TRAINING else scores_of(line).get(what)
                if isinstance(value, int | float):
                    points[number_of(line)] = float(value)
            seeds.append(points)
        series.append(
            charts.Series(curve.name, charts.points_of(seeds), curve.style, curve.is_main)
        )
    title = _OF_TRAINING.get(what) or f"{NAMES[what]} on the test rows"
    title = "validation accuracy" if what == "validation" else title
    return charts.chart(title, series, x_name=x_name, falling=what == "loss")


def _pictures(
    runs: Sequence[Run], names: tables.Names, scores: Sequence[str]
) -> Iterator[charts.Dots]:
    """Scores of the same rows: of all test rows, and of those that partners share."""
    for score in scores:
        if (plot := _dots(runs, names, score)) is not None:
            yield plot
    for run in runs:
        if (plot := _shared_dots(run)) is not None:
            yield plot


def _shared_dots(run: Run) -> charts.Dots | None:
    """The joint, the solo and the best local model on the test rows that partners share."""
    kept = [seed.recovered for seed in run.seeds if seed.recovered is not None]
    if not kept:
        return None
    called = {"joint": "joint model", "solo": "solo model", "alone": "best local model"}
    rows = []
    for key, name in called.items():
        values = [float(getattr(each, key)) for each in kept]
        mean, spread = charts.mean_std(values)
        text = tables.value_text(values)
        rows.append(charts.Spread(name, text, mean, spread, 1, key == "solo", values))
    num_rows = round(charts.mean_std([each.rows for each in kept])[0])
    return charts.dots(
        f"{run.name}: {NAMES.get(kept[0].score, kept[0].score)} on the {num_rows:,} test rows that "
        "partners share",
        rows,
    )


#: What a bar of several seeds is.
_BAR = "; a bar spans one standard deviation to either side"


def _dots(runs: Sequence[Run], names: tables.Names, score: str) -> charts.Dots | None:
    """Each method's and baseline's score on the same rows, the best first; with each seed's."""
    rows, with_interval = [], False
    for index, run in enumerate(runs):
        tested = tables.tested_rows(run)
        for row in tables.scored(run):
            values = row.values(score)
            if not values or tested.get(row.name) != tested.get(run.method):
                continue  # of other rows: not beside these
            main = row.name == run.method
            name = names.of(run.method).title(row.name) + (", so far" if row.partial else "")
            mean, spread = charts.mean_std(values)
            interval = tables.interval(run, row.name, score)
            if interval is not None:
                with_interval = True
            if len(runs) > 1:
                name = f"{run.name}: {name}"
            colour = index if len(runs) > 1 else 0 if main else 1
            rows.append(
                charts.Spread(
                    name, tables.value_text(values), mean, spread, colour, main, values, interval
                )
            )
    rows.sort(key=lambda row: row.mean, reverse=SCORES[score])
    where = "" if score == "validation" else " on the test rows"
    better = "more is better" if SCORES[score] else "less is better"
    shown = _BAR if any(len(row.each) > 1 for row in rows) else ""
    if with_interval:
        shown += "; of one seed a bar is the 95 % interval over draws of the test rows"
    return charts.dots(f"{NAMES[score]}{where} ({better}){shown}", rows)


def _versions(runs: Sequence[Run], here: Mapping[str, str]) -> list[tuple[str, str]]:
    """Versions that trained each run, if the run has them; and the version that made the page."""
    rows = []
    for run in runs:
        trained = run.seeds[0].versions
        if trained:
            name = "Trained with" if len(runs) == 1 else f"{run.name} was trained with"
            rows.append((name, ", ".join(f"{key} {value}" for key, value in trained.items())))
    if here:
        rows.append(("Page made with", ", ".join(f"{key} {value}" for key, value in here.items())))
    return rows
