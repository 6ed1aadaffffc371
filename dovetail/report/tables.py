"""Tables and words of a report on runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dovetail.data.coverage import shown
from dovetail.data.wording import bytes_text, count_text, name_list
from dovetail.methods.outcome import ALONE
from dovetail.models.metrics import SCORES, on_rows
from dovetail.models.metrics import TITLES as NAMES
from dovetail.models.recovered import over_seeds, recovered_text
from dovetail.report.chart import mean_std
from dovetail.report.folder import Run, Seed, Sent
from dovetail.report.views import StyledCell, TableView


@dataclass(frozen=True)
class Names:
    """Names of this installation's methods.

    Attributes:
        sections: variant -> the section of the run file that has its settings.
        titles: section -> variant, or other name of a score -> what a table calls it.
    """

    sections: Mapping[str, str]
    titles: Mapping[str, Mapping[str, str]]

    def of(self, method: str) -> Titles:
        """Names of the variants of a run of this method."""
        return Titles(self.titles.get(self.sections.get(method, ""), {}))


@dataclass(frozen=True)
class Titles:
    """Variant, or other name of a score -> what a table calls it."""

    known: Mapping[str, str]

    def title(self, variant: str) -> str:
        return self.known.get(variant, variant)

    def short(self, variant: str) -> str:
        """A title without what is in brackets, or says who predicts.

        >>> Titles({"pooled": "pooled (all columns in one place)"}).short("pooled")
        'pooled'
        """
        return self.title(variant).split(" (")[0].split(", predicts ")[0]


# --- Scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A method's or baseline's scores.

    Attributes:
        name: variant, or other name of a score.
        each: per seed: party -> scores.
        partial: whether a seed's are those of training that is not done.
    """

    name: str
    each: Sequence[Mapping[str, Mapping[str, float]]]
    partial: bool

    def values(self, score: str, party: str | None = None) -> list[float]:
        """Values of a score, one per seed that has it: a party's, or the mean over the parties."""
        means = []
        for parties in self.each:
            values = [
                scores[score]
                for name, scores in parties.items()
                if score in scores and party in (None, name)
            ]
            if values and all(math.isfinite(value) for value in values):
                means.append(math.fsum(values) / len(values))
        return means

    @property
    def parties(self) -> list[str]:
        return list(dict.fromkeys(name for parties in self.each for name in parties if name))


def scored(run: Run) -> list[Scored]:
    """The method first, then baselines and other names, in the order that they were trained."""
    each = [seed.scores() for seed in run.seeds]
    names = dict.fromkeys([run.method, *(name for scores in each for name in scores)])
    return [
        Scored(
            name,
            [scores[name] for scores in each if name in scores],
            any(
                name in scores and not _is_done(seed, name)
                for seed, scores in zip(run.seeds, each, strict=True)
            ),
        )
        for name in names
        if any(name in scores for scores in each)
    ]


def _is_done(seed: Seed, name: str) -> bool:
    return any(name in done.scores for done in seed.done.values())


#: Scores in the order in which one is shown first.
_FIRST = (
    "auc",
    "accuracy",
    "rmse",
    "c_index",
    "poisson_deviance",
    "gamma_deviance",
    "pinball",
    *SCORES,
)


def headline_score(run: Run) -> str | None:
    """The score that a report shows first: AUC, else accuracy, else RMSE, else what there is."""
    known = _scores_in(run)
    return next((score for score in _FIRST if score in known), None)


def headline_scores(runs: Sequence[Run]) -> list[str]:
    """The first score that all runs have; where they have none in common, each one's own."""
    shared = set.intersection(*(_scores_in(run) for run in runs))
    common = next((score for score in _FIRST if score in shared), None)
    if common is not None:
        return [common]
    return list(dict.fromkeys(score for run in runs if (score := headline_score(run))))


def _scores_in(run: Run) -> set[str]:
    return {
        score
        for each in scored(run)
        for parties in each.each
        for scores in parties.values()
        for score in scores
    }


def value_text(values: Sequence[float]) -> str:
    """Mean, and spread over several.

    >>> value_text([0.5, 0.75]), value_text([0.5]), value_text([])
    ('0.625 ±\\xa00.177', '0.500', '–')
    """
    if not values:
        return "–"
    mean, std = mean_std(values)
    digits = 3 if abs(mean) < 100 else 1
    return f"{mean:.{digits}f}" + (f" ±\u00a0{std:.{digits}f}" if len(values) > 1 else "")


