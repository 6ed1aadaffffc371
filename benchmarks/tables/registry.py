"""The tables and figures of the papers that ``dovetail bench`` makes: the only list of them.

A table is a title and its cells; a cell names a run file of ``runs/``, what the table's columns say
of it, and where the paper's figures stand in ``papers.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from benchmarks.tables.cells import Cell, Table

APFED = {
    "alone": "alone (SingleVL)",
    "apfed-r": "APFed-R",
    "apfed-c": "APFed-C",
    "tvfl": "classic, partner present",
    "tvfl-0": "partner gone: TVFL-0",
    "tvfl-a": "partner gone: TVFL-A",
    "tvfl-r": "partner gone: TVFL-R",
}
#: The same where scores stand side by side.
APFED_WIDE = {
    "alone": "alone",
    "apfed-r": "APFed-R",
    "apfed-c": "APFed-C",
    "pooled": "pooled",
    "tvfl": "classic",
    "tvfl-0": "TVFL-0",
    "tvfl-a": "TVFL-A",
    "tvfl-r": "TVFL-R",
}
CHFL = {
    "common": "Common",
    "local": "Local",
    "chfl-mu0": "CHFL, μ = 0",
    "chfl": "CHFL, μ > 0",
    "chfl-gate": "CHFL, as users have it",
    "boosting": "boosted trees, alone",
}
HYFEM = {
    "server": "HyFEM, server",
    "hyfem": "HyFEM, parties",
    "standalone": "stand-alone, parties",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
    "pooled": "pooled",
}

WORTH = {
    "linear": "linear",
    "boosting": "boosting",
    "network": "network",
    "best-alone": "best alone",
    "joint": "joint",
    "apfed-d": "APFed-D",
    "apfed": "APFed-S",
    "apfed-r": "APFed-R",
    "apfed-c": "APFed-C",
    "party-dropout-gone": "party dropout",
    "laser-gone": "LASER",
}

IMAGES = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def _some(titles: dict[str, str], *names: str) -> dict[str, str]:
    return {name: titles[name] for name in names}


def _apfed_table_2() -> Iterator[Cell]:
    methods = {
        "tvfl": _some(APFED, "tvfl", "tvfl-0", "tvfl-a", "tvfl-r"),
        **{name: _some(APFED, name) for name in ("alone", "apfed-r", "apfed-c")},
    }
    for data, title in IMAGES.items():
        for setting in ("2-1", "2-2", "3-1", "3-2", "3-3"):
            for method, scores in methods.items():
                yield Cell(
                    name=f"{data}-{setting}-{method}",
                    run=f"apfed/table2.toml:{data}-{setting}-{method}",
                    labels={"data": title, "setting": setting},
                    scores=scores,
                    paper=("apfed-table2", f"{title}, {setting}"),
                    kind=f"{data}-{method}",
                )


def _apfed_lambda() -> Iterator[Cell]:
    for data in IMAGES:
        for trade_off in ("0", "0.1", "1", "10"):
            for method in ("alone",) if trade_off == "0" else ("apfed-r", "apfed-c"):
                # Where it is a cell of Table 2, it is the same run.
                same = trade_off in ("0", "1")
                name = f"{data}-2-1-{method}"
                yield Cell(
                    name=name if same else f"{name}-lambda-{trade_off}",
                    run=f"apfed/table2.toml:{name}",
                    overrides=() if same else (f"apfed.trade_off={float(trade_off)}",),
                    labels={"data": IMAGES[data], "λ": trade_off},
                    scores=_some(APFED, method),
                    # Section 5.3: with λ = 0 both methods are SingleVL.
                    paper=("apfed-table2", f"{IMAGES[data]}, 2-1") if trade_off == "0" else None,
                    kind=f"{data}-{method}",
                )


#: Which rows the table has, in how many labels.
LABELS = {
    "adult": ("100", "300", "1000", "32561"),
    "credit": ("100", "300", "1000", "22500"),
    "fmnist": ("100", "300", "1000"),
}


def _apfed_labels() -> Iterator[Cell]:
    for data, counts in LABELS.items():
        image = data == "fmnist"
        baselines = () if image else ("pooled", "tvfl", "tvfl-0", "tvfl-a", "tvfl-r")
        for labels in counts:
            yield Cell(
                name=f"{data}-labels-{labels}",
                run=f"apfed/{data}-labels.toml",
                overrides=(f"data.labels={labels}",),
                labels={"data": data, "labels": labels},
                scores=_some(APFED_WIDE, "alone", "apfed-r", "apfed-c", *baselines),
                score="accuracy" if image else "auc",
                kind=data,
            )


#: A partner's loss -> what the table calls it; the first two are the paper's.
LOSSES = {
    "reconstruction": "APFed-R",
    "contrastive": "APFed-C",
    "clustering": "multi-view clustering",
    "vicreg": "VICReg",
}
#: Where a partner's loss helped most, and where it hardly does.
LOSS_DATA = {"credit": ("300", "1000"), "adult": ("300", "1000")}


def _apfed_losses() -> Iterator[Cell]:
    """Section 6.3: other losses of a passive party, beside R and C of the table of few labels."""
    for data, counts in LOSS_DATA.items():
        for labels, loss in product(counts, LOSSES):
            yield Cell(
                name=f"{data}-labels-{labels}-{loss}",
                run=f"apfed/{data}-labels.toml",
                overrides=(
                    f"data.labels={labels}",
                    "method=apfed-mixed",
                    f"passive.loss={loss}",
                    'baselines=["alone"]',
                ),
                labels={"data": data, "labels": labels, "a partner's loss": LOSSES[loss]},
                scores={"alone": "alone", "apfed-mixed": "helped"},
                score="auc",
                kind=f"{data}-losses",
            )


def _apfed_overlap() -> Iterator[Cell]:
    titles = {"pairwise": "all of the bank's rows", "common": "common rows only"}
    for overlap, title in titles.items():
        yield Cell(
            name=f"adult-overlap-{overlap}",
            run="apfed/adult-overlap.toml",
            overrides=(f"apfed.overlap={overlap}",),
            labels={"trained on": f"{title} (`{overlap}`)"},
            scores=_some(APFED_WIDE, "alone", "apfed-r", "apfed-c"),
            score="auc",
            kind="overlap",
        )


#: Data set -> what the table calls it and the numbers of labels; None: all.
WORTH_LABELS: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "adult": ("Adult, AUC", (100, 300, 1000, None)),
    "credit": ("credit, AUC", (100, 300, 1000, 3000, None)),
    "digits": ("digits, halves", (100, 300)),
    "zer": ("handwritten, zer with pix", (100, 400)),
    "mor": ("handwritten, mor with pix and fou", (100, 400)),
    "cub": ("cub, text with image", (60, 200)),
    "wikipedia": ("wikipedia, image with text", (200, 1000)),
    "landuse": ("landuse, lbp with the rest", (200, 800)),
    "leaves": ("leaves, shape with the rest", (300, 900)),
    "ccv": ("ccv, mfcc with the rest", (300, 2000)),
}


def _worth() -> Iterator[Cell]:
    for data, (title, counts) in WORTH_LABELS.items():
        for labels in counts:
            yield _worth_cell(
                f"{data}-{labels or 'all'}",
                data,
                {"data": title, "labels": str(labels or "all")},
                () if labels is None else (f"data.labels={labels}",),
            )


def _worth_partners() -> Iterator[Cell]:
    """Partners who know few of the people, or of whom one knows nothing."""
    kinds = {
        "overlap": ("30 % of the rows shared", "data.partition.overlap=0.3"),
        "noise": (
            "with a third party, who has `fnlwgt`",
            'data.partition.parties.noise=["fnlwgt"]',
        ),
    }
    for kind, (title, override) in kinds.items():
        for data in ("adult",) if kind == "noise" else ("adult", "credit", "digits", "zer"):
            for labels in WORTH_LABELS[data][1][:3]:
                yield _worth_cell(
                    f"{data}-{labels}-{kind}",
                    data,
                    {"data": WORTH_LABELS[data][0], "partners": title, "labels": str(labels)},
                    (f"data.labels={labels}", override),
                )


def _worth_cell(name: str, data: str, labels: dict[str, str], overrides: tuple[str, ...]) -> Cell:
    return Cell(
        name=f"worth-{name}",
        run=f"apfed/worth.toml:{data}",
        overrides=overrides,
        labels=labels,
        scores=WORTH,
        score="auc" if data in ("adult", "credit") else "accuracy",
        kind=f"{data}-{overrides[:1]}",
    )


#: Splits of covertype's columns -> who has elevation, its most telling column: chosen by that
#: before any was run, as the paper's splits, which it does not name, spread by 11 points.
ELEVATION = {(0, 1): "at one party", (3,): "common"}


def _chfl(
    data: str,
    parties: int,
    common: int,
    labels: dict[str, str],
    paper: tuple[str, str] | None,
    splits: tuple[int, ...] = (0, 1, 2),
) -> Iterator[Cell]:
    """The splits of a cell of CHFL's tables."""
    for split in splits:
        name = f"{data}-{parties}-{common}"
        yield Cell(
            name=f"{name}-split{split}",
            run=f"chfl/tables.toml:{name}",
            overrides=(f"data.partition.seed={split}",),
            labels=labels,
            scores=CHFL,
            paper=paper,
            checkpoint_every=1,
            kind=f"{data}-{parties}",
        )


