"""A matrix times an encrypted vector: exactly that comes back, and nothing else can be read."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import ConfigError, MessageError
from dovetail.privacy import encrypted
from dovetail.privacy.encrypted import Encrypted, Layout, Owner

pytest.importorskip("seal")

NONCE = bytes(range(32))


def no_dither(rows: slice) -> np.ndarray:
    return np.zeros((1, 1), dtype=np.int64)


def exchanged(
    matrix_RL: np.ndarray, targets_LC: np.ndarray, layout: Layout, owner: Owner | None = None
) -> tuple[Owner, np.ndarray]:
    """The owner, and what a partner answers."""
    owner = owner or Owner()
    wire = owner.encrypt(targets_LC, layout, NONCE)
    held = Encrypted(layout, owner.public_key(NONCE), wire, NONCE)
    answers = held.multiply(lambda rows: matrix_RL[rows], len(matrix_RL), no_dither)
    return owner, answers


def whole(rng: np.random.Generator, *shape: int, most: int) -> np.ndarray:
    return rng.integers(-most, most + 1, shape)


@pytest.mark.parametrize(
    ("rows", "labelled", "columns", "block", "classes"),
    [(5, 3, 1, 1, 1), (50, 7, 3, 4, 2), (9000, 20, 1, 1, 1), (700, 33, 5, 16, 5), (3, 4, 2, 8, 2)],
)
def test_what_is_decrypted_is_the_product_bit_for_bit(
    rows: int, labelled: int, columns: int, block: int, classes: int
) -> None:
    rng = np.random.default_rng(rows)
    matrix = whole(rng, rows, labelled, most=2**encrypted.ROW_BITS // labelled)
    targets = whole(rng, labelled, columns, most=2**encrypted.TARGET_BITS)
    layout = Layout(labelled, columns, block, classes)
    owner, answers = exchanged(matrix, targets, layout)
    assert (owner.decrypt(answers, layout, rows) == matrix @ targets).all()


def test_the_best_layout_sends_less_than_a_ciphertext_a_label() -> None:
    layout = Layout.best(300, 1, 4096)
    sent = layout.num_targets * encrypted.TARGET_WIRE
    back = layout.num_answers(4096) * encrypted.ANSWER_WIRE
    assert sent + back < 300 * encrypted.TARGET_WIRE / 10


def test_the_parts_of_a_sum_say_nothing_but_the_sum() -> None:
    """Two matrices of the same sums: what is decrypted, before it is summed, is uniform."""
    layout = Layout(64, 1, 64, 1)
    targets = np.ones((64, 1), dtype=np.int64)
    owner = Owner()
    ring = owner._ring
    parts = []
    for first in (0, 2**20):
        matrix = np.zeros((layout.rows, 64), dtype=np.int64)
        matrix[:, 0], matrix[:, 1] = first, 2**20 - first
        _, answers = exchanged(matrix, targets, layout, owner)
        halves = [
            encrypted._from_wire(half, ring.primes[:1], "answer")
            for half in np.split(answers[0], 2)
        ]
        plain = owner._decryptor.decrypt(ring.ciphertext("answer", np.concatenate(halves)))
        parts.append(np.asarray(ring.encoder.decode(plain)) / ring.plain)
    for each in parts:  # uniform over the plaintext modulus: mean 0, variance 1 / 12
        assert abs(each.mean()) < 5 / np.sqrt(12 * each.size)
        assert each.var() == pytest.approx(1 / 12, rel=0.06)
    assert abs(np.corrcoef(*parts)[0, 1]) < 5 / np.sqrt(encrypted.DEGREE)


@pytest.mark.slow
def test_noise_is_flooded_by_40_bits_at_the_most_labels_there_can_be() -> None:
    layout = Layout(500, 1, 1, 1)  # the most ciphertexts, so the most products in a sum
    rng = np.random.default_rng(0)
    owner = Owner()
    wire = owner.encrypt(whole(rng, 500, 1, most=2**encrypted.TARGET_BITS), layout, NONCE)
    held = Encrypted(layout, owner.public_key(NONCE), wire, NONCE)
    ring, total = held._ring, None
    for target in held._targets:
        plain = ring.encoder.encode(whole(rng, encrypted.DEGREE, most=2**encrypted.ROW_BITS))
        ring.evaluator.transform_to_ntt_inplace(plain, ring.first)
        product = ring.evaluator.multiply_plain(target, plain)
        if total is None:
            total = product
        else:
            ring.evaluator.add_inplace(total, product)
    moduli = sum(encrypted.MODULI_BITS[:3])
    budget = owner._decryptor.invariant_noise_budget(ring.evaluator.transform_from_ntt(total))
    noise_bits = moduli - encrypted.PLAIN_BITS - 1 - budget
    assert sum(encrypted.MODULI_BITS[1:3]) - noise_bits >= 40


def test_the_same_answer_is_another_ciphertext_each_time() -> None:
    matrix, targets = np.ones((4, 3), dtype=np.int64), np.ones((3, 1), dtype=np.int64)
    layout = Layout(3, 1, 1, 1)
    owner, one = exchanged(matrix, targets, layout)
    _, other = exchanged(matrix, targets, layout, owner)
    assert (one != other).mean() > 0.9
    assert (owner.decrypt(one, layout, 4) == owner.decrypt(other, layout, 4)).all()


def test_random_halves_are_nobodys_choice() -> None:
    """What travels is one half; an owner whose half is of another nonce decrypts nothing.

    Numbers at random are taken for ones that weights give every second time, so many are asked.
    """
    num = 64
    matrix, targets = np.ones((num, 3), dtype=np.int64), np.ones((3, 1), dtype=np.int64)
    layout, owner = Layout(3, 1, 1, 1), Owner()
    wire = owner.encrypt(targets, layout, NONCE)
    held = Encrypted(layout, owner.public_key(NONCE), wire, bytes(32))
    answers = np.stack(list(held.multiply(lambda rows: matrix[rows], num, no_dither)))
    with pytest.raises(MessageError, match="numbers that no weights give"):
        owner.decrypt(answers, layout, num)


def test_parameters_give_128_bits_by_the_published_table() -> None:
    encrypted.check_standard(encrypted.DEGREE, encrypted.MODULI_BITS)
    assert sum(encrypted.MODULI_BITS) <= 218  # HomomorphicEncryption.org 2018, Table 1
    with pytest.raises(ConfigError, match="less than 128 bits of security"):
        encrypted.check_standard(4096, encrypted.MODULI_BITS)
    with pytest.raises(ConfigError, match="allows none"):
        encrypted.check_standard(8191, (20,))


def test_coefficients_beyond_a_prime_are_refused() -> None:
    layout, owner = Layout(3, 1, 1, 1), Owner()
    wire = owner.encrypt(np.ones((3, 1), dtype=np.int64), layout, NONCE)
    key = owner.public_key(NONCE)
    for index in (0, wire.shape[1] - 1):
        altered = wire.copy()
        altered[1, index - index % 7 : index - index % 7 + 7] = 255
        with pytest.raises(MessageError, match="target 1: it is no ciphertext of bfv-8192"):
            Encrypted(layout, key, altered, NONCE)
    key[:7] = 255
    with pytest.raises(MessageError, match="public key: it is no ciphertext"):
        Encrypted(layout, key, wire, NONCE)


def test_an_altered_answer_is_refused() -> None:
    matrix, targets = np.ones((600, 3), dtype=np.int64), np.ones((3, 1), dtype=np.int64)
    layout = Layout(3, 1, 1, 1)
    owner, answers = exchanged(matrix, targets, layout)
    answers[0, :70] ^= 1  # of ten coefficients the lowest bits: each moves every slot
    answers[0, 5:70:7] ^= 8
    with pytest.raises(MessageError, match="altered, or is of another key"):
        owner.decrypt(answers, layout, 600)
    with pytest.raises(MessageError, match="altered, or is of another key"):
        Owner().decrypt(exchanged(matrix, targets, layout)[1], layout, 600)
    with pytest.raises(MessageError, match="has 1 ciphertexts"):
        owner.decrypt(np.concatenate([answers, answers]), layout, 600)


def test_what_does_not_fit_is_refused_before_any_work() -> None:
    for labelled, columns, block, classes in ((0, 1, 1, 1), (10**6, 1, 1, 1), (5, 1, 5000, 2)):
        with pytest.raises(MessageError, match="do not lie in blocks"):
            Layout(labelled, columns, block, classes)
    layout, owner = Layout(3, 1, 1, 1), Owner()
    wire, key = np.zeros((2, encrypted.TARGET_WIRE), np.uint8), owner.public_key(NONCE)
    with pytest.raises(MessageError, match="targets 3 ciphertexts"):
        Encrypted(layout, key, wire, NONCE)
    with pytest.raises(ConfigError, match="more than 512 ciphertexts"):
        Layout.best(3000, 100_000, 10)


def test_whole_numbers_stay_within_their_bits() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(50, 3))
    numbers, unit = encrypted.whole_targets(targets)
    assert np.abs(numbers).max() == 2**encrypted.TARGET_BITS
    assert np.abs(numbers * unit - targets).max() <= unit / 2
    for largest in (1e-9, 0.7, 1.0, 123.0):
        scaled = largest * 2.0 ** encrypted.exponent_of(largest)
        assert 2 ** (encrypted.ROW_BITS - 2) < scaled <= 2**encrypted.ROW_BITS