def tested_rows(run: Run) -> dict[str, str]:
    """Name -> how many test rows its scores are of; {} where all are of the same."""
    counts: dict[str, list[int]] = {}
    for seed in run.seeds:
        for done in seed.done.values():
            for name, parties in done.details.items():
                counts.setdefault(name, []).append(sum(each.rows for each in parties.values()))
    means = {name: round(mean_std([float(n) for n in each])[0]) for name, each in counts.items()}
    return {name: f"{n:,}" for name, n in means.items()} if len({*means.values()}) > 1 else {}


def score_table(run: Run, titles: Titles) -> TableView:
    """The method and its baselines by score, with seconds; means over parties and seeds."""
    rows = scored(run)
    columns = [score for score in SCORES if any(row.values(score) for row in rows)]
    tested = tested_rows(run)
    body: list[Sequence[str | StyledCell]] = []
    for row in rows:
        title = titles.title(row.name) + (", so far" if row.partial else "")
        seconds = [s.done[row.name].seconds for s in run.seeds if row.name in s.done]
        took = f"{mean_std(seconds)[0]:,.1f}" if seconds else ""
        cells = [value_text(row.values(score)) for score in columns]
        cells += [tested.get(row.name, "–")] if tested else []
        body.append((StyledCell(title, "main") if row.name == run.method else title, *cells, took))
    many = max((len(row.parties) for row in rows), default=1)
    over = [f"mean of {many} parties"] if many > 1 else []
    over += [f"mean ± standard deviation of {len(run.seeds)} seeds"] if len(run.seeds) > 1 else []
    return TableView(
        "; ".join([on_rows(columns), *over]),
        ("", *(NAMES[score] for score in columns), *["test rows"] * bool(tested), "seconds"),
        body,
        numbers=range(1, len(columns) + 2 + bool(tested)),
        stack=len(columns) > 2,
    )


def party_table(run: Run, titles: Titles) -> TableView | None:
    """Each party's score by method and baseline; None for one party."""
    score = headline_score(run)
    rows = [row for row in scored(run) if len(row.parties) > 1]
    if score is None or not rows:
        return None
    parties = rows[0].parties
    rows = [row for row in rows if set(row.parties) & set(parties)]
    alone = next((row for row in rows if row.name in ALONE), None)
    main = rows[0]
    gains = alone is not None and main.name == run.method
    body = []
    for party in parties:
        cells = [value_text(row.values(score, party)) for row in rows]
        if gains and alone is not None:
            scores, lone = main.values(score, party), alone.values(score, party)
            paired = len(scores) == len(lone) and scores
            gain = [a - b for a, b in zip(scores, lone, strict=True)] if paired else []
            cells.append(f"{mean_std(gain)[0]:+.3f}" if gain else "–")
        body.append((party, *cells))
    head = ["party", *(titles.short(row.name) for row in rows)]
    head += ["against alone"] if gains else []
    spread = f", mean ± standard deviation of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
    return TableView(
        f"{NAMES[score]} of each party{spread}",
        head,
        body,
        numbers=range(1, len(head)),
        stack=len(head) > 5,
    )


def compared_table(runs: Sequence[Run], names: Names, score: str) -> TableView:
    """Table of one score: methods and baselines by run."""
    rows_by_run = [{row.name: row for row in scored(run)} for run in runs]
    body: list[Sequence[str | StyledCell]] = []
    row_cells = [
        f"{value_text(rows[run.method].values(score))}" if run.method in rows else "–"
        for run, rows in zip(runs, rows_by_run, strict=True)
    ]
    titles = [names.of(run.method) for run in runs]
    same = len({run.method for run in runs}) == 1
    first = titles[0].title(runs[0].method) if same else "the run's own method"
    body.append((StyledCell(first, "main"), *row_cells))
    if not same:
        shorts = [each.short(run.method) for each, run in zip(titles, runs, strict=True)]
        body.append(("which is", *shorts))
    # What is learned without the others has a name of its own in each method.
    roles = [
        {"alone" if name in ALONE else name: name for name in rows if name != run.method}
        for run, rows in zip(runs, rows_by_run, strict=True)
    ]
    for role in dict.fromkeys(role for each in roles for role in each):
        cells = [
            value_text(rows[each[role]].values(score)) if role in each else "–"
            for each, rows in zip(roles, rows_by_run, strict=True)
        ]
        called = dict.fromkeys(
            local_titles.title(each[role])
            for local_titles, each in zip(titles, roles, strict=True)
            if role in each
        )
        title = " / ".join(called)
        if role == "alone" and len(called) > 1:
            title = "learning alone, as each method has it"
        if any(cell != "–" for cell in cells):
            body.append((title, *cells))
    seeds = [str(len(run.seeds)) for run in runs]
    body.append(("seeds", *seeds))
    took = [
        [seed.done[run.method].seconds for seed in run.seeds if run.method in seed.done]
        for run in runs
    ]
    body.append(("seconds of the method", *(f"{mean_std(t)[0]:,.1f}" if t else "–" for t in took)))
    body.append(("left its owner", *(bytes_text(_sent_bytes(run)) for run in runs)))
    return TableView(
        f"{NAMES[score]} {on_rows([score])}; mean, ± standard deviation over seeds",
        ("", *(run.name for run in runs)),
        body,
        numbers=range(1, len(runs) + 1),
        stack=len(runs) > 4,
    )