def _missing(table: str, labels: dict[str, str], row: str, reason: str) -> Cell:
    """A row of a table whose data set could not be had."""
    return Cell(
        name=row.lower(),
        run="",
        labels=labels,
        scores=CHFL,
        paper=(table, row),
        unavailable=reason,
    )


#: Data set of many classes that could not be had -> another, and what the table calls it.
STAND_INS = {
    "aloi": ("letter", "letter (26 classes), for aloi"),
    "helena": ("leaves", "leaves (100 classes), for helena"),
}


def _chfl_table_2() -> Iterator[Cell]:
    for data in ("covertype", "sensorless", "aloi", "helena", "jannis"):
        if data in STAND_INS:
            reason = f"the data set {data} could not be had"
            yield _missing("chfl-table2", {"data": data}, data, reason)
            other, title = STAND_INS[data]
            yield from _chfl(other, 5, 30, {"data": title}, None)
        elif data == "covertype":
            for splits, title in ELEVATION.items():
                labels = {"data": f"{data}, elevation {title}"}
                yield from _chfl(data, 5, 30, labels, ("chfl-table2", data), splits)
        else:
            yield from _chfl(data, 5, 30, {"data": data}, ("chfl-table2", data))


def _chfl_table_3() -> Iterator[Cell]:
    for parties in (2, 5, 10):
        paper = ("chfl-table3", str(parties))
        for splits, title in ELEVATION.items():
            labels = {"parties": str(parties), "elevation": title}
            yield from _chfl("covertype", parties, 30, labels, paper, splits)


