import numpy as np
import pytest
import torch

from dovetail.data import PartyData
from dovetail.data.coverage import Part
from dovetail.errors import DataError
from dovetail.privacy import encrypted
from dovetail.runs import situations as methods


def part(name, ids, names, labels=None, classes=()):
    """A party with a block of these columns; none for ""."""
    ids = np.array(ids, dtype=np.int64)
    blocks = {"x": torch.zeros(len(ids), len(names.split()))} if names else {}
    if labels is not None and not isinstance(labels, torch.Tensor):
        labels = torch.tensor(labels, dtype=torch.int64)
    columns = {"x": tuple(names.split())} if names else {}
    return Part(PartyData(name, ids, blocks, labels), columns, classes)


def halves(n):
    return torch.arange(n) % 2


def apfed():
    return [
        part("shop", range(5, 25), "spent visits age"),
        part("bank", range(20), "age balance", [0, 1] + [-1] * 18),
    ]


def fedoptimus():
    return [
        *(part(f"clinic-{n}", range(5 * n, 5 * n + 5), "", halves(5)) for n in range(2)),
        *(part(f"lab-{d}", range(12), f"a{d} b{d}") for d in range(3)),
    ]


def chfl():
    return [
        part(f"clinic-{k}", range(50 * k, 50 * k + 50), f"age sex own{k}", halves(50))
        for k in range(3)
    ]


def hyfem():
    return [
        part("north", range(0, 30), "audio text", halves(30)),
        part("south", range(10, 40), "text video", halves(30)),
        part("east", range(20, 50), "audio video", halves(30)),
    ]


FEDERATIONS = {"apfed": apfed, "fedoptimus": fedoptimus, "chfl": chfl, "hyfem": hyfem}


def fit(parts, method, **settings):
    (fitting,) = [fit for fit in methods.fits(parts, **settings) if fit.method == method]
    return fitting


@pytest.mark.parametrize("method", FEDERATIONS)
def test_each_situation_names_its_method(method):
    fits = methods.fits(FEDERATIONS[method]())
    assert [fit.method for fit in fits] == list(methods.every())
    best = methods.recommended(fits)
    assert best.method == method
    assert best.reason.startswith("yes: ")
    assert best.messages
    for other in fits:
        assert other.applies == other.reason.startswith("yes: ")
        if not other.applies:
            assert other.reason.startswith("no: ")
            assert other.next_command == ""
            assert other.messages == ()


@pytest.mark.parametrize("method", FEDERATIONS)
def test_only_what_fits_chfl_fits_another_as_well(method):
    fits = methods.fits(FEDERATIONS[method]())
    also = {"chfl": {"hyfem"}}.get(method, set())
    assert {fit.method for fit in fits if fit.applies} == {method} | also


@pytest.mark.parametrize("method", FEDERATIONS)
def test_the_next_command_is_one_that_exists(method):
    best = methods.recommended(methods.fits(FEDERATIONS[method]()))
    named = {"apfed": "apfed"}.get(method, method)
    assert best.next_command == f"dovetail train RUN --set method={named}"
    assert best.available


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            "apfed",
            "yes: only bank has labels (2 of 20 rows); "
            "shop shares 15 samples with it and adds 2 columns",
        ),
        (
            "fedoptimus",
            "yes: 2 parties (clinic-0 and clinic-1) have labels, 10 in all; "
            "3 others (lab-0, lab-1 and lab-2) hold 6 columns for every one of these",
        ),
        (
            "chfl",
            "yes: every party has labels, on different samples; 2 columns are at all 3 parties, "
            "and each has 1 column of its own",
        ),
        (
            "hyfem",
            "yes: every party has labels, and 3 columns are at two or more of 3 parties "
            "(3 blocks by who holds what). Name these blocks at the parties first, as below",
        ),
    ],
)
def test_reasons_name_parties_and_counts(method, reason):
    assert fit(FEDERATIONS[method](), method).reason == reason


def test_columns_at_some_parties_alone_are_each_partys_own_in_chfl():
    parts = [
        part("north", range(9), "age sex", halves(9)),
        part("south", range(9, 18), "age sex", halves(9)),
        part("west", range(18, 27), "age", halves(9)),
    ]
    fitting = fit(parts, "chfl")
    assert fitting.applies
    assert fitting.reason.endswith(
        "1 column is at all 3 parties, and each has 0 to 1 column of its own; 1 column (sex) is "
        "at some parties but not at every one, and each learns from these alone"
    )


def test_columns_of_fedoptimus_label_owners_are_said_to_be_ignored():
    parts = [part("clinic-0", range(5), "age sex", halves(5)), *fedoptimus()[1:]]
    fitting = fit(parts, "fedoptimus")
    assert fitting.applies
    assert "it would ignore the columns that they have themselves: clinic-0 2" in fitting.reason