# --- In plain words -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Headline:
    """Headline of a run.

    Attributes:
        figure: the main figure; "" where there is none yet.
        figure_name: what it is.
        trained: what was trained, by whom.
        alone: who predicts alone.
        against: against learning alone.
        recovered: how much of the partners' help stays when they leave.
    """

    figure: str
    figure_name: str
    trained: str
    alone: str
    against: str
    recovered: str = ""


def interval(run: Run, name: str, score: str) -> tuple[float, float] | None:
    """The 95 % interval of a score of one seed and one party; else None."""
    if len(run.seeds) > 1:
        return None
    found = [
        judged.intervals[score]
        for done in run.seeds[0].done.values()
        for judged in done.details.get(name, {}).values()
        if score in judged.intervals
    ]
    return found[0] if len(found) == 1 else None


def trained_on(run: Run, least: int = 0) -> str:
    """How many rows partners share, the day on which the run ended, and whether its messages were
    attacked; numbers below ``least`` are hidden."""
    ends = [each.path / "result.json" for each in run.seeds if each.finished]
    if not ends:
        return ""
    day = datetime.fromtimestamp(max(path.stat().st_mtime for path in ends)).date()
    verdict = "not run" if run.audit is None else run.audit.verdict
    told = (f"{name} {shown(n, least=least)}" for name, n in run.seeds[0].shared.items())
    shared = "; ".join(told)
    rows = f"Rows of the label owner that a partner has, too: {shared}. " if shared else ""
    return f"{rows}Trained on {day}. Audit: {verdict}."


def next_steps(run: Run) -> Iterator[str]:
    """Commands for what to do next."""
    if not all(seed.finished for seed in run.seeds):
        yield "It is not done: say dovetail train again, with --resume."
        return
    here = Path.cwd()
    path = run.path.relative_to(here) if run.path.is_relative_to(here) else run.path
    if len(run.seeds) == 1:
        yield "Before you rely on a gain: --set 'seeds=[0, 1, 2]' shows how far chance moves it."
    if run.audit is None:
        yield f"Before you go on with partners: dovetail audit {path} attacks its messages."
    if any(seed.models for seed in run.seeds):
        seen = any(
            judged.relied
            for done in run.seeds[0].done.values()
            for parties in done.details.values()
            for judged in parties.values()
        )
        wanted = "what columns add to each prediction" if seen else "which columns matter"
        yield f"To see {wanted}: dovetail explain {path} LABELLED.csv."
        yield f"To use it: dovetail predict {path} NEW.csv."


def headline(run: Run, titles: Titles) -> Headline:
    """The main figure, and what it means."""
    score = headline_score(run)
    rows = {row.name: row for row in scored(run)}
    main = rows.get(run.method)
    tested = tested_rows(run).get(run.method)
    values = main.values(score) if main and score else []
    figure = value_text(values) if values else ""
    parties = main.parties if main else []
    figure_name = ""
    if score and values:
        figure_name = f"{NAMES[score]} {on_rows([score])}"
        if tested is not None:
            figure_name = f"{NAMES[score]} on {tested} test rows"
        if main and main.partial:
            figure_name += " so far"
        if len(parties) > 1:
            figure_name += f", mean of {len(parties)} parties"
        if len(run.seeds) > 1:
            figure_name += f", {len(run.seeds)} seeds"
    return Headline(
        figure,
        figure_name,
        _trained(run, titles),
        _alone(run),
        _against(rows, run, score, titles),
        _recovered(run),
    )


