"""Sums that outlive lost parties: exact over who is left, and closed to a driver that lies."""

import itertools

import pytest
import torch

from dovetail.errors import MessageError, TrainingError
from dovetail.privacy.masks import SEALED_BYTES, SumSecrets, threshold_of, to_fixed, total, unmasked

SEALING = b"run 1, round 3"


class Sum:
    """All parties of one sum, and its driver."""

    def __init__(self, num, threshold=None, contexts=None):
        self.names = [f"p{index}" for index in range(num)]
        self.threshold = threshold or threshold_of(num)
        self.values = {name: torch.randn(40) for name in self.names}
        self.fixed = {name: to_fixed(each, num) for name, each in self.values.items()}
        self.contexts = {name: b"weights" for name in self.names} | (contexts or {})
        self.secrets = {name: SumSecrets() for name in self.names}
        self.publics = {name: each.public for name, each in self.secrets.items()}
        self.boxes = {
            name: dict(
                zip(
                    sorted(self.names),
                    each.sealed(name, self.publics, self.threshold, context=SEALING),
                    strict=True,
                )
            )
            for name, each in self.secrets.items()
        }

    def mask(self, name, taking=None):
        taking = taking or self.names
        return self.secrets[name].mask(
            name,
            {each: self.publics[each] for each in taking},
            {each: self.boxes[each][name] for each in taking},
            self.fixed[name],
            sealing=SEALING,
            context=self.contexts[name],
        )

    def sum(self, masked, parts, taking=None):
        return unmasked(
            masked,
            {name: self.publics[name] for name in taking or self.names},
            parts,
            self.threshold,
            members=self.names,
            contexts=self.contexts,
        )


@pytest.mark.parametrize(("num", "num_lost"), [(3, 0), (4, 0), (4, 1), (7, 2), (10, 3)])
def test_the_sum_of_who_is_left_is_exact_whoever_is_lost(num, num_lost):
    for lost in itertools.islice(itertools.combinations(range(num), num_lost), 6):
        made = Sum(num)
        masked = {name: made.mask(name) for name in made.names}
        for index in lost:
            del masked[f"p{index}"]
        parts = {name: made.secrets[name].opened([*masked]) for name in masked}
        expected = total(made.fixed[name] for name in masked)
        assert torch.equal(made.sum(masked, parts), expected)


def test_a_party_lost_before_it_masks_costs_nothing():
    made = Sum(5)
    taking = made.names[1:]  # p0 gave keys, and then no parts
    masked = {name: made.mask(name, taking) for name in taking}
    del masked["p3"]
    parts = {name: made.secrets[name].opened([*masked]) for name in ("p1", "p2", "p4")}
    with pytest.raises(TrainingError, match="3 parts do not give the seed of 'p1' back; 4"):
        made.sum(masked, parts, taking)
    again = Sum(5, threshold=3)
    masked = {name: again.mask(name, taking) for name in taking}
    del masked["p3"]
    parts = {name: again.secrets[name].opened([*masked]) for name in ("p1", "p2", "p4")}
    expected = total(again.fixed[name] for name in masked)
    assert torch.equal(again.sum(masked, parts, taking), expected)


def test_a_party_lost_after_it_masked_is_in_the_sum_while_enough_answer():
    made = Sum(7)
    masked = {name: made.mask(name) for name in made.names}
    parts = {name: made.secrets[name].opened([*masked]) for name in made.names[:5]}
    assert torch.equal(made.sum(masked, parts), total(made.fixed.values()))
    del parts["p0"]
    with pytest.raises(TrainingError, match=r"4 parts do not give the seed of .* back; 5"):
        made.sum(masked, parts)


def test_values_that_come_late_stay_hidden():
    """Declared lost, its key is rebuilt, and then its values come: the seed's mask is on them."""
    made = Sum(6)
    late = made.mask("p0")
    masked = {name: made.mask(name) for name in made.names[1:]}
    parts = {name: made.secrets[name].opened([*masked]) for name in masked}
    others = made.sum(masked, parts)
    with pytest.raises(TrainingError, match="do not give the seed of 'p0' back"):
        made.sum({**masked, "p0": late}, parts)
    total_found = total([made_of_key(made, parts, masked, late), -made.fixed["p0"]])
    assert total_found.abs().double().mean() > 2**55  # no nearer to its values than noise is
    assert torch.equal(others, total(made.fixed[name] for name in masked))