@pytest.mark.parametrize(
    ("method", "parts", "missing"),
    [
        ("apfed", [part("bank", [1], "a"), part("shop", [1], "b")], "no party has labels"),
        (
            "apfed",
            [part("bank", [1, 2], "a", [0, 1]), part("shop", [1, 2], "b", [0, 1])],
            "2 parties have labels (bank and shop); APFed needs exactly one",
        ),
        ("apfed", [part("bank", [1, 2], "a", [0, 1])], "bank is the only party"),
        (
            "apfed",
            [part("bank", [1, 2], "a", [0, 1]), part("shop", [3], "b")],
            "shop shares no sample with bank",
        ),
        (
            "apfed",
            [part("bank", [1, 2], "a", [0, 1]), part("shop", [1], "a"), part("lab", [1], "b")],
            "shop holds no column that bank lacks; without shop it would fit",
        ),
        (
            "apfed",
            [part("bank", [1, 2], "", [0, 1]), part("shop", [1], "a")],
            "bank has labels but no columns to predict from",
        ),
        ("fedoptimus", [part("bank", [1], "a"), part("shop", [1], "b")], "no party has labels"),
        ("fedoptimus", chfl(), "every party has labels; FedOptimus needs a party with columns"),
        (
            "fedoptimus",
            [*fedoptimus()[:3], part("lab-1", range(5), "c")],
            "no labelled sample of clinic-1 is at all of lab-0 and lab-1",
        ),
        ("chfl", apfed(), "shop has no labels; CHFL needs them at every party"),
        (
            "chfl",
            hyfem(),
            "no column is at every party",
        ),
        (
            "chfl",
            [*chfl()[:2], part("clinic-2", range(200, 203), "age sex own2", [0, 1, 2])],
            "classes differ (0 and 1 at clinic-0, 0, 1 and 2 at clinic-2)",
        ),
        (
            "chfl",
            [*chfl()[:2], part("c", range(200, 202), "age sex own2", torch.tensor([0.5, 1.0]))],
            "labels are numbers at c and classes at clinic-0 and clinic-1",
        ),
        ("hyfem", apfed(), "shop has no labels; HyFEM needs them at every party"),
        (
            "hyfem",
            [part("a", [1], "x", [0]), part("b", [2], "y", [0])],
            "no two parties have a column in common",
        ),
    ],
)
def test_a_method_that_does_not_fit_says_what_is_missing(method, parts, missing):
    fitting = fit(parts, method)
    assert not fitting.applies
    assert missing in fitting.reason


@pytest.mark.parametrize(
    ("method", "parts", "note"),
    [
        (
            "fedoptimus",
            [part("bank", range(9), "", halves(9)), part("shop", range(9), "b")],
            "only bank has labels, as in classic vertical learning, 9 in all; 1 other (shop) holds "
            "1 column for every one of these",
        ),
        (
            "fedoptimus",
            [*fedoptimus()[:3], part("lab-1", range(8), "c")],
            "for 8 of these, and it trains on those (lab-1 lacks 2)",
        ),
        (
            "fedoptimus",
            [part("clinic", [0, 1], "", [0, 1]), *fedoptimus()[1:], part("new", [5], "", [1])],
            "1 sample is labelled twice, and counts at each",
        ),
        (
            "chfl",
            [*chfl()[:2], part("clinic-2", range(25, 75), "age sex own2", halves(50))],
            "clinic-0 and clinic-2 share 25 samples (50.0 % of the smaller), which count at each",
        ),
        (
            "chfl",
            [part("a", range(9), "x", halves(9)), part("b", range(9, 18), "x", halves(9))],
            "all hold the same columns, so it is plain federated averaging",
        ),
        (
            "hyfem",
            [part("a", [1], "x y", [0]), part("b", [2], "x y", [0])],
            "all hold the same columns, so it is plain federated averaging",
        ),
    ],
)
def test_what_trains_and_is_not_as_the_paper_has_it_fits_with_a_note(method, parts, note):
    fitting = fit(parts, method)
    assert fitting.applies
    assert note in fitting.reason


def test_where_none_fits_none_is_recommended():
    parts = [part("bank", [1, 2], "a", [0, 1]), part("shop", [1, 2], "b", [0, 1])]
    fits = methods.fits(parts)
    assert methods.recommended(fits) is None
    assert all(fit.reason.startswith("no: ") for fit in fits)


def test_a_party_with_no_label_filled_in_has_none():
    parts = [part("bank", [1, 2], "a", [0, 1]), part("shop", [1, 2], "b", [-1, -1])]
    assert methods.recommended(methods.fits(parts)).method == "apfed"


def test_declared_classes_count_where_a_class_is_absent():
    parts = chfl()
    named = [Part(each.data, each.columns, ("no", "yes", "rare")) for each in parts]
    assert fit(named, "chfl").applies


def test_declared_classes_are_compared_by_name():
    parts = chfl()  # classes 0 and 1, by index
    one = Part(parts[0].data, parts[0].columns, (0, 1))
    assert fit([one, *parts[1:]], "chfl").applies