def _chfl_table_4() -> Iterator[Cell]:
    for row in ("Maximum", "Median", "Minimum"):
        reason = "its data set, helena, could not be had"
        labels = {"data": "helena", "correlation": row}
        yield _missing("chfl-table4", labels, row, reason)
    for data, row in product(("covertype", "jannis", "letter"), ("Maximum", "Median", "Minimum")):
        correlation = row.lower()
        yield Cell(
            name=f"{data}-5-30-{correlation}",
            run=f"chfl/tables.toml:{data}-5-30",
            overrides=(f"data.partition.correlation={correlation}",),
            labels={"data": data, "correlation": row},
            scores=CHFL,
            checkpoint_every=1,
            kind=f"{data}-5",
        )


SIMPLE = {"simple": "another simple method (V-B5)"}


def _chfl_simple() -> Iterator[Cell]:
    """V-B5 on the splits and seeds of Table II."""
    for data, splits in {"covertype": (0, 1, 3), "jannis": (0, 1, 2)}.items():
        for cell in _chfl(data, 5, 30, {"data": data}, ("chfl-table2", data), splits):
            yield replace(
                cell,
                name=cell.name.replace("-split", "-simple-split"),
                overrides=(*cell.overrides, "method=simple", "baselines=[]"),
                scores=SIMPLE,
                kind=f"{data}-5-simple",
            )


#: What V-A3's parties choose from, each on its validation rows.
TUNED = (
    "chfl.search.learning_rate=[3e-4,1e-3,3e-3]",
    "chfl.search.mu=[0.3,1.0]",
    "chfl.search.rounds=4",
)
TUNED_NOTE = "Rates of 0.0003, 0.001, 0.003 and mu of 0.3, 1, chosen with seed 0 for all seeds."


def _tuned(cell: Cell, name: str, kind: str, *baselines: str) -> Cell:
    """V-A3: each party chooses its own rate and mu on its validation rows."""
    asked = ",".join(f'"{each}"' for each in baselines)
    return replace(
        cell,
        name=cell.name.replace("-split", f"-{name}-split"),
        overrides=(
            *cell.overrides,
            *TUNED,
            f"baselines=[{asked}]",
        ),
        scores={each: CHFL[each] for each in CHFL if each in (*baselines, "chfl")},
        kind=kind,
    )


def _by_elevation(
    paper: tuple[str, str],
) -> Iterator[tuple[tuple[int, ...], str, tuple[str, str] | None]]:
    """Covertype's splits where each party tunes, what tables call them, the paper's figures.

    In the paper "Common" has 62.18 +- 10.86 over three splits: elevation, the most informative
    column, is then common in two of them. A fourth has no figure in the paper.
    """
    yield (0, 3, 4), "common in two of three", paper
    yield (1,), "at one party, a fourth split", None