def made_of_key(made, parts, masked, late):
    """What the driver has of late values without their seed: masks of pairs taken off."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from dovetail.privacy.masks import KEY_BYTES, join, masks_between

    index = {name: number + 1 for number, name in enumerate(sorted(made.names))}
    key = join({index[name]: parts[name]["p0"] for name in [*masked][: made.threshold]})
    private = X25519PrivateKey.from_private_bytes(key.to_bytes(32, "big"))
    publics = {name: each[:KEY_BYTES] for name, each in made.publics.items()}
    words = late.clone()
    for other in masked:
        stream = masks_between(private, "p0", other, publics, b"weights", len(late))
        words -= torch.from_numpy(stream.view("int64").copy())
    return words


def test_a_driver_that_tells_parties_different_things_of_who_is_lost_has_neither_secret():
    """Half are told that p0 came and half that it did not: of each kind there are too few parts."""
    made = Sum(7)
    masked = {name: made.mask(name) for name in made.names}
    came, lost = made.names, made.names[1:]
    parts = {
        name: made.secrets[name].opened(came if index % 2 else lost)
        for index, name in enumerate(made.names)
    }
    seeds = {name: part for index, (name, part) in enumerate(parts.items()) if index % 2}
    keys = {name: part for index, (name, part) in enumerate(parts.items()) if not index % 2}
    with pytest.raises(TrainingError, match="seed of 'p0'"):
        made.sum(masked, seeds)
    left = {name: masked[name] for name in lost}
    with pytest.raises(TrainingError, match="do not give the key of 'p0'"):
        made.sum(
            left, {name: {"p0": part["p0"]} for name, part in keys.items()} | only(seeds, lost)
        )


def only(parts, owners):
    """The parts of these owners alone."""
    return {name: {owner: part[owner] for owner in owners} for name, part in parts.items()}


def test_parts_are_given_once():
    made = Sum(4)
    for name in made.names:
        made.mask(name)
    made.secrets["p1"].opened(made.names)
    with pytest.raises(MessageError, match="parts are given once"):
        made.secrets["p1"].opened(made.names[1:])
    with pytest.raises(MessageError, match="'p9' does not take part"):
        made.secrets["p2"].opened(["p0", "p9"])
    with pytest.raises(MessageError, match="masks once"):
        made.mask("p3")
    with pytest.raises(MessageError, match="split once"):
        made.secrets["p3"].sealed("p3", made.publics, 3, context=SEALING)


def test_parties_that_were_told_different_things_give_noise_though_one_is_lost():
    made = Sum(5, contexts={"p4": b"weights that only its rows move"})
    masked = {name: made.mask(name) for name in made.names}
    for lost in (None, "p0", "p4"):
        left = {name: each for name, each in masked.items() if name != lost}
        fresh = Sum(5, contexts={"p4": b"weights that only its rows move"})
        left = {name: fresh.mask(name) for name in fresh.names}
        if lost is not None:
            del left[lost]
        parts = {name: fresh.secrets[name].opened([*left]) for name in left}
        error = fresh.sum(left, parts) - total(fresh.fixed[name] for name in left)
        if lost == "p4":  # who is left was told the same
            assert error.abs().max() == 0
        else:
            assert error.abs().double().mean() > 2**55


def test_a_wrong_part_is_found_while_enough_are_right():
    made = Sum(7)
    masked = {name: made.mask(name) for name in made.names}
    del masked["p6"]
    parts = {name: made.secrets[name].opened([*masked]) for name in masked}
    parts["p2"] = {owner: part + 1 for owner, part in parts["p2"].items()}
    assert torch.equal(made.sum(masked, parts), total(made.fixed[name] for name in masked))
    parts["p3"] = {owner: 0 for owner in parts["p3"]}
    with pytest.raises(TrainingError, match=r"6 parts do not give .* 5 right ones do"):
        made.sum(masked, parts)


def test_what_travels_by_the_driver_is_sealed_to_its_receiver_and_round():
    made = Sum(4)
    assert {len(box) for boxes in made.boxes.values() for box in boxes.values()} == {SEALED_BYTES}
    box = bytearray(made.boxes["p1"]["p0"])
    box[5] ^= 1
    made.boxes["p1"]["p0"] = bytes(box)
    with pytest.raises(MessageError, match="what 'p1' gave 'p0' for this sum was changed"):
        made.mask("p0")
    swapped = Sum(4)
    swapped.boxes["p1"]["p0"] = swapped.boxes["p1"]["p2"]
    with pytest.raises(MessageError, match="changed on its way"):
        swapped.mask("p0")
    with pytest.raises(MessageError, match="gives parts of its secrets to each"):
        swapped.secrets["p2"].mask(
            "p2", swapped.publics, {}, swapped.fixed["p2"], sealing=SEALING, context=b""
        )


def test_a_masked_vector_is_uniform_whatever_its_values():
    made = Sum(3)
    made.fixed["p0"] = torch.zeros(20_000, dtype=torch.int64)
    bits = (made.mask("p0")[:, None] >> torch.arange(64)) & 1
    # Each of 64 bits is a fair coin: five standard deviations of 20,000 throws are 0.018.
    assert (bits.double().mean(dim=0) - 0.5).abs().max() < 0.018
