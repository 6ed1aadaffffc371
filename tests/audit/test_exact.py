"""A partner whose numbers name its rows is rated high, and one whose numbers are noise is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scenes import heard

from dovetail.audit.attack import Settings, attack
from dovetail.audit.attacks.exact import exact
from dovetail.audit.verdict import Finding, interval
from dovetail.data import Classification
from dovetail.methods.facets.audited import Channel, Holding, Scene

NUM, LEVELS, COLUMNS = 1500, 4, 4


def found(seed: int, *, leaky: bool) -> dict[str, Finding]:
    """Metric -> finding, of one number a row: a fingerprint of its columns, or noise.

    Half of the rows are of twelve kinds, so that a known row often has twins.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(LEVELS, size=(12, COLUMNS))
    x = rng.integers(LEVELS, size=(NUM, COLUMNS))
    x[: NUM // 2] = kinds[rng.integers(12, size=NUM // 2)]
    scramble = rng.normal(size=LEVELS**COLUMNS)  # of equal rows the same, of near ones nothing
    number = scramble[x @ LEVELS ** np.arange(COLUMNS)] if leaky else rng.normal(size=NUM)
    scene = Scene(
        Classification(("no", "yes")),
        {
            "bank": Holding(torch.from_numpy(rng.normal(size=(NUM, 3))).float(), ("a", "b", "c")),
            "shop": Holding(torch.from_numpy(x).float(), tuple("pqrs")),
        },
        {"": {"bank": torch.arange(NUM), "shop": torch.arange(NUM)}},
        lambda *_: (),
    )
    values = torch.from_numpy(number).float()[:, None]
    tape = heard(scene, Channel("bank", "shop", "numbers"), values)
    findings = attack("apfed", scene, tape, {}, Settings(network=False))
    return {each.threat.metric: each for each in findings}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_partner_whose_equal_rows_have_equal_numbers_is_rated_high(seed: int) -> None:
    by_metric = found(seed, leaky=True)
    rows = by_metric["share of rows read exactly"]
    assert rows.score > rows.baseline + 0.3
    assert rows.verdict == "high"
    assert by_metric["share of cells read exactly"].verdict == "high"
    assert by_metric["R2, mean over columns"].verdict != "high"  # it hardly shows there


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_partner_whose_numbers_are_noise_is_rated_none(seed: int) -> None:
    for each in found(seed, leaky=False).values():
        assert each.verdict == "none"
        assert each.advantage < 0.03, each.threat.metric


def test_logarithms_of_a_kernel_are_lines_through_ranks_and_read_every_level() -> None:
    """What an owner has who asks for the kernel itself: distances to rows, in ranks."""
    rng = np.random.default_rng(0)
    x = rng.integers(6, size=(1200, 4)).astype(float)
    rank = x / 5
    marks = rng.random(size=(7, 4))
    distance = ((rank[:, None] - marks) ** 2).sum(axis=2)  # the square of a rank is common to all
    logs = -(distance[:, 1:] - distance[:, :1])
    measured = exact(None, {"logs": logs}, x)["rows"]
    _, score, *_ = interval(measured)
    assert score > 0.95
    assert interval(exact(None, {"logs": rng.permutation(logs)}, x)["rows"])[1] < 0.05


def test_a_table_of_fractions_has_no_row_to_be_read() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    assert exact(None, {"codes": x}, x) == {}
    x[:, 0] = x[:, 0] > 0  # and one column of levels alone tells no whole row
    found = exact(None, {"codes": x + 0.1 * rng.normal(size=x.shape)}, x)
    assert interval(found["rows"])[1] < 0.02
    assert 0.3 < interval(found["cells"])[1] < 0.4  # one of three
