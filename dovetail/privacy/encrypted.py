"""A matrix times a vector that is encrypted to whoever sent it, and a bound on what that tells.

The owner encrypts targets t under a key of its own. A partner that has a matrix M of whole numbers
answers with an encryption of M t, blurred. The partner reads nothing. The owner, whatever it sent
as key and targets, gets at most ``bits`` bits of information about M a number that it asked for.

    owner                                      partner
    b_i = -(a_i s + e_i)              ---->    eight halves of encrypted zeros
    c_k = -(d_k s + e'_k) + D t_k     ---->    first  = sum_k M_k c_k + sum_i u_i b_i
                                               second = sum_k M_k d_k + sum_i u_i a_i + e
    first + second s = D M t + blur   <----    of the first half: asked coefficients + blur, cut;
                                               the second half, cut

Everything is in R = Z_q[X] / (X^4096 + 1) with q = 2^64 (ring learning with errors). Secrets s are
ternary, errors centred binomial of variance 10.5, as of Microsoft SEAL: 64 bits of modulus, where
the HomomorphicEncryption.org standard (2018, Table 1) allows 109 for 128 bits of security. The
halves a_i, d_k are expanded from a nonce by SHAKE256. Rows lie in coefficients: t_j in X^j, and
M[r, j] in X^(r g + g - 1 - j), so that the number of row r is coefficient r g + g - 1 of a product.

**What the owner learns**, of key, targets and nonce that it made up as it likes:

1. The second half is uniform. u_i has uniform coefficients of 8 bits and e of 1, the partner's own,
   and 8 x 8 + 1 = 64 + 1. 2 is totally ramified in Z[X] / (X^4096 + 1), so the ideals of R are the
   powers of P = (1 - X), of index 2^v; a_i d generates one of them. Two draws (u, e), (u', e') of
   differences d_i, d collide with probability 2^(v - 64 N) if d lies in P^v, v the least valuation
   of the d_i, else 0. As d lies in P^v with probability 2^-v (v <= N), the collision probability is
   at most (1 + 2^(1 - N)) q^-N: by the leftover hash lemma the second half is within 2^-(N / 2) =
   2^-2048 of uniform, on average over a_i. So it is for all but 2^-1900 of the nonces, whoever
   chooses them, and whatever sum_k M_k d_k is.
2. Given the second half, each asked coefficient of the first is (something of the owner's making) +
   blur, modulo q, with a blur that is uniform over 2^(64 - bits) values. So it tells at most
   64 - (64 - bits) = bits bits: entropy of the sum, less that of the blur. No other coefficient of
   the first half leaves.

Together: information of R rows and C columns <= bits R C + 2^-1900, for every b and c, without an
assumption on the owner. It is a bound on all numbers of an answer together: targets that are not
as they should be mix rows of one ciphertext. Which rows share one, and in what order, the caller
draws at random once it has the question, so nobody can choose whose numbers they pay with.

**What an honest owner learns** is a function of M t alone, blurred, but for noise: products and
masks make about 2^20, where the blur is 2^58 wide: a statistical distance of 2^-38 a number.

All randomness of an answer is a keyed hash of the question and of M: the same question has the same
answer, bit for bit, and any other one has independent blurs.

Products are made by floating-point Fourier transforms of 16-bit limbs; the error of a sum stays
below 2^-1.9 (bounded for the largest sizes), so that what is rounded is exact.

Letters: L labelled rows, C columns of targets, R rows of M, N coefficients, K ciphertexts of a
column, A answers, P ciphertexts, W bytes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.cluster import LOCAL, current
from dovetail.errors import ConfigError, MessageError

#: N, and bits of the modulus.
DEGREE, MODULUS_BITS = 4096, 64
#: Masks of an answer, bits of their coefficients, and of the error beside them.
MASKS, MASK_BITS, ERROR_BITS = 8, 8, 1
#: Numbers that are read lie in an interval of 2^NUMBER_BITS units; a weight of 1 has so many bits.
NUMBER_BITS, WEIGHT_BITS = 12, 14
#: The sizes of a row of weights sum to 2^ROW_BITS at most: then no product is rounded wrongly.
ROW_BITS = WEIGHT_BITS + 3
#: A number lies between means of so many targets at either end, or so far beyond, as a share of
#: their distance: what is further out, blur included, is read as if from the other end. Weights of
#: a ridge have signs: of ten classes numbers reach 0.35 beyond, of two 0.2. A wider interval has
#: coarser bits, of which a single number has few. Both margins have the least error of what is
#: read, to within a tenth, of ten settings of ``dovetail bench worth`` (no label judged them).
REACHED_BY, MARGIN_OF_ONE, MARGIN = 10, 0.25, 0.5
#: Bytes that are sent of a coefficient of a second half, and of an asked one of a first.
SECOND_BYTES, FIRST_BYTES = 3, 2
NONCE_BYTES = SEED_BYTES = 32

#: Ring degree -> bits of all moduli at most, for 128 bits of security against classical attacks and
#: ternary secrets: HomomorphicEncryption.org standard, November 2018, Table 1.
STANDARD_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}

#: What both sides must have alike; it travels with each message.
PARAMETERS = f"rlwe-{DEGREE}-{MODULUS_BITS}-{MASKS}x{MASK_BITS}-{WEIGHT_BITS}-{NUMBER_BITS}"

TARGET_WIRE, SECOND_WIRE = 8 * DEGREE, SECOND_BYTES * DEGREE
KEY_WIRE = MASKS * TARGET_WIRE

#: Bits of a blur, and of what is left of a coefficient once its lowest bits are cut away.
_SECOND_CUT, _FIRST_CUT = 64 - 8 * SECOND_BYTES, 64 - 8 * FIRST_BYTES
#: What a target of 1 and a weight of 1 make: 2^NUMBER_BITS such are q.
_SCALE_BITS = MODULUS_BITS - WEIGHT_BITS - NUMBER_BITS
_LIMBS = 4
#: Polynomials of weights that are transformed at a time (32 KiB each).
_AT_ONCE = 1024

#: A partner keeps no more ciphertexts than these in memory (256 KiB each).
MAX_CIPHERTEXTS = 512


def check_standard(degree: int, bits: int) -> None:
    """Refuse parameters that give less than 128 bits of security.

    Raises:
        ConfigError: naming the row of the published table.
    """
    most = STANDARD_BITS.get(degree)
    if most is None or bits > most:
        raise ConfigError(
            f"a modulus of {bits} bits at ring degree {degree} gives less than 128 bits of "
            f"security: the HomomorphicEncryption.org table allows {most or 'none'}"
        )


@dataclass(frozen=True)
class Layout:
    """How targets and rows lie in coefficients.

    Attributes:
        labelled: L.
        columns: C.
        block: g labelled rows in a ciphertext.
        classes: columns in a ciphertext.
    """

    labelled: int
    columns: int
    block: int
    classes: int

    def __post_init__(self) -> None:
        if (
            min(self.labelled, self.columns, self.block, self.classes) < 1
            or self.block * self.classes > DEGREE
            or self.block > 2 * self.labelled
            or self.classes > self.columns
            or self.num_targets > MAX_CIPHERTEXTS
        ):
            raise MessageError(
                f"{self.labelled} rows of {self.columns} columns do not lie in blocks of "
                f"{self.block} rows and {self.classes} columns"
            )

    @property
    def rows(self) -> int:
        """Rows of M that an answer's ciphertext holds."""
        return DEGREE // (self.block * self.classes)

    @property
    def parts(self) -> int:
        """K, ciphertexts of one group of columns."""
        return -(-self.labelled // self.block)

    @property
    def groups(self) -> int:
        return -(-self.columns // self.classes)

    @property
    def num_targets(self) -> int:
        """Ciphertexts that go to a partner."""
        return self.groups * self.parts

    @property
    def answer_wire(self) -> int:
        """Bytes of an answer's ciphertext."""
        return SECOND_WIRE + FIRST_BYTES * self.rows * self.classes

    def num_answers(self, num_rows: int) -> int:
        """Ciphertexts that come back for so many rows of M."""
        return self.groups * -(-num_rows // self.rows)

    @cached_property
    def asked(self) -> np.ndarray:
        """(rows, classes) coefficients where the numbers of an answer stand."""
        row, column = np.ix_(np.arange(self.rows), np.arange(self.classes))
        at: np.ndarray = (row * self.classes + column) * self.block + self.block - 1
        return at

    @classmethod
    def best(cls, labelled: int, columns: int, num_rows: int) -> Layout:
        """The one that takes the least time, at 100 Mbit/s and the milliseconds measured by
        ``benchmarks/sealed.py``."""
        sizes = [2**power for power in range(13)]
        candidates: list[tuple[float, Layout]] = []
        for classes in sorted({min(size, columns) for size in sizes}):
            for block in sizes:
                try:
                    layout = cls(labelled, columns, block, classes)
                except MessageError:
                    continue
                answers = layout.num_answers(num_rows)
                wire = layout.num_targets * TARGET_WIRE + answers * layout.answer_wire
                products = answers * layout.parts
                seconds = wire / 12.5e6 + 1e-3 * layout.num_targets + 1.5e-3 * answers
                seconds += 50e-6 * products / layout.groups + 16e-6 * products
                candidates.append((seconds, layout))
        if not candidates:
            raise ConfigError(
                f"{labelled} labelled rows of {columns} columns take more than {MAX_CIPHERTEXTS} "
                "ciphertexts; label fewer rows, or merge classes"
            )
        return min(candidates, key=lambda each: each[0])[1]


# --- Polynomials ---------------------------------------------------------------------------------

#: X^(N / 2) = i: a real polynomial modulo X^N + 1 is a complex one of half the length, and a twist
#: by roots of i makes its product cyclic.
_TWIST = np.exp(1j * np.pi / DEGREE * np.arange(DEGREE // 2))
_OFFSET = np.uint64(0x8000_8000_8000_8000)


def _transformed(x_NP: np.ndarray) -> np.ndarray:
    """(N / 2, ...) of real coefficients (N, ...)."""
    from scipy import fft  # slow to import: for runs that encrypt

    half = DEGREE // 2
    z = np.empty((half, *x_NP.shape[1:]), dtype=np.complex128)
    z.real, z.imag = x_NP[:half], x_NP[half:]
    z *= _TWIST.reshape(half, *[1] * (x_NP.ndim - 1))
    transformed: np.ndarray = fft.fft(z, axis=0, overwrite_x=True)
    return transformed


def _whole(z: np.ndarray) -> np.ndarray:
    """(N, ...) int64 coefficients of what was transformed."""
    from scipy import fft

    z = fft.ifft(z, axis=0, overwrite_x=True)
    z *= _TWIST.conj().reshape(len(z), *[1] * (z.ndim - 1))
    whole: np.ndarray = np.rint(np.concatenate([z.real, z.imag])).astype(np.int64)
    return whole


def _limbs(c_NP: np.ndarray) -> np.ndarray:
    """(N, P, 4) whole numbers of 16 bits with their signs; 65536^i times these sum to c."""
    moved = np.ascontiguousarray(c_NP.astype("<u8") + _OFFSET)
    digits = moved.view("<u2").reshape(*c_NP.shape, _LIMBS)
    return digits.astype(np.float64) - 2.0**15


def _of_limbs(x_NPl: np.ndarray) -> np.ndarray:
    """(N, P) modulo q."""
    each = x_NPl.astype(np.uint64)  # of a negative one its residue
    total: np.ndarray = each[..., 0].copy()
    for index in range(1, _LIMBS):
        total += each[..., index] << np.uint64(16 * index)
    return total


def _products(x_NP: np.ndarray, c_NP: np.ndarray) -> np.ndarray:
    """(N, P) of small polynomials and any."""
    return _of_limbs(_whole(_transformed(x_NP)[..., None] * _transformed(_limbs(c_NP))))


# --- Bytes ---------------------------------------------------------------------------------------

_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=int)


def _drawn(seed: bytes, purpose: str, count: int) -> bytes:
    """Bytes of a stream of this seed's own."""
    return hashlib.shake_256(f"dovetail {PARAMETERS} {purpose} ".encode() + seed).digest(count)


def _uniform(nonce: bytes, purpose: str, count: int) -> np.ndarray:
    """(N, P) coefficients that follow from a nonce."""
    drawn = [_drawn(nonce, f"{purpose} {index}", TARGET_WIRE) for index in range(count)]
    return np.frombuffer(b"".join(drawn), "<u8").reshape(count, DEGREE).T


def _errors(seed: bytes, purpose: str, count: int) -> np.ndarray:
    """(N, P) centred binomial: the bits of 21 that are set, less those of 21 others."""
    drawn = np.frombuffer(_drawn(seed, purpose, 6 * count * DEGREE), np.uint8).reshape(-1, 2, 3)
    set_bits = _SET_BITS[drawn & np.array([255, 255, 31], np.uint8)].sum(axis=2)
    errors: np.ndarray = (set_bits[:, 0] - set_bits[:, 1]).reshape(count, DEGREE).T
    return errors


def new_nonce() -> bytes:
    """What random halves are expanded from."""
    return secrets.token_bytes(NONCE_BYTES)


def _cut(values: np.ndarray, bits: int, num_bytes: int) -> np.ndarray:
    """(..., bytes) of values modulo q, rounded to their highest bits."""
    rounded = (values + np.uint64(1 << (bits - 1))) >> np.uint64(bits)
    eight = np.ascontiguousarray(rounded.astype("<u8"))[..., None].view(np.uint8)
    return np.ascontiguousarray(eight[..., :num_bytes])


def _read(wire: np.ndarray, num_bytes: int) -> np.ndarray:
    """(...) highest bits, of (..., bytes)."""
    eight = np.zeros((*wire.shape[:-1], 8), np.uint8)
    eight[..., :num_bytes] = wire
    values: np.ndarray = eight.view("<u8")[..., 0]
    return values


# --- The owner ----------------------------------------------------------------------------------


class SecretKey:
    """A key, which encrypts targets and decrypts answers; it follows from a seed.

    A seed encrypts one set of targets: two under the same nonce and errors would show their
    difference.

    Args:
        seed: 32 bytes that nobody else has; None: from the system.

    Raises:
        MessageError: a seed of another size.
    """

    def __init__(self, seed: bytes | None = None) -> None:
        check_standard(DEGREE, MODULUS_BITS)
        self.seed = secrets.token_bytes(SEED_BYTES) if seed is None else seed
        if len(self.seed) != SEED_BYTES:
            raise MessageError(f"it is no secret key of {PARAMETERS}")
        drawn = np.frombuffer(_drawn(self.seed, "secret", 2 * DEGREE), np.uint8)
        fair = drawn[drawn < 255][:DEGREE]  # 255 = 3 x 85
        self._s_N1 = (fair % 3).astype(np.int64)[:, None] - 1

    def _hides(self, halves_NP: np.ndarray, purpose: str) -> np.ndarray:
        """(N, P) first halves that decrypt with these second ones to zero."""
        errors_NP = _errors(self.seed, purpose, halves_NP.shape[1])
        products_NP = _products(self._s_N1, halves_NP)
        hidden: np.ndarray = np.negative(products_NP + errors_NP.astype(np.uint64))
        return hidden

    def public_key(self, nonce: bytes) -> np.ndarray:
        """(KEY_WIRE,) encrypted zeros: the halves that travel."""
        halves_NP = self._hides(_uniform(nonce, "key", MASKS), "errors of the key")
        return _bytes_of(halves_NP).reshape(-1)

    def encrypt(self, targets_LC: np.ndarray, layout: Layout, nonce: bytes) -> np.ndarray:
        """(ciphertexts, TARGET_WIRE) of whole numbers."""
        g, shape = layout.block, (layout.groups, layout.classes, layout.parts, layout.block)
        padded = np.zeros((layout.groups * layout.classes, layout.parts * g), dtype=np.int64)
        padded[: layout.columns, : layout.labelled] = targets_LC.T
        each = padded.reshape(shape).transpose(0, 2, 1, 3).reshape(layout.num_targets, -1)
        plain_NP = np.zeros((DEGREE, layout.num_targets), dtype=np.int64)
        plain_NP[: each.shape[1]] = each.T
        halves_NP = self._hides(_uniform(nonce, "target", layout.num_targets), "errors of targets")
        return _bytes_of(halves_NP + (plain_NP.astype(np.uint64) << np.uint64(_SCALE_BITS)))

    def decrypt(self, wire: np.ndarray, layout: Layout, num_rows: int) -> np.ndarray:
        """(R, C) numbers in units of a target of 1 and a weight of 1, modulo 2^NUMBER_BITS.

        Args:
            wire: (ciphertexts, ``layout.answer_wire``) that ``multiply`` gave.
            layout: of the targets.
            num_rows: R.

        Raises:
            MessageError: not as many as there should be.
        """
        if wire.shape != (layout.num_answers(num_rows), layout.answer_wire):
            raise MessageError(
                f"an answer about {num_rows} rows has {layout.num_answers(num_rows)} ciphertexts "
                f"of {layout.answer_wire} bytes, got {tuple(wire.shape)}"
            )
        secret = _transformed(self._s_N1)
        parts = [self._opened(part, secret, layout) for part in np.split(wire, _pieces(len(wire)))]
        shape = -1, layout.groups, layout.rows, layout.classes
        phase = np.concatenate(parts).reshape(shape).transpose(0, 2, 1, 3)
        phase_RC = phase.reshape(-1, layout.groups * layout.classes)[:num_rows, : layout.columns]
        return np.ldexp(phase_RC.view(np.int64).astype(np.float64), -_SCALE_BITS - WEIGHT_BITS)

    @staticmethod
    def _opened(wire: np.ndarray, secret: np.ndarray, layout: Layout) -> np.ndarray:
        """(A, rows, classes) phases."""
        second, first = np.split(wire, [SECOND_WIRE], axis=1)
        second_AN = _read(second.reshape(len(wire), DEGREE, SECOND_BYTES), SECOND_BYTES)
        half = np.uint64(1 << (8 * SECOND_BYTES - 1))
        signed_NA = ((second_AN ^ half).astype(np.int64) - int(half)).T
        times_NA = _whole(_transformed(signed_NA) * secret).astype(np.uint64)
        times = times_NA[layout.asked].transpose(2, 0, 1)
        shape = len(wire), layout.rows, layout.classes, FIRST_BYTES
        firsts = _read(first.reshape(shape), FIRST_BYTES)
        phase: np.ndarray = (firsts << np.uint64(_FIRST_CUT)) + (times << np.uint64(_SECOND_CUT))
        return phase


def _bytes_of(c_NP: np.ndarray) -> np.ndarray:
    """(P, 8 N)."""
    return np.ascontiguousarray(c_NP.T.astype("<u8")).view(np.uint8)


def _pieces(count: int) -> list[int]:
    """Where a list of ciphertexts is cut, so that what is worked on at once stays small."""
    return list(range(_AT_ONCE // 8, count, _AT_ONCE // 8))


# --- The partner --------------------------------------------------------------------------------


class Encrypted:
    """Targets as a partner has them, of sizes that were checked before any work.

    Args:
        layout: how they lie in coefficients.
        key: (KEY_WIRE,) the owner's encrypted zeros.
        targets: (ciphertexts, TARGET_WIRE).
        nonce: what second halves are expanded from.

    Raises:
        MessageError: sizes of others. Nothing else is asked of them: every coefficient modulo q is
            one, and what an answer tells does not depend on them.
    """

    def __init__(self, layout: Layout, key: np.ndarray, targets: np.ndarray, nonce: bytes) -> None:
        if key.shape != (KEY_WIRE,) or targets.shape != (layout.num_targets, TARGET_WIRE):
            raise MessageError(
                f"a key has {KEY_WIRE} bytes and targets {layout.num_targets} ciphertexts of "
                f"{TARGET_WIRE}, got {tuple(key.shape)} and {tuple(targets.shape)}"
            )
        if len(nonce) != NONCE_BYTES:
            raise MessageError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        self.layout, self._wire = layout, (layout, key, targets, nonce)
        self._token = secrets.token_bytes(NONCE_BYTES)

    @cached_property
    def digest(self) -> bytes:
        """Tells these ciphertexts from all others."""
        layout, key, targets, nonce = self._wire
        head = f"{PARAMETERS} {layout} ".encode()
        return hashlib.blake2b(b"".join([head, nonce, key.tobytes(), targets.tobytes()])).digest()

    @cached_property
    def _zeros(self) -> np.ndarray:
        """(N / 2, masks, 2 limbs) of both halves of the encrypted zeros, transformed."""
        _, key, _, nonce = self._wire
        return _both(key.view("<u8").reshape(MASKS, DEGREE).T, _uniform(nonce, "key", MASKS))

    @cached_property
    def _targets(self) -> np.ndarray:
        """(N / 2, K, groups 2 limbs) of both halves of the targets, transformed."""
        layout, _, targets, nonce = self._wire
        count = layout.num_targets
        first = np.ascontiguousarray(targets).view("<u8").T
        both = _both(first, _uniform(nonce, "target", count))
        parts = both.reshape(len(both), layout.groups, layout.parts, 2 * _LIMBS)
        together = parts.transpose(0, 2, 1, 3).reshape(len(both), layout.parts, -1)
        return np.ascontiguousarray(together)

    def __reduce__(self) -> tuple[object, ...]:
        """How it travels to a process of the party's own cluster, which keeps the last one."""
        return _again, (self._token, self._wire)

    def multiply(
        self,
        weights_of: Callable[[slice], np.ndarray],
        num_rows: int,
        bits: int,
        secret: bytes,
        question: bytes = b"",
    ) -> np.ndarray:
        """(ciphertexts, ``layout.answer_wire``) of M t, blurred; of many rows on the own cluster.

        Args:
            weights_of: rows -> (rows, L) whole numbers; sums of their sizes stay within
                ``ROW_BITS``.
            num_rows: R.
            bits: that each number tells at the most.
            secret: 32 bytes of the partner's own, which nobody else has.
            question: what else tells this question from others, such as whose rows these are.
        """
        answers = max(1, _AT_ONCE // (self.layout.parts + MASKS * self.layout.groups))
        size = self.layout.rows * answers
        parts = [slice(at, min(at + size, num_rows)) for at in range(0, num_rows, size)]
        asked = hashlib.blake2b(self.digest + bytes([bits]) + question, key=secret).digest()
        given = (
            (weights_of(part).astype(np.int32), bits, asked + part.start.to_bytes(8, "little"))
            for part in parts
        )
        tasks = current() if len(parts) > 1 else LOCAL
        return np.concatenate([*tasks.map(self._answers, given)])

    def _answers(self, asked: tuple[np.ndarray, int, bytes]) -> np.ndarray:
        """(ciphertexts, bytes) of (rows, L) weights: the same of the same, else independent."""
        weights_RL, bits, name = asked
        layout, given = self.layout, np.ascontiguousarray(weights_RL)
        seed = hashlib.blake2b(name + given.tobytes()).digest()
        num, groups = -(-len(given) // layout.rows), layout.groups
        sums = _transformed(self._packed(given, num)) @ self._targets  # (N / 2, A, groups 2 limbs)
        drawn = np.frombuffer(_drawn(seed, "masks", num * groups * MASKS * DEGREE), np.int8)
        masks = drawn.reshape(DEGREE, num * groups, MASKS)
        sums += (_transformed(masks) @ self._zeros).reshape(sums.shape)
        both = _of_limbs(_whole(sums).reshape(DEGREE, num * groups, 2, _LIMBS))
        error = np.frombuffer(_drawn(seed, "error", num * groups * DEGREE), np.uint8)
        second = both[..., 1].T + (error & np.uint8(1)).reshape(-1, DEGREE)
        first = both[layout.asked, :, 0].transpose(2, 0, 1)  # (A groups, rows, classes)
        blur = np.frombuffer(_drawn(seed, "blur", 8 * first.size), "<u8") >> np.uint64(bits)
        first = first + blur.reshape(first.shape) - np.uint64(1 << (MODULUS_BITS - 1 - bits))
        sent = _cut(first, _FIRST_CUT, FIRST_BYTES)
        sent = sent.reshape(num, groups, layout.rows, layout.classes, FIRST_BYTES)
        for group in range(groups):  # what pads the last rows and columns is nobody's number
            sent[:, group, :, max(0, layout.columns - group * layout.classes) :] = 0
        sent[-1, :, len(given) - (num - 1) * layout.rows :] = 0
        halves = _cut(second, _SECOND_CUT, SECOND_BYTES).reshape(num * groups, -1)
        return np.concatenate([halves, sent.reshape(num * groups, -1)], axis=1)

    def _packed(self, weights_RL: np.ndarray, num: int) -> np.ndarray:
        """(N, A, K) polynomials: M[r, j] in X^(r classes g + g - 1 - j)."""
        layout, g = self.layout, self.layout.block
        padded = np.zeros((num * layout.rows, layout.parts * g), dtype=np.int32)
        padded[: len(weights_RL), : layout.labelled] = weights_RL
        each = padded.reshape(num, layout.rows, layout.parts, g)[..., ::-1].transpose(1, 3, 0, 2)
        packed = np.zeros((DEGREE, num, layout.parts), dtype=np.int32)
        used = layout.rows * layout.classes * g
        whole = packed[:used].reshape(layout.rows, layout.classes, g, num, layout.parts)
        whole[:, 0] = each
        return packed


def _both(first_NP: np.ndarray, second_NP: np.ndarray) -> np.ndarray:
    """(N / 2, P, 2 limbs) transformed halves of ciphertexts."""
    both = _limbs(np.stack([first_NP, second_NP], axis=-1))
    return _transformed(both.reshape(DEGREE, first_NP.shape[1], 2 * _LIMBS))


#: What came last to this process of a cluster, by a token of the party's own: no owner chose it.
_last: dict[bytes, Encrypted] = {}


def _again(token: bytes, wire: tuple[Layout, np.ndarray, np.ndarray, bytes]) -> Encrypted:
    if token not in _last:
        _last.clear()
        _last[token] = Encrypted(*wire)
    return _last[token]


# --- Whole numbers -------------------------------------------------------------------------------


def whole_targets(targets_LC: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Whole numbers, what a unit of them stands for, and (C,) the middle of what is read, in units.

    The fewer values numbers can have, the more the bits of each tell, so that fewer do.
    """
    ordered = np.sort(targets_LC, axis=0)
    num = min(REACHED_BY, len(ordered))
    low_C = np.minimum(ordered[:num].mean(axis=0), 0.0)  # weights may sum to 0
    high_C = np.maximum(ordered[-num:].mean(axis=0), 0.0)
    width = float((high_C - low_C).max(initial=0.0)) or 1.0
    margin = MARGIN_OF_ONE if targets_LC.shape[1] == 1 else MARGIN
    unit = width * (1 + 2 * margin) / 2**NUMBER_BITS
    return np.rint(targets_LC / unit).astype(np.int64), unit, (low_C + high_C) / (2 * unit)


def around(numbers_RC: np.ndarray, middle_C: np.ndarray) -> np.ndarray:
    """Numbers that were read modulo 2^NUMBER_BITS, as those nearest to the middle."""
    size = 2.0**NUMBER_BITS
    nearest: np.ndarray = middle_C + (numbers_RC - middle_C + size / 2) % size - size / 2
    return nearest


def whole_weights(weights_RL: np.ndarray) -> np.ndarray:
    """(R, L) whole numbers of ``WEIGHT_BITS``; a row too large for ``ROW_BITS`` is made smaller."""
    scaled = weights_RL * np.float32(2**WEIGHT_BITS)
    sizes = np.abs(scaled).sum(axis=1, keepdims=True)
    most = np.float32(2**ROW_BITS - scaled.shape[1])  # rounding adds a half to each
    if (sizes > most).any():
        scaled *= np.minimum(np.float32(1), most / np.maximum(sizes, np.float32(1)))
    whole: np.ndarray = np.rint(scaled, out=scaled).astype(np.int32)
    return whole