def _recovered(run: Run) -> str:
    """How much of the partners' help stays, where the run says so."""
    gains = [seed.recovered.model_dump() for seed in run.seeds if seed.recovered is not None]
    if not gains:
        return ""
    return recovered_text(gains[0] if len(gains) == 1 else over_seeds(gains))


def _trained(run: Run, titles: Titles) -> str:
    """The method, the data and the parties."""
    data = run.settings.get("data")
    source = str(data.get("source", "")) if isinstance(data, Mapping) else ""
    label = str(data.get("label") or "") if isinstance(data, Mapping) else ""
    text = titles.short(run.method)
    if source:
        what = "a query" if source.lstrip().upper().startswith("SELECT") else source.split("/")[-1]
        text += f" on {what}" + (f", which predicts {label}" if label else "")
    members = parties_of(run)
    if members:
        text += f"; {count_text(len(members), 'party', 'parties')}: {name_list(members, 6)}"
    return text + "."


def parties_of(run: Run) -> list[str]:
    """Names of parties with data: those that were scored or have a model, and those who were sent
    messages."""
    named = [party for row in scored(run) for party in row.parties if row.name == run.method]
    named += [party for seed in run.seeds for party in seed.models]
    named += [
        party
        for seed in run.seeds
        for sent in seed.sent
        if sent.variant in ("", run.method)
        for party in (sent.sender, sent.receiver)
    ]
    return [name for name in dict.fromkeys(named) if name not in ("coordinator", "server")]


def _alone(run: Run) -> str:
    """Names of who predicts alone: parties with a model that needs no other."""
    first = run.seeds[0]
    able = [name for name in first.models if name != "server"]
    if not able:
        return ""
    if first.bottoms:
        them = "it predicts" if len(able) == 1 else "they predict"
        return (
            f"{name_list(able, 6)}: {them} together with {name_list(first.bottoms, 6)}, whose "
            "columns a prediction needs."
        )
    if len(able) == 1:
        also = (
            " While partners are there, models/joint predicts with them." if first.together else ""
        )
        return (
            f"{able[0]} now predicts alone: its model needs its own columns and no partner.{also}"
        )
    everyone = "Each party" if set(able) >= set(parties_of(run)) else name_list(able, 6)
    return f"{everyone} now predicts alone: a model needs its party's own columns and no partner."


def _against(rows: Mapping[str, Scored], run: Run, score: str | None, titles: Titles) -> str:
    """The main figure against learning alone, and whether seeds agree on it."""
    name = next((name for name in ALONE if name in rows), None)
    if score is None or name is None or run.method not in rows or name == run.method:
        return ""
    main, alone = rows[run.method].values(score), rows[name].values(score)
    if not main or not alone:
        return ""
    better = mean_std(main)[0] - mean_std(alone)[0]
    lone = "learning alone, without partners,"
    if name == "best-alone":
        lone = "the best local model, chosen on held-out rows:"
    if run.seeds[0].bottoms:
        lone = f"{titles.short(name)}:"
    if score in ("accuracy", "validation"):
        rows_text = "validation" if score == "validation" else "test"
        text = (
            f"It is right on {100 * mean_std(main)[0]:.1f}\u00a0% of the {rows_text} rows; {lone} "
            f"on {100 * mean_std(alone)[0]:.1f}\u00a0%"
        )
        size = f"{100 * abs(better):.1f} points"
    else:
        text = f"Its {NAMES[score]} is {mean_std(main)[0]:.3f}; {lone} {mean_std(alone)[0]:.3f}"
        size = f"{abs(better):.3f}"
    if len(rows[run.method].parties) > 1:
        text = text.replace("It is", "On average a party is").replace("Its", "On average a party's")
    word = "better" if (better > 0) == SCORES[score] else "worse"
    if len(main) != len(alone) or len(main) < 2:
        seeds = "one seed, so the spread is unknown" if len(main) == 1 else "seeds differ"
        return f"{text}. That is {size} {word} ({seeds})."
    gains = [a - b for a, b in zip(main, alone, strict=True)]
    spread = mean_std(gains)[1]
    agree = sum((gain > 0) == SCORES[score] for gain in gains)
    if abs(better) <= spread:
        return f"{text}. That is no clear difference: seeds differ by more."
    which = (
        "every seed"
        if agree in (0, len(gains))
        else f"{max(agree, len(gains) - agree)} of {len(gains)} seeds"
    )
    return f"{text}. That is {size} {word}, in {which}."