def test_different_classes_are_allowed_by_hyfem():
    parts = [*hyfem()[:2], part("east", range(20, 30), "audio video", torch.arange(10) % 3)]
    assert "different classes, which it allows" in fit(parts, "hyfem").reason


def test_sizes_of_apfed_are_codes_out_and_gradients_back():
    (size,) = fit(apfed(), "apfed", sizes=methods.Sizes(10, 3, sealed=False)).messages
    assert (size.party, size.partner, size.per) == ("bank", "shop", "step")
    assert size.sent_bytes == 10 * 3 * 4 + 10 * 8  # codes, and which samples they are of
    assert size.received_bytes == 10 * 3 * 4
    assert size.assuming == "batches of 10 rows, codes of 3 float32 values, 1 step an epoch"


def test_sizes_of_apfed_s_are_one_question_and_its_answer():
    (size,) = fit(apfed(), "apfed").messages
    assert (size.party, size.partner, size.per) == ("bank", "shop", "run")
    labels_bytes = 2 * 2 * 8  # two labelled rows: which, and their folds
    one = encrypted.KEY_WIRE + encrypted.TARGET_WIRE
    assert size.sent_bytes == one + labels_bytes + 15 * 8  # of 15 that both have
    answer = encrypted.Layout.best(2, 1, 15).answer_wire
    assert size.received_bytes == answer + 15 * 8  # and where each row lies


def test_a_party_that_is_sent_projected_codes_has_smaller_messages():
    parts = [*apfed(), part("gym", range(20), "visits")]
    sizes = methods.Sizes(10, 2000, {"shop": 3}, sealed=False)
    shop, gym = fit(parts, "apfed", sizes=sizes).messages
    assert (shop.received_bytes, gym.received_bytes) == (10 * 3 * 4, 10 * 2000 * 4)
    assert "codes of 3 or 2,000 float32 values" in shop.assuming


def test_sizes_of_chfl_are_the_common_network():
    sizes = fit(chfl(), "chfl").messages
    parameters = 3 * 512 + 513 * 256 + 257 * 128 + 129 * 2
    assert [size.sent_bytes for size in sizes] == [4 * parameters] * 3
    assert {size.per for size in sizes} == {"round"}


def test_sizes_of_hyfem_are_a_partys_extractors_and_classifier():
    size = fit(hyfem(), "hyfem").messages[0]
    extractor = 2 * 512 + 513 * 256 + 257 * 128
    classifier = (2 * 128 + 1) * 128 + 129 * 2
    assert size.sent_bytes == size.received_bytes == 4 * (2 * extractor + classifier)


def test_a_data_owner_of_fedoptimus_sends_codes_for_every_label_owner():
    sizes = fit(fedoptimus(), "fedoptimus", sizes=methods.Sizes(10, 3)).messages
    steps = {size.party: size for size in sizes if size.per == "step"}
    sent = {party: size.sent_bytes for party, size in steps.items()}
    codes, index_bytes = 10 * 3 * 4, 10 * 8
    labellers, holders = list(sent)[-2:], list(sent)[:-2]
    assert {sent[name] for name in holders} == {2 * codes}
    assert {sent[name] for name in labellers} == {codes + index_bytes}
    assert {steps[name].received_bytes for name in labellers} == {codes}


def test_overlaps_are_counted_with_the_party_that_has_labels():
    overlaps_counted = methods.overlaps([*apfed(), part("lab", range(18, 22), "z")])
    assert overlaps_counted.centre == "bank"
    assert overlaps_counted.shared == {"shop": 15, "lab": 2}
    assert overlaps_counted.common == 2


def test_overlaps_by_cardinality_do_not_look_at_ids():
    parts = [part("bank", [1, 2], "a", [0, 1]), part("shop", [8, 9], "b")]
    overlaps_counted = methods.overlaps(parts, by_cardinality={"shop": 1})
    assert overlaps_counted.groups is None
    assert overlaps_counted.common == 1
    assert "shop shares 1 sample with it" in fit(parts, "apfed", counted=overlaps_counted).reason


def test_what_was_not_counted_is_unknown():
    parts = apfed()
    nothing = methods.overlaps(parts, by_cardinality={})
    assert fit(parts, "apfed", counted=nothing).reason == (
        "unknown: the samples that shop and bank share were not counted"
    )
    parts = fedoptimus()
    private = methods.overlaps(parts, by_cardinality={"clinic-1": 0})
    fitting = fit(parts, "fedoptimus", counted=private)
    assert not fitting.applies
    assert fitting.reason.startswith("unknown: ")
    parts = chfl()
    private = methods.overlaps(parts, by_cardinality={"clinic-1": 0, "clinic-2": 0})
    assert "on different samples, as far as overlaps were counted" in (
        fit(parts, "chfl", counted=private).reason
    )


def test_a_count_for_a_party_that_is_not_there_is_an_error():
    with pytest.raises(DataError, match=r"between 'bank' and each of \['shop'\]; got one for 'x'"):
        methods.overlaps(apfed(), by_cardinality={"x": 1})