def _chfl_each() -> Iterator[Cell]:
    """V-A3 on splits of Table II, and V-B5's method tuned likewise."""
    rows = [
        ("covertype", splits, f"covertype, elevation {title}", paper)
        for splits, title, paper in _by_elevation(("chfl-table2", "covertype"))
    ]
    rows.append(("jannis", (0, 1, 2), "jannis", ("chfl-table2", "jannis")))
    for data, splits, title, paper in rows:
        for cell in _chfl(data, 5, 30, {"data": title}, paper, splits):
            tuned = _tuned(cell, "each", f"{data}-5-each", "chfl-mu0", "local")
            yield tuned
            yield replace(
                tuned,
                name=tuned.name.replace("-each-", "-simple-each-"),
                overrides=(
                    *cell.overrides,
                    *TUNED[:1],
                    *TUNED[2:],
                    "method=simple",
                    "baselines=[]",
                ),
                scores=SIMPLE,
                kind=f"{data}-5-simple-each",
            )


def _chfl_share_each() -> Iterator[Cell]:
    for share in (10, 20, 30, 40, 50):
        for cell in _chfl("covertype", 5, share, {"common columns, %": str(share)}, None):
            yield _tuned(cell, "tuned", f"covertype-5-{share}", "chfl-mu0", "common", "local")


def _chfl_table_3_each() -> Iterator[Cell]:
    """Table III where each party tunes."""
    tuned = "chfl-mu0", "common", "local"
    for parties in (2, 5, 10):
        for splits, title, paper in _by_elevation(("chfl-table3", str(parties))):
            labels = {"parties": str(parties), "elevation": title}
            for cell in _chfl("covertype", parties, 30, labels, paper, splits):
                yield _tuned(cell, "parties", f"covertype-{parties}-each", *tuned)


def _chfl_share() -> Iterator[Cell]:
    for share in (10, 20, 30, 40, 50):
        paper = ("chfl-table2", "covertype") if share == 30 else None
        yield from _chfl("covertype", 5, share, {"common columns, %": str(share)}, paper)


HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Budapest",
    "switzerland": "Zurich and Basel",
    "va": "Long Beach",
}
#: What is trained, by method.
HOSPITAL_SCORES = {
    "chfl": {
        "chfl": "CHFL",
        "common": "common columns, FedAvg",
        "local": "network, alone",
        "linear": "logistic regression, alone",
        "boosting": "boosted trees, alone",
    },
    "hyfem": {"hyfem": "HyFEM"},
}


def _hospital_cell(
    method: str, split: int, name: str, patients: str, scores: dict[str, str], *overrides: str
) -> Cell:
    return Cell(
        name=f"{method}-{name}-split{split}",
        run=f"hospitals/heart.toml:{method}",
        overrides=(f"data.split_seed={split}", f"data.partition.seed={split}", *overrides),
        labels={"patients": patients},
        scores=scores,
        score="auc",
        kind=method,
    )


def _hospitals() -> Iterator[Cell]:
    """Few patients at one hospital, all at the others; all patients; and none at one."""
    for split, method in product(range(5), HOSPITAL_SCORES):
        titles = HOSPITAL_SCORES[method]
        of = {
            hospital: {f"{variant}@{hospital}": f"{city}: {t}" for variant, t in titles.items()}
            for hospital, city in HOSPITALS.items()
        }
        for few, (hospital, city) in product((20, 50, 100), HOSPITALS.items()):
            if (hospital, few) != ("switzerland", 100):  # it has fewer
                rows = f"data.partition.rows.{hospital}={few}"
                title = f"{few} at {city}"
                yield _hospital_cell(method, split, f"{hospital}-{few}", title, of[hospital], rows)
        every = {name: title for scores in of.values() for name, title in scores.items()}
        yield _hospital_cell(method, split, "all", "all everywhere", every)
        for hospital, city in HOSPITALS.items():
            title = f"none at {city}: the others' models"
            scores = {
                variant: f"{city}: {t}" for variant, t in titles.items() if variant != "local"
            }
            guest = f"data.partition.guest={hospital}"
            yield _hospital_cell(method, split, f"{hospital}-none", title, scores, guest)


HYFEM_CELLS = {
    "cifar10-12": ("CIFAR-10, 12 blocks, 9 parties", ()),
    "eurosat-12": ("EuroSAT half, 12 blocks, 9 parties", ()),
    "eurosat-all-12": ("EuroSAT, 12 blocks, 9 parties", ()),
    "cifar10-4": ("CIFAR-10, 4 blocks, 6 parties (C.1)", ("fedprox", "fedavg")),
    "eurosat-4": ("EuroSAT half, 4 blocks, 6 parties (C.1)", ("fedprox", "fedavg")),
    "fashion-4": ("Fashion-MNIST, 4 blocks, 6 parties", ()),
    "covertype-4": ("covertype, 4 groups of columns, 6 parties", ("fedprox", "fedavg")),
}