def comparable(runs: Sequence[Run]) -> str:
    """A warning where runs differ in data, so that their figures do not compare; else ""."""
    data = [{key: run.settings.get(key) for key in ("data", "parties", "test")} for run in runs]
    if all(each == data[0] for each in data):
        return ""
    return (
        "These runs differ in their data, or in how they are split among parties: see the "
        "settings below before comparing figures across runs."
    )


# --- What left whom -------------------------------------------------------------------------------


def _of_method(run: Run) -> Iterator[tuple[Seed, Sent]]:
    for seed in run.seeds:
        for sent in seed.sent:
            if sent.variant in ("", run.method):
                yield seed, sent


def _num_ledgers(run: Run) -> int:
    return sum(bool(seed.sent) for seed in run.seeds)


def _sent_bytes(run: Run) -> int:
    return round(sum(sent.bytes for _, sent in _of_method(run)) / max(1, _num_ledgers(run)))


def flows(run: Run) -> list[dict[str, str]]:
    """Bytes that left each party and reached it, of the run's own method, mean over seeds.

    Bytes, and shares of the largest in per cent.
    """
    totals: dict[str, list[int]] = {}
    for _, sent in _of_method(run):
        totals.setdefault(sent.sender, [0, 0])[0] += sent.bytes
        totals.setdefault(sent.receiver, [0, 0])[1] += sent.bytes
    seeds = max(1, _num_ledgers(run))
    most = max((value for pair in totals.values() for value in pair), default=0) or 1
    return [
        {
            "party": party,
            "sent": bytes_text(round(sent / seeds)),
            "received": bytes_text(round(received / seeds)),
            "sent_share": f"{100 * sent / most:.2f}",
            "received_share": f"{100 * received / most:.2f}",
        }
        for party, (sent, received) in totals.items()
    ]


def message_table(run: Run) -> TableView | None:
    """Table of messages by sender and type: tensors, how many, bytes; None if there were none."""
    kinds: dict[tuple[str, tuple[tuple[str, str], ...]], list[Sent]] = {}
    for _, sent in _of_method(run):
        named = tuple((tensor.name, tensor.dtype) for tensor in sent.tensors)
        kinds.setdefault((sent.message, named), []).append(sent)
    if not kinds:
        return None
    seeds = max(1, _num_ledgers(run))
    body: list[tuple[str, ...]] = []
    for (message, named), lines in itertools.islice(kinds.items(), 60):
        senders = list(dict.fromkeys(line.sender for line in lines))
        receivers = list(dict.fromkeys(line.receiver for line in lines))
        tensors = [
            f"{name} {dtype} {_shape([line.tensors[index].shape for line in lines])}"
            for index, (name, dtype) in enumerate(named[:8])
        ]
        tensors += [f"and {len(named) - 8} more"] if len(named) > 8 else []
        costs = [line.epsilon for line in lines if line.epsilon is not None]
        body.append(
            (
                message,
                f"{name_list(senders, 2)} → {name_list(receivers, 2)}",
                ", ".join(tensors) or "no tensor",
                f"{sum(line.count for line in lines) / seeds:,.0f}",
                bytes_text(round(sum(line.bytes for line in lines) / seeds)),
                f"{max(costs):.3g}" if costs else "",
            )
        )
    if len(kinds) > len(body):
        body.append((f"and {len(kinds) - len(body)} more", "", "", "", "", ""))
    head: tuple[str, ...] = ("message", "from → to", "tensors", "messages", "bytes", "epsilon")
    if not any(row[-1] for row in body):  # nothing is counted
        head, body = head[:-1], [row[:-1] for row in body]
    spread = f"; mean of {seeds} seeds" if seeds > 1 else ""
    return TableView(
        f"every message that left anybody, from ledger.jsonl{spread}",
        head,
        body,
        numbers=tuple(range(3, len(head))),
        stack=True,
    )


def _shape(shapes: Sequence[Sequence[int]]) -> str:
    """Pattern that shapes have in common.

    >>> _shape([[64, 8], [10, 8]]), _shape([[]]), _shape([[2], [2, 2]])
    ('10–64×8', 'scalar', 'of several shapes')
    """
    if len({len(shape) for shape in shapes}) > 1:
        return "of several shapes"
    sizes = [
        f"{min(axis)}" if min(axis) == max(axis) else f"{min(axis)}–{max(axis)}"
        for axis in zip(*shapes, strict=True)
    ]
    return "×".join(sizes) or "scalar"


