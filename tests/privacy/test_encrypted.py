"""A matrix times an encrypted vector: that comes back, blurred, and nothing else can be read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail.errors import ConfigError, MessageError
from dovetail.privacy import encrypted
from dovetail.privacy.encrypted import Encrypted, Layout, SecretKey

NONCE = bytes(range(32))
SECRET = bytes(32)
#: So fine that a blur is below what rounding leaves.
FINE = 24


def whole(rng: np.random.Generator, *shape: int, most: int) -> np.ndarray:
    return rng.integers(-most, most + 1, shape)


def exchanged(
    matrix_RL: np.ndarray, targets_LC: np.ndarray, layout: Layout, bits: int = FINE,
    secret: bytes = SECRET,
) -> tuple[SecretKey, np.ndarray]:  # fmt: skip
    """The owner, and what a partner answers."""
    owner = SecretKey()
    wire = owner.encrypt(targets_LC, layout, NONCE)
    given = Encrypted(layout, owner.public_key(NONCE), wire, NONCE)
    return owner, given.multiply(lambda rows: matrix_RL[rows], len(matrix_RL), bits, secret)


def width(bits: int) -> float:
    """Of a blur, in units of a target."""
    return float(2.0 ** (encrypted.NUMBER_BITS - bits))


@pytest.mark.parametrize(
    ("rows", "labelled", "columns", "block", "classes"),
    [(5, 3, 1, 1, 1), (50, 7, 3, 4, 2), (9000, 20, 1, 1, 1), (700, 33, 5, 16, 5), (3, 4, 2, 8, 2)],
)
def test_what_is_decrypted_is_the_product_but_for_its_blur(
    rows: int, labelled: int, columns: int, block: int, classes: int
) -> None:
    rng = np.random.default_rng(rows)
    matrix = whole(rng, rows, labelled, most=2**encrypted.WEIGHT_BITS // labelled)
    targets = whole(rng, labelled, columns, most=2 ** (encrypted.NUMBER_BITS - 2))
    layout = Layout(labelled, columns, block, classes)
    exact = matrix @ targets / 2**encrypted.WEIGHT_BITS
    for bits, slack in ((FINE, 2**9), (6, 1.01)):  # answers are cut to 16 bits
        owner, answers = exchanged(matrix, targets, layout, bits)
        apart = owner.decrypt(answers, layout, rows) - exact
        assert np.abs(apart).max() < width(bits) / 2 * slack
    if apart.size >= 99:
        spread = width(6) / np.sqrt(12)  # of 150 numbers to within 4 %, as a rule
        assert apart.std() == pytest.approx(spread, rel=0.25)


def test_products_are_exact_at_the_largest_sizes() -> None:
    """A whole number that is rounded wrongly would be noise that nobody reckons with."""
    rng = np.random.default_rng(1)
    small = np.zeros((encrypted.DEGREE, 3), dtype=np.int64)
    small[:, 0] = rng.integers(-(2**13), 2**13, len(small))
    small[::4, 1], small[5, 2] = 2**15, -(2**17)
    large = rng.integers(0, 2**64, (encrypted.DEGREE, 3), dtype=np.uint64)
    large[:, 1] = 2**64 - 1
    found = encrypted._products(small, large)
    for at in (0, 1, 5, 2048, 4095):
        for column in range(3):
            terms = [
                (1 if i <= at else -1) * int(small[i, column]) * int(large[at - i, column])
                for i in range(encrypted.DEGREE)
            ]
            assert int(found[at, column]) == sum(terms) % 2**64


def test_the_best_layout_sends_less_than_a_ciphertext_a_label() -> None:
    layout = Layout.best(300, 1, 4096)
    sent = layout.num_targets * encrypted.TARGET_WIRE
    back = layout.num_answers(4096) * layout.answer_wire
    assert sent + back < 300 * encrypted.TARGET_WIRE / 5


# --- What an owner can send, and learns nothing by ------------------------------------------------


def halves(answers: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """(P, N) of the second halves and (P, asked) of the first ones, in shares of the modulus."""
    second, first = np.split(answers, [encrypted.SECOND_WIRE], axis=1)
    second = encrypted._read(second.reshape(len(answers), -1, encrypted.SECOND_BYTES), 3)
    first = encrypted._read(first.reshape(len(answers), -1, encrypted.FIRST_BYTES), 2)
    return second / 2.0**24, first / 2.0**16


Forged = Callable[[np.ndarray], np.ndarray]


def constant(value: int) -> Forged:
    def of(shape_of: np.ndarray) -> np.ndarray:
        polynomials = np.zeros((shape_of.size // encrypted.TARGET_WIRE, encrypted.DEGREE), "<u8")
        polynomials[:, 0] = value
        return polynomials.view(np.uint8).reshape(shape_of.shape)

    return of


def everywhere(value: int) -> Forged:
    def of(shape_of: np.ndarray) -> np.ndarray:
        return np.full(shape_of.size // 8, value, "<u8").view(np.uint8).reshape(shape_of.shape)

    return of


def honest(shape_of: np.ndarray) -> np.ndarray:
    return shape_of


KEYS = {
    "honest": honest,
    "zero": everywhere(0),
    "one": constant(1),
    "large": constant(2**63),
    "known shape": everywhere(2**58),
}
SIZES = {"0": 0, **{f"2^{power}": 2**power for power in (0, 20, 38, 45, 52, 56)}}


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("size", SIZES)
def test_an_answers_noise_says_nothing_of_the_weights(key: str, size: str) -> None:
    """A made-up key, and a constant of any size as the half of a target: so each number's phase is
    the constant times a weight. What is below the bits of a number is as it would be of no weights.

    The phase's place within a blur's width, over a million coefficients in all cases together.
    """
    rng = np.random.default_rng(SIZES[size] % 997)
    layout, owner, bits = Layout(100, 1, 1, 1), SecretKey(), 6
    matrix = whole(rng, 2 * layout.rows, 100, most=2**10)
    wire = np.zeros((layout.num_targets, encrypted.TARGET_WIRE), np.uint8)
    wire[:1] = constant(SIZES[size])(wire[:1])
    forged = KEYS[key](owner.public_key(NONCE))
    given = Encrypted(layout, forged, wire, NONCE)
    answers = given.multiply(lambda rows: matrix[rows], len(matrix), bits, SECRET)
    second, first = halves(answers, layout)
    weights = matrix[:, 0].reshape(len(first), -1)
    within = np.mod(first * 2**bits, 1)
    coins = 5 / np.sqrt(within.size)
    assert abs(np.corrcoef(within.ravel(), weights.ravel())[0, 1]) < coins
    for harmonic in (1, 2, 3):  # uniform: no wave of any phase in it
        wave = np.exp(2j * np.pi * harmonic * within)
        assert abs(wave.mean()) < coins
        assert abs((wave * (weights - weights.mean())).mean()) < coins * weights.std()
    if SIZES[size] * 2**10 < 2**52:  # a 64th of a blur's width: not even the number itself
        assert abs(np.corrcoef(first.ravel(), weights.ravel())[0, 1]) < max(0.02, coins)
    for each in (second, second[:, 1:] + second[:, :-1], second * 2**12):
        share = np.mod(each, 1)
        assert abs(np.exp(2j * np.pi * share).mean()) < 5 / np.sqrt(share.size)
        together = np.corrcoef(share[:, : weights.shape[1] - 1].ravel(), weights[:, 1:].ravel())
        assert abs(together[0, 1]) < coins


def test_second_halves_are_uniform_though_first_ones_show_all_masks() -> None:
    """A key that lays masks open in the numbers: 8 bits of one, and the other seven hide M."""
    layout, rng = Layout(100, 1, 1, 1), np.random.default_rng(0)
    matrix = whole(rng, layout.rows, 100, most=2**10)
    key = np.zeros((encrypted.MASKS, encrypted.DEGREE), "<u8")
    key[0, 0] = 2**56
    targets = np.zeros((layout.num_targets, encrypted.TARGET_WIRE), np.uint8)
    given = Encrypted(layout, key.view(np.uint8).reshape(-1), targets, NONCE)
    second, first = halves(
        given.multiply(lambda rows: matrix[rows], len(matrix), 8, SECRET), layout
    )
    masks = np.rint(first[0] * 2**8)
    assert len(np.unique(masks)) > 200  # bits of a mask, which it pays for with those of a number
    unmasked = encrypted._uniform(NONCE, "target", 100).astype(np.uint64)
    product = encrypted._products(np.pad(matrix, ((0, 0), (0, 0)))[:, :1], unmasked[:, :1])
    known = (product[:, 0] >> np.uint64(40)) / 2.0**24
    assert abs(np.corrcoef(known, second[0])[0, 1]) < 0.08  # 5 / sqrt(4096)


def test_every_ciphertext_has_masks_of_its_own() -> None:
    layout = Layout(3, 1, 1, 1)
    _, answers = exchanged(np.ones((3 * layout.rows, 3), int), np.ones((3, 1), int), layout)
    assert len({answer.tobytes() for answer in answers}) == 3
    assert (answers[0] != answers[1]).mean() > 0.9


def test_coefficients_that_nobody_asked_for_do_not_leave() -> None:
    layout = Layout(3, 5, 2, 3)
    rng = np.random.default_rng(0)
    rows = layout.rows + 7
    targets = whole(rng, 3, 5, most=2 ** (encrypted.NUMBER_BITS - 2))
    _, answers = exchanged(whole(rng, rows, 3, most=99), targets, layout, bits=6)
    first = answers[:, encrypted.SECOND_WIRE :].reshape(2, 2, layout.rows, 3, 2)
    assert first[0, 0].any(axis=2).mean() > 0.99
    assert not first[:, 1, :, 2].any()  # the last group has two columns
    assert not first[1, :, 7:].any()  # the last answer has seven rows


def test_the_same_question_has_the_same_answer_and_any_other_its_own_blur() -> None:
    rng = np.random.default_rng(0)
    layout, owner = Layout(3, 1, 1, 1), SecretKey()
    matrix = whole(rng, 600, 3, most=999)
    wire, key = owner.encrypt(np.ones((3, 1), int), layout, NONCE), owner.public_key(NONCE)
    given = Encrypted(layout, key, wire, NONCE)

    def asked(encrypts: Encrypted = given, **changes: object) -> np.ndarray:
        options = {"num_rows": 600, "bits": 6, "secret": SECRET, "question": b"", **changes}
        return encrypts.multiply(lambda rows: matrix[rows], **options)  # type: ignore[arg-type]

    once = asked()
    assert np.array_equal(once, asked(Encrypted(layout, key, wire, NONCE)))
    changed = wire.copy()
    changed[0, 0] ^= 1
    others = [
        asked(secret=bytes(31) + b"1"),
        asked(question=b"2"),
        asked(Encrypted(layout, key, changed, NONCE)),
        asked(bits=7),
    ]
    matrix[5, 0] += 1
    others.append(asked())
    for other in others:
        assert (other[:, : encrypted.SECOND_WIRE] != once[:, : encrypted.SECOND_WIRE]).mean() > 0.9
        numbers = [owner.decrypt(each, layout, 600)[:, 0] for each in (once, other)]
        assert np.abs(numbers[0] - numbers[1]).max() > width(6) / 2


def test_an_owners_message_follows_from_its_seed() -> None:
    layout, targets = Layout(3, 1, 1, 1), np.ones((3, 1), dtype=np.int64)
    one, again, other = (SecretKey(bytes([seed]) * 32) for seed in (1, 1, 2))
    assert np.array_equal(
        one.encrypt(targets, layout, NONCE), again.encrypt(targets, layout, NONCE)
    )
    assert (one.public_key(NONCE) != other.public_key(NONCE)).mean() > 0.9
    with pytest.raises(MessageError, match="no secret key of rlwe-4096"):
        SecretKey(b"short")


def test_errors_and_secrets_are_as_the_standard_has_them() -> None:
    errors = encrypted._errors(bytes(32), "errors", 25)
    assert abs(errors.mean()) < 5 * np.sqrt(10.5 / errors.size)
    assert errors.var() == pytest.approx(10.5, rel=0.03)
    shares = np.bincount(SecretKey(bytes(32))._s_N1[:, 0] + 1) / encrypted.DEGREE
    assert np.abs(shares - 1 / 3).max() < 0.04
    zero = SecretKey(bytes(32))
    key = zero.public_key(NONCE).view("<u8").reshape(encrypted.MASKS, -1).T
    halves_NP = encrypted._uniform(NONCE, "key", encrypted.MASKS)
    noise = (key + encrypted._products(zero._s_N1, halves_NP)).view(np.int64)
    assert np.abs(noise).max() <= 21


def test_masks_have_the_entropy_that_the_argument_needs() -> None:
    assert encrypted.MASKS * encrypted.MASK_BITS + encrypted.ERROR_BITS > encrypted.MODULUS_BITS


def test_parameters_give_128_bits_by_the_published_table() -> None:
    encrypted.check_standard(encrypted.DEGREE, encrypted.MODULUS_BITS)
    assert encrypted.MODULUS_BITS <= 109  # HomomorphicEncryption.org 2018, Table 1
    with pytest.raises(ConfigError, match="less than 128 bits of security"):
        encrypted.check_standard(2048, encrypted.MODULUS_BITS)
    with pytest.raises(ConfigError, match="allows none"):
        encrypted.check_standard(8191, 20)


def test_what_does_not_fit_is_refused_before_any_work() -> None:
    for labelled, columns, block, classes in ((0, 1, 1, 1), (10**6, 1, 1, 1), (5, 1, 5000, 2)):
        with pytest.raises(MessageError, match="do not lie in blocks"):
            Layout(labelled, columns, block, classes)
    layout, owner = Layout(3, 1, 1, 1), SecretKey()
    wire, key = np.zeros((2, encrypted.TARGET_WIRE), np.uint8), owner.public_key(NONCE)
    with pytest.raises(MessageError, match="targets 3 ciphertexts"):
        Encrypted(layout, key, wire, NONCE)
    with pytest.raises(MessageError, match="a key has 262144 bytes"):
        Encrypted(layout, key[:0], owner.encrypt(np.ones((3, 1), int), layout, NONCE), NONCE)
    with pytest.raises(ConfigError, match="more than 512 ciphertexts"):
        Layout.best(3000, 10_000_000, 10)
    with pytest.raises(MessageError, match="has 1 ciphertexts"):
        owner.decrypt(np.zeros((2, layout.answer_wire), np.uint8), layout, 600)


def test_whole_numbers_stay_within_their_bits() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(50, 3))
    numbers, unit, middle = encrypted.whole_targets(targets)
    assert np.abs(numbers * unit - targets).max() <= unit / 2
    # What means of ten targets can be is read as it is, whatever the modulus made of it.
    means = np.stack([numbers[rng.choice(50, 10)].mean(axis=0) for _ in range(200)])
    assert np.abs(means - middle).max() < 2 ** (encrypted.NUMBER_BITS - 1)
    size = 2**encrypted.NUMBER_BITS
    np.testing.assert_allclose(
        encrypted.around((means + size / 2) % size - size / 2, middle), means
    )
    weights = rng.normal(size=(20, 300)) / 100
    weights[3] *= 1e6
    found = encrypted.whole_weights(weights)
    assert np.abs(found).sum(axis=1).max() <= 2**encrypted.ROW_BITS
    others = np.arange(20) != 3
    scaled = weights[others] * 2**encrypted.WEIGHT_BITS
    assert np.abs(found[others] - scaled).max() <= 0.5 + 1e-6