def _hyfem_run(name: str) -> str:
    """Tables are a file of their own beside the grid of images."""
    return f"hyfem/{name}.toml" if name == "covertype-4" else f"hyfem/figures.toml:{name}"


def _hyfem_figures() -> Iterator[Cell]:
    for name, (title, common) in HYFEM_CELLS.items():
        yield Cell(
            name=name,
            run=_hyfem_run(name),
            labels={"data": title},
            scores=_some(HYFEM, "server", "hyfem", "standalone", *common, "pooled"),
            checkpoint_every=8,
            kind=name,
        )


#: What a run with another matching is called, and its keys.
HYFEM_MATCHING = {
    "-start": ("one start, matched every round", ()),
    "-unmatched": ("one start, never matched", ("match_rounds=0",)),
    "-own": ("own starts, matched every round", ("start=own",)),
    "-own-frozen": ("own starts, matched in round 1", ("start=own", "match_rounds=1")),
    "-own-unmatched": ("own starts, never matched", ("start=own", "match_rounds=0")),
    "-own-class-weights": (
        "own starts, matched, `class_weights = true`",
        ("start=own", "class_weights=true"),
    ),
    "-own-free": ('own starts, matched, `width = "free"`', ("start=own", "width=free")),
    "-own-distance": ('own starts, matched, `cost = "distance"`', ("start=own", "cost=distance")),
}


def _hyfem_matching() -> Iterator[Cell]:
    for name, rate in {"fashion-4": 0.3, "cifar10-12": 0.05}.items():
        for suffix, (title, keys) in HYFEM_MATCHING.items():
            yield Cell(
                name=f"{name}{suffix}",
                run=_hyfem_run(name),
                overrides=(
                    *(
                        f"hyfem.{key}"
                        for key in ("calibrate=false", f"learning_rate={rate}", *keys)
                    ),
                    "baselines=[]",
                ),
                labels={"data": HYFEM_CELLS[name][0], "matching": title},
                scores=_some(HYFEM, "server", "hyfem"),
                checkpoint_every=8,
                kind=f"{name}-matching",
            )


#: What is added to a cell of parties whose classifiers are not matched -> when they are.
MATCHED = {"": "every round", "-unmatched": "never"}


def _hyfem_pull() -> Iterator[Cell]:
    """Alg. 2 line 2 beside Eq. (22a), with and without matching; C.4's mu_2."""
    alone = ("baselines=[]", "hyfem.start=own")
    ways: dict[str, tuple[str, str, tuple[str, ...]]] = {
        "restart": ("the server's (Alg. 2)", "0", ()),
        **{
            f"own-{mu}": (
                "its own (Eq. 22a)",
                mu,
                ("hyfem.restart=false", f"hyfem.mu_1={mu}", f"hyfem.mu_2={mu}"),
            )
            for mu in ("0.1", "0.3", "0.5")
        },
    }
    for (name, (title, mu, keys)), (suffix, matched) in product(ways.items(), MATCHED.items()):
        never = ("hyfem.match_rounds=0",) if suffix else ()
        yield Cell(
            name=f"covertype-4-{name}{suffix}",
            run=_hyfem_run("covertype-4"),
            overrides=(*alone, *keys, *never),
            labels={"goes on from": title, "μ_1 = μ_2": mu, "matched": matched},
            scores=_some(HYFEM, "server", "hyfem"),
            checkpoint_every=8,
            kind="covertype-4-pull",
        )


#: μ_1 = μ_2 of Eq. (4) to (6).
PULLS = ("0", "0.03", "0.1", "0.3", "0.5")


def _hyfem_printed() -> Iterator[Cell]:
    """Algorithm 2 as printed, at the paper's rate and at the one that ships; and Remark 3."""
    for rate, title in {"constant": "constant (the paper)", "cosine": "cosine (shipped)"}.items():
        for mu in PULLS:
            yield Cell(
                name=f"covertype-4-{rate}-{mu}",
                run=_hyfem_run("covertype-4"),
                overrides=(
                    "baselines=[]",
                    f"hyfem.schedule={rate}",
                    f"hyfem.mu_1={mu}",
                    f"hyfem.mu_2={mu}",
                ),
                labels={"rate": title, "μ_1 = μ_2": mu},
                scores=_some(HYFEM, "server", "hyfem"),
                checkpoint_every=0,
                kind="covertype-4-printed",
            )
    yield Cell(
        name="covertype-4-fedper",
        run=_hyfem_run("covertype-4"),
        overrides=("method=fedper", "baselines=[]"),
        labels={"rate": "cosine (shipped)", "μ_1 = μ_2": "0, FedPer (Remark 3)"},
        scores={"fedper": "FedPer, parties"},
        checkpoint_every=0,
        kind="covertype-4-fedper",
    )