def baselines_sent(run: Run, titles: Titles) -> str:
    """Sentence on what the baselines sent besides; "" if they sent nothing."""
    totals: dict[str, int] = {}
    for seed in run.seeds:
        for sent in seed.sent:
            if sent.variant not in ("", run.method):
                totals[sent.variant] = totals.get(sent.variant, 0) + sent.bytes
    seeds = max(1, _num_ledgers(run))
    each = [
        f"{titles.short(variant)} {bytes_text(round(total / seeds))}"
        for variant, total in totals.items()
        if total
    ]
    return f"Baselines are not part of it; theirs: {', '.join(each)}." if each else ""


# --- Missed, settings, versions -------------------------------------------------------------------


def missed_table(run: Run, titles: Titles) -> TableView | None:
    """Table of who was left out of how much, and why; None if nobody was."""
    body = []
    for seed in run.seeds:
        for variant, done in seed.done.items():
            for party, missed in done.missed.items():
                unit = "steps" if missed.steps is not None else "rounds"
                count = missed.steps if missed.steps is not None else missed.rounds or 0
                body.append(
                    (
                        party,
                        titles.short(variant),
                        str(seed.seed),
                        f"{count:,} of {missed.of:,} {unit}",
                        missed.first,
                    )
                )
    if not body:
        return None
    head = ("party", "of", "seed", "left out of", "why, the first time")
    return TableView("", head, body, numbers=(2,), stack=True)


def search_table(run: Run) -> TableView | None:
    """Every trial of the search that came before the run; None where there was none."""
    if run.search is None:
        return None
    body = []
    for number, trial in enumerate(run.search.trials):
        settings = ", ".join(f"{key} = {value}" for key, value in trial.settings.items())
        score = trial.failed if trial.score is None else f"{trial.score:.4f}"
        chosen = "chosen" if number == run.search.best else ""
        text = settings or "as the run file says"
        body.append((str(number + 1), text, score, f"{trial.seconds:.1f}", chosen))
    judges = sum(len(ids) for ids in run.search.judged_on.values())
    rows = f"{judges:,} validation rows" if judges else "rows that parties kept out at its site"
    caption = f"Settings tried before the run, judged on {rows}"
    head = ("trial", "settings", run.search.metric, "seconds", "")
    return TableView(caption, head, body, numbers=(0, 2, 3), stack=True)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys and values of nested tables.

    >>> list(_flat({"a": {"b": [1, 2], "c": {}}, "d": True}))
    [('a.b', '1, 2'), ('d', 'true')]
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        yield prefix, ", ".join(_plain(each) for each in value) or "none"
    elif isinstance(value, list):
        for index, inner in enumerate(value, 1):
            yield from _flat(inner, f"{prefix}.{index}")
    else:
        yield prefix, _plain(value)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_of(run: Run, names: Names) -> dict[str, str]:
    """A run's settings, less those of other methods and of files' checksums."""
    section = names.sections.get(run.method)
    idle: Collection[str] = {*names.sections.values()} - ({section} if section else set())
    if section is None:
        idle = ()
    shown = {
        key: value
        for key, value in run.settings.items()
        if key not in idle and key not in ("seed", "seeds", "sha256", "recipes")
    }
    settings = dict(_flat(shown))
    settings["seeds"] = ", ".join(str(seed.seed) for seed in run.seeds)
    for variant in dict.fromkeys(variant for seed in run.seeds for variant in seed.chosen):
        chosen = dict.fromkeys(
            ", ".join(f"{key} {value}" for key, value in _flat(seed.chosen[variant]))
            for seed in run.seeds
            if variant in seed.chosen
        )
        settings[f"chosen for {variant}"] = "; or ".join(chosen)
    return settings


def settings_table(runs: Sequence[Run], names: Names) -> TableView:
    """Keys of the run file by run; those that differ first and marked."""
    each = [_settings_of(run, names) for run in runs]
    keys = list(dict.fromkeys(key for settings in each for key in settings))
    differing = [key for key in keys if len({settings.get(key) for settings in each}) > 1]
    body: list[Sequence[str | StyledCell]] = []
    for key in [*differing, *(key for key in keys if key not in differing)]:
        values = [settings.get(key, "–") for settings in each]
        body.append((StyledCell(key, "main") if key in differing else key, *values))
    caption = "run.toml as resolved" + ("; what differs stands first" if differing else "")
    head = ("key", *(run.name for run in runs)) if len(runs) > 1 else ("key", "value")
    return TableView(caption, head, body)
