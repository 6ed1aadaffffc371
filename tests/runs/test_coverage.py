import io
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dovetail.api.picture import picture
from dovetail.data import Column, Dataset, PartyData, columns, coverage, load, strips
from dovetail.data.coverage import Part
from dovetail.errors import DataError
from dovetail.report.views import html
from dovetail.runs import situations as methods


def part(name, ids, blocks, labels=None, classes=()):
    """A party whose blocks are given by their columns' names."""
    ids = np.array(ids, dtype=np.int64)
    tensors = {block: torch.zeros(len(ids), len(names)) for block, names in blocks.items()}
    labels = None if labels is None else torch.tensor(labels, dtype=torch.int64)
    named = {block: tuple(names) for block, names in blocks.items()}
    return Part(PartyData(name, ids, tensors, labels), named, classes)


def bank_and_shop():
    bank = part("bank", range(6), {"account": ["age", "balance"]}, [0, 1, -1, 1, -1, -1])
    return [bank, part("shop", range(3, 10), {"basket": ["spent"], "web": ["visits"]})]


def drawn(parts, width=80, encoding="utf-8"):
    """What a terminal shows, line by line."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=width, color_system=None)
    console.print(picture(parts))
    console.file.flush()
    return raw.getvalue().decode(encoding).splitlines()


def page(parts, title="Who holds what"):
    overlaps = methods.overlaps(parts)
    return html(parts, methods.fits(parts, counted=overlaps), overlaps, title=title)


class Page(HTMLParser):
    """Tags that were opened, all attributes, the text, and whether each tag was closed."""

    void = frozenset({"meta", "rect"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], Counter(), [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@st.composite
def federations(draw):
    parts = []
    for p in range(draw(st.integers(1, 4))):
        ids = draw(st.lists(st.integers(0, 20), unique=True, max_size=12))
        labels = None
        if draw(st.booleans()):
            labels = draw(st.lists(st.integers(-1, 2), min_size=len(ids), max_size=len(ids)))
        names = draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        parts.append(part(f"p{p}", ids, {f"block {name}": [name] for name in names}, labels))
    return parts


@pytest.mark.slow
@given(parts=federations())
def test_groups_say_what_the_coverage_says(parts):
    groups = coverage.group(parts)
    ids = np.unique(np.concatenate([each.data.ids for each in parts]))
    assert groups.num_samples == len(ids)
    by_hand = Counter()
    for sample in ids.tolist():
        held = tuple(sample in each.data.ids for each in parts)
        labelled = tuple(
            sample in each.data.ids[each.data.labelled_rows().numpy()] for each in parts
        )
        by_hand[held, labelled] += 1
    counted = {
        (tuple(held), tuple(labelled)): count
        for held, labelled, count in zip(
            groups.held_GP.tolist(),
            groups.labelled_GP.tolist(),
            groups.counts_G.tolist(),
            strict=True,
        )
    }
    assert counted == by_hand
    index = {name: p for p, name in enumerate(groups.parties)}
    for each in parts:
        p = index[each.name]
        assert groups.counts_G @ groups.held_GP[:, p] == each.data.num_rows
        assert groups.counts_G @ groups.labelled_GP[:, p] == len(each.data.labelled_rows())


@given(parts=federations(), at_most=st.integers(2, 8))
def test_bands_have_every_sample(parts, at_most):
    groups = coverage.group(parts)
    bands = coverage.bands(groups, at_most)
    assert len(bands) <= at_most
    assert sum(band.count for band in bands) == groups.num_samples
    assert sum(band.combinations for band in bands) == len(groups.counts_G)
    for p, each in enumerate(parts):
        held = sum(band.count * band.held_P[p] for band in bands)
        assert held == pytest.approx(each.data.num_rows)


@pytest.mark.slow
@given(parts=federations(), width=st.integers(20, 100))
def test_no_line_is_wider_than_the_terminal(parts, width):
    lines = drawn(parts, width)
    if any(each.data.num_rows for each in parts):
        assert max(len(line) for line in lines) <= width


@given(
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=30),
    total=st.integers(60, 200),
    minimum=st.integers(1, 2),
)
def test_widths_add_up_and_none_is_too_small(counts, total, minimum):
    sizes = coverage.widths(counts, total, minimum)
    assert sum(sizes) == total
    assert min(sizes) >= minimum


def test_widths_that_cannot_fit_are_refused():
    with pytest.raises(ValueError, match="3 widths of at least 2 do not fit into 5"):
        coverage.widths([1, 1, 1], 5, minimum=2)


def test_more_parties_than_bits_in_an_integer_are_grouped():
    parts = [part(f"p{p}", [0, p + 1], {"x": ["x"]}, [0, 1]) for p in range(40)]
    groups = coverage.group(parts)
    assert groups.num_samples == 41
    assert groups.common() == 1
    assert sorted(groups.held_GP.sum(axis=1).tolist()) == [1] * 40 + [40]
    assert np.array_equal(groups.shared(), np.ones((40, 40)) + np.eye(40))


def test_neighbouring_groups_differ_in_one_party():
    """Three parties with every combination: Gray code."""
    patterns = [p for p in range(1, 8)]
    parts = [
        part(f"p{bit}", [p for p in patterns if p >> bit & 1], {"x": ["x"]}) for bit in range(3)
    ]
    held_GP = coverage.group(parts).held_GP.astype(int)
    assert np.abs(np.diff(held_GP, axis=0)).sum(axis=1).tolist() == [1] * 6


def test_the_picture_shows_blocks_labels_and_counts():
    lines = drawn(bank_and_shop())
    text = " ".join(" ".join(lines).split())
    bars = {line[:17].strip(): line[17:] for line in lines[:5]}
    assert list(bars) == ["bank labels", "account (2)", "shop basket (1)", "web (1)", ""]
    # bank alone: 2 labelled, 1 not; both: 1 labelled, 2 not; shop alone: 4; of 61 characters
    assert [bars["bank labels"].count(glyph) for glyph in "◆·"] == [18, 43]
    for row in ("A 2 20.0 % bank bank", "B 1 10.0 % bank", "E 4 40.0 % shop", "10 in all"):
        assert row in text


def test_a_terminal_without_block_characters_gets_letters():
    text = "\n".join(drawn(bank_and_shop(), encoding="ascii"))
    assert "#####" in text
    assert "LLLLL" in text


def test_names_cannot_style_the_terminal():
    text = "\n".join(drawn([part("[red]bank\x1b[0m", [1, 2], {"[bold]": ["x"]}, [0, 1])]))
    assert "[red]bank" in text
    assert "[bold]" in text
    assert "\x1b" not in text


def test_many_groups_are_drawn_as_the_largest_and_the_rest():
    parts = [part(f"p{p:02}", range(100 * p, 100 * p + 99), {"x": ["x"]}) for p in range(60)]
    parts[7] = part("p07", range(700, 900), {"x": ["x"]})  # holds all that p08 holds
    lines = drawn(parts)
    assert "▒ partly held" in "\n".join(lines)
    (rest,) = [line for line in lines if "smaller groups" in line]
    assert rest.startswith("+")
    assert "13 smaller groups" in rest


def test_the_page_has_every_block_and_the_same_numbers():
    text = page(bank_and_shop())
    read = Page(text)
    words = " ".join(" ".join(read.texts).split())
    described = [value for name, value in read.attributes if name == "aria-label"]
    assert described == [
        "bank, labels: 3 of 10 samples, 30.0 %; groups A, C",
        "bank, account (2): 6 of 10 samples, 60.0 %; groups A, B, C, D",
        "shop, basket (1): 7 of 10 samples, 70.0 %; groups C, D, E",
        "shop, web (1): 7 of 10 samples, 70.0 %; groups C, D, E",
    ]
    assert "A 2 20.0 % bank bank" in words
    assert "E 4 40.0 % shop –" in words
    assert "10 samples in all; 3 at every party" in words
    assert read.tags["table"] == 5  # groups, parties, overlaps, methods, messages


def test_the_page_is_self_contained():
    text = page(bank_and_shop())
    read = Page(text)
    assert text.isascii()  # so that no encoding can spoil it
    assert "//" not in text  # no address, not even a namespace
    assert "url(" not in text
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not {"src", "href"} & {name for name, _ in read.attributes}
    assert "prefers-color-scheme: dark" in text


def test_names_cannot_become_tags_of_the_page():
    parts = bank_and_shop()
    parts[1] = part('<script>"&', range(3, 10), {"<b>": ["<i>"]}, [0, 1, 0, 1, 0, 1, 1], ("<u>",))
    read = Page(page(parts, title="</title><script>"))
    assert not {"script", "b>", "i>", "u"} & set(read.tags)


def test_a_federation_without_samples_is_said_to_be_empty():
    parts = [part("bank", [], {"x": ["x"]}, []), part("shop", [], {"y": ["y"]})]
    assert drawn(parts) == ["There is no sample: every party's table is empty."]
    Page(page(parts))


def test_no_party_is_an_error():
    with pytest.raises(DataError, match="there is no party to draw"):
        coverage.group([])


def test_an_id_in_digits_is_the_one_as_text():
    text = PartyData("shop", np.array(["2", "3"]), {"x": torch.zeros(2, 1)})
    parts = [part("bank", [1, 2], {"y": ["y"]}), Part(text, {"x": ("x",)})]
    assert drawn(parts) == drawn([parts[0], part("shop", [2, 3], {"x": ["x"]})])


def test_a_simulation_of_a_table_has_its_raw_columns():
    table, _ = load("breast-cancer")
    parties = {"clinic": ["mean *"], "lab": ["worst *", "mean radius"]}
    dealt = columns(table, None, parties=parties, active="clinic")
    clinic, lab = coverage.from_partition(dealt)
    assert len(clinic.all_columns()) == 10
    assert len(lab.all_columns()) == 11
    assert clinic.all_columns() & lab.all_columns() == {"mean radius"}
    assert clinic.classes == dealt.task.classes
    assert lab.classes == ()
    assert clinic.width(["mean radius", "mean area"]) == 2


def test_strips_of_one_image_are_different_columns():
    images = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    labels = Column(np.arange(6) % 3, np.zeros(6, dtype=bool))
    digits = Dataset("digits", np.arange(6), images, "class", labels)
    upper, lower = coverage.from_partition(strips(digits, None, views=2, active=1))
    assert not upper.all_columns() & lower.all_columns()
    assert coverage.blocks_text(upper) == "strip (1×4×8)"