#: Remark 3, cell -> what (6) is with one block, and what of it is scored.
ONE_BLOCK = {
    "hyfem": {
        "server": "HyFEM, μ 0.1, server",
        "hyfem": "HyFEM, μ 0.1, parties",
        "fedprox": "FedProx (3.2)",
        "fedavg": "FedAvg (3.3)",
        "standalone": "stand-alone, parties",
        "pooled": "pooled",
    },
    "fedma": {"server": "FedMA (3.1), server", "hyfem": "FedMA (3.1), parties"},
    "lg-fedavg": {"server": "LG-FedAvg (3.2), server", "hyfem": "LG-FedAvg (3.2), parties"},
    "fedper": {"fedper": "FedPer (3.4), parties"},
}


def _hyfem_one_block() -> Iterator[Cell]:
    for row, scores in ONE_BLOCK.items():
        yield Cell(
            name=f"one-block-{row}",
            run=f"hyfem/one-block.toml:{row}",
            labels={"data": "covertype, one block, 6 parties"},
            scores=scores,
            checkpoint_every=0,
            kind=row,
        )


VIEWS = {
    "cub": "cub, picture and text",
    "wikipedia": "wikipedia, picture and text",
    "handwritten": "handwritten, six views",
    "modelnet-1": "as ModelNet40:1: four views of handwritten, 4 parties",
    "modelnet-2": "as ModelNet40:2: six views of handwritten, 8 parties",
    "modelnet-c1": "as C.1, Table 3: four views, two of them common, 6 parties",
}


def _hyfem_views() -> Iterator[Cell]:
    """C.3, and ModelNet40's settings, on other data: parties with some of a sample's views."""
    for name, title in VIEWS.items():
        common = ("fedprox", "fedavg") if name == "modelnet-c1" else ()
        yield Cell(
            name=name,
            run=f"hyfem/views.toml:{name}",
            labels={"data": title},
            scores=_some(HYFEM, "server", "hyfem", "standalone", *common, "pooled"),
            checkpoint_every=8,
            kind=name,
        )


FEDOPTIMUS_DATA = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
FEDOPTIMUS_ROWS = {
    "cs-fedavg": "CS + FedAvg",
    "cs-slowmo": "CS + SlowMo",
    "cs-kstep": "CS + K-Step",
    "fedavg": "FedAvg",
    "slowmo": "SlowMo",
    "kstep": "K-Step",
    "fedoptimus": "FedOptimus",
}
FEDOPTIMUS_BASELINES = {"classic": "classic vertical, one label owner", "pooled": "pooled"}


def _fedoptimus_table_1() -> Iterator[Cell]:
    for data, title in FEDOPTIMUS_DATA.items():
        for row, method in FEDOPTIMUS_ROWS.items():
            baselines = FEDOPTIMUS_BASELINES if row == "fedoptimus" else {}
            yield Cell(
                name=f"{data}-{row}",
                run=f"fedoptimus/table1.toml:{data}-{row}",
                labels={"data": title},
                scores={"fedoptimus": method, **baselines},
                paper=("fedoptimus-table1", f"{title}, {method}"),
                checkpoint_every=100,
                kind=f"{data}-{'baselines' if baselines else 'row'}",
            )


def _fedoptimus_curves() -> Iterator[Cell]:
    """Loss and accuracy over epochs, as Figures 1 and 2 draw them, on few rows."""
    for data in ("fashion", "cifar10"):
        for row, method in FEDOPTIMUS_ROWS.items():
            yield Cell(
                name=f"curves-{data}-{row}",
                run=f"fedoptimus/table1.toml:{data}-{row}",
                overrides=("data.rows=10000", "baselines=[]", "evaluate_every=1"),
                labels={"data": f"{FEDOPTIMUS_DATA[data]}, 10,000 rows"},
                scores={"fedoptimus": method},
                checkpoint_every=100,
                kind=f"curves-{data}",
            )


FEDOPTIMUS_LINES = {
    "kstep": "K steps and an average",
    "momentum": "FedAvgM and SlowMo of the text",
    "forward": "the same, forward selection once",
    "selection": "the same, lines 4 and 5 as printed",
    "line8": "the same, mean of line 8, nobody left out",
    "line13": "the same, SlowMo of line 13, nobody left out",
    "printed": "lines 4, 5, 8 and 13 as printed",
    "sgd": "K steps and an average, SGD at 0.001, 100 epochs",
}


def _fedoptimus_lines() -> Iterator[Cell]:
    """Algorithm 1 line by line, on few rows."""
    for data in ("fashion", "mnist"):
        for row, method in FEDOPTIMUS_LINES.items():
            yield Cell(
                name=f"lines-{data}-{row}",
                run=f"fedoptimus/lines.toml:{data}-{row}",
                labels={"data": f"{FEDOPTIMUS_DATA[data]}, 6,000 rows"},
                scores={"fedoptimus": method},
                checkpoint_every=100,
                kind=row,
            )


def _fedoptimus_adult() -> Iterator[Cell]:
    for name, settings in (("adult-4", ""), ("adult-users", ", a user's defaults")):
        yield Cell(
            name=name,
            run=f"fedoptimus/{name}.toml",
            labels={"data": f"Adult, 4 data owners, 5 label owners{settings}"},
            scores={
                "fedoptimus": "FedOptimus",
                "classic": FEDOPTIMUS_BASELINES["classic"],
                "alone": "each label owner alone",
                "pooled": "pooled",
            },
            checkpoint_every=100,
            kind=name,
        )


_WORTH_SCORES = "AUC in % of two classes, accuracy in % of more"
_WORTH_TABLE = Table(
    name="worth",
    title="Is a partner's help worth it: APFed-D beside the best local model (our own)",
    cells=tuple(_worth()),
    against="best-alone",
    wide=("apfed-d",),
    singles=("linear", "boosting", "network"),
    note=f"{_WORTH_SCORES}, on test rows that only judge. The "
    "joint model has the partner at each prediction, all others predict without. Party dropout "
    "(PlugVFL, Sun et al. 2024) and LASER (Valdeira et al. 2024) have the joint model's "
    "networks. APFed-R and -C: `--recipe helped`.",
)

_EVERY = (
    Table(
        name="apfed-table2",
        title="APFed, Table 2: alone, helped, and classic learning with its partner gone",
        cells=tuple(_apfed_table_2()),
        note="CIFAR10 is a JPEG copy.",
    ),
    Table(
        name="apfed-lambda",
        title="APFed, Figures 3 and 4: accuracy against the trade-off λ, setting 2-1",
        cells=tuple(_apfed_lambda()),
        x="λ",
        note="The paper draws curves without numbers; it says that every λ above 0 is better than "
        "λ = 0 (section 5.3).",
    ),
    Table(
        name="apfed-labels",
        title="APFed where labels are few (our own)",
        cells=tuple(_apfed_labels()),
        against="alone",
        wide=("apfed-r", "apfed-c"),
        note="In % of the area under the ROC curve, of fmnist of accuracy. Classic vertical "
        "learning has its partner at each prediction; TVFL-0, -A and -R are the same, the partner "
        "gone.",
        x="labels",
        gains=True,
    ),
    Table(
        name="apfed-losses",
        title="APFed, section 6.3: a partner's loss, where labels are few",
        cells=tuple(_apfed_losses()),
        against="alone",
        wide=("apfed-mixed",),
        note="In % of the area under the ROC curve. The clustering loss is that of "
        "COMPLETER (Lin et al., CVPR 2021); the paper names the kind alone.",
    ),
    Table(
        name="apfed-overlap",
        title="APFed where rows only partly match: adult, AUC (our own)",
        cells=tuple(_apfed_overlap()),
        against="alone",
        wide=("apfed-r", "apfed-c"),
    ),
    _WORTH_TABLE,
    replace(
        _WORTH_TABLE,
        name="worth-partners",
        title="Partners who know few of the people, or of whom one knows nothing (our own)",
        cells=tuple(_worth_partners()),
        note=f"{_WORTH_SCORES}. The owner's rows that no partner has train its own models.",
    ),
    Table(
        name="chfl-table2",
        title="CHFL, Table II: 5 parties, 30 % of the columns in common",
        cells=tuple(_chfl_table_2()),
        against="chfl",
        note="Of the data: sensorless 2,200 of 58,509 rows, jannis 13,398 of 67,000 training rows. "
        "Boosted trees read all columns of a party, which has no partner.",
    ),
    Table(
        name="chfl-each",
        title="CHFL, section V-A3: each party's own rate and mu, on covertype and jannis",
        cells=tuple(_chfl_each()),
        against="chfl",
        note=TUNED_NOTE,
    ),
    Table(
        name="chfl-simple",
        title="CHFL, section V-B5: common columns trained first, their class probabilities read",
        cells=tuple(_chfl_simple()),
        note="The splits and seeds of Table II above.",
    ),
    Table(
        name="chfl-table3",
        title="CHFL, Table III: number of parties, covertype",
        cells=tuple(_chfl_table_3()),
        against="chfl",
        x="",
    ),
    Table(
        name="chfl-table3-each",
        title="CHFL, Table III with V-A3: each party's own rate and mu, covertype",
        cells=tuple(_chfl_table_3_each()),
        against="chfl",
        x="",
        note=TUNED_NOTE,
    ),
    Table(
        name="chfl-table4",
        title="CHFL, Table IV: correlation of common and unique columns",
        cells=tuple(_chfl_table_4()),
        against="chfl",
        note="The paper's figures are of helena. Common are the columns whose summed absolute "
        "correlations with the others are largest, in the middle of, or smallest of 20,000 drawn "
        "ways, the ends bettered by swaps.",
    ),
    Table(
        name="chfl-share",
        title="CHFL, Figure 4: share of the columns in common, covertype, 5 parties",
        cells=tuple(_chfl_share()),
        against="chfl",
        x="common columns, %",
        note="The paper draws curves; the figures at 30 % are its Table II's.",
    ),
    Table(
        name="chfl-share-each",
        title="CHFL, Figure 4 with V-A3: each party's own rate and mu, covertype, 5 parties",
        cells=tuple(_chfl_share_each()),
        against="chfl",
        x="common columns, %",
        note="Rates of 0.0003, 0.001, 0.003 and mu of 0.3, 1. The paper draws curves.",
    ),
    Table(
        name="hospitals",
        title="Four hospitals: what CHFL and HyFEM give to one with few patients (our own)",
        cells=tuple(_hospitals()),
        note="AUC in %, over draws of the patients that test, 40 %. Where a hospital has none, the "
        "mean over the others' models, each on the columns that both have.",
    ),
    Table(
        name="hyfem-figures",
        title="HyFEM, Figures 4, 5, 9 and 10: server and parties beside baselines",
        cells=tuple(_hyfem_figures()),
        over="round",
        note="The paper draws curves without numbers.",
    ),
    Table(
        name="hyfem-matching",
        title="HyFEM: what the matching buys (our own)",
        cells=tuple(_hyfem_matching()),
    ),
    Table(
        name="hyfem-pull",
        title="HyFEM, Eq. (22a) and Appendix C.4: what a party goes on from, and its pull",
        cells=tuple(_hyfem_pull()),
        note="covertype, 4 groups of columns, 6 parties that begin apart. The paper draws a curve "
        "of each μ_2 (MultiView40) without numbers: the larger, the better.",
    ),
    Table(
        name="hyfem-printed",
        title="HyFEM, Algorithm 2 with its pull: Eq. (4) to (6), and Appendix C.4's μ",
        cells=tuple(_hyfem_printed()),
        note="covertype, 4 groups of columns, 6 parties, each round restarted at the server's "
        "weights. The paper draws a curve of each μ_2 (MultiView40): the larger, the better.",
    ),
    Table(
        name="hyfem-one-block",
        title="HyFEM, Remark 3: one block, and the methods that it then is",
        cells=tuple(_hyfem_one_block()),
        note="covertype, all columns one block, 6 parties that each lack classes; the paper says "
        "which methods these are, and runs none of them.",
    ),
    Table(
        name="hyfem-views",
        title="HyFEM, C.3, and section 4's and C.1's views (our own data)",
        cells=tuple(_hyfem_views()),
        over="round",
        note="The paper's HeriGraph and ModelNet40 could not be had; it draws curves. HeriGraph: "
        "the server near pooled, parties 20 points above stand-alone. ModelNet40: the server near "
        "pooled, less so in the second setting; C.1: both above FedProx.",
    ),
    Table(
        name="fedoptimus-table1",
        title="FedOptimus, Table 1 and Figures 1 and 2: seven settings",
        cells=tuple(_fedoptimus_table_1()),
        over="epoch",
        more={"log_loss": "loss", "megabytes": "MB sent"},
        note="CS chooses once, "
        "before training, by what each strip adds (forward), which is not the paper's choice in "
        "every round. The pooled network has 8 channels and a rate that was not tuned: it is no "
        "ceiling.",
    ),
    Table(
        name="fedoptimus-curves",
        title="FedOptimus, Figures 1 and 2: accuracy and loss over epochs (few rows)",
        cells=tuple(_fedoptimus_curves()),
        over="epoch",
        losses=True,
        more={"log_loss": "loss"},
        note="The paper draws curves without numbers; it says that FedOptimus outperforms the "
        "others.",
    ),
    Table(
        name="fedoptimus-lines",
        title="FedOptimus, Algorithm 1 line by line (few rows)",
        cells=tuple(_fedoptimus_lines()),
        more={"log_loss": "loss", "megabytes": "MB sent"},
    ),
    Table(
        name="fedoptimus-adult",
        title="FedOptimus on a table (our own)",
        cells=tuple(_fedoptimus_adult()),
    ),
)

#: Name -> table.
TABLES: dict[str, Table] = {table.name: table for table in _EVERY}
