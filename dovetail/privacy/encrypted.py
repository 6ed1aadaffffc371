"""A matrix times a vector that is encrypted to whoever sent it.

The owner encrypts targets t under a key of its own. A partner that has a matrix M of whole numbers
answers with an encryption of M t; it reads nothing, and the owner reads M t and no more.

    owner                                    partner
    b = -(a s + e)                  ---->    (b, a) encrypts zeros
    c_k = (-(a_k s + e_k) + D t_k)  ---->    sum_k M_k c_k + masks + (b, a) u + e'
    M t = sum of blocks             <----    the same, its two small primes divided away

The scheme is BFV (Fan and Vercauteren 2012, ePrint 2012/144) of Microsoft SEAL: ring degree 8192,
214 bits of moduli, within the 218 that the HomomorphicEncryption.org standard (2018, Table 1) gives
for 128 bits of security and ternary secrets. What keeps M from the owner:

1. Blocks. A ciphertext has 8192 slots. It holds g labelled rows side by side, so what comes back
   are g parts of each sum. The partner adds masks modulo the plaintext modulus that are uniform but
   for their sum, which is zero: the parts say nothing beyond M t.
2. A fresh encryption of zero under the owner's public key hides the products of the plaintexts with
   the ciphertexts' random halves.
3. The noise, which products of M have made larger, is divided by two primes of 51 bits and rounded:
   what is left of it is rounding of uniform numbers, but for a chance of 2^-40 a number (the flood,
   by modulus switching).
4. The random halves a, a_k do not travel: both sides expand them from a nonce by SHAKE256, so that
   an owner cannot choose them with a trapdoor. SEAL's own are replaced by c + (a' - a) s.

An owner that does not keep to the protocol chooses t freely: M t for one t a number, see ``docs``.

Letters: L labelled rows, C columns of targets, R rows of M, N slots, P bytes.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dovetail.cluster import LOCAL, current
from dovetail.errors import ConfigError, MessageError
from dovetail.lazy import needed

#: Ring degree, which is also the number of slots.
DEGREE = 8192
#: Bits of the primes: the one that answers come in, two that flood, and one of keys alone.
MODULI_BITS = (56, 51, 51, 56)
#: Bits of the plaintext modulus.
PLAIN_BITS = 47
#: A target is a whole number of at most so many bits and a sign; a row of M sums to so many.
TARGET_BITS, ROW_BITS = 20, 25

#: Ring degree -> bits of all moduli at most, for 128 bits of security against classical attacks and
#: ternary secrets: HomomorphicEncryption.org standard, November 2018, Table 1.
STANDARD_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}

#: What both sides must have alike; it travels with each message.
PARAMETERS = f"bfv-{DEGREE}-{'.'.join(map(str, MODULI_BITS))}-{PLAIN_BITS}"

#: Bytes of a coefficient on the wire, and of a nonce.
_WIDTH, NONCE_BYTES = 7, 32
#: Coefficients of a ciphertext's half: at the level of the targets, of keys and of answers.
_TARGET, _KEY, _ANSWER = 3 * DEGREE, 4 * DEGREE, DEGREE
KEY_COEFFICIENTS = _KEY
TARGET_WIRE, KEY_WIRE, ANSWER_WIRE = _TARGET * _WIDTH, _KEY * _WIDTH, 2 * _ANSWER * _WIDTH

#: Products of a ciphertext and weights that are made at a time, where a party has a cluster.
_PRODUCTS = 64

#: A partner keeps no more ciphertexts than these in memory (384 KiB each).
MAX_CIPHERTEXTS = 512


def check_standard(degree: int, bits: Sequence[int]) -> None:
    """Refuse parameters that give less than 128 bits of security.

    Raises:
        ConfigError: naming the row of the published table.
    """
    most = STANDARD_BITS.get(degree)
    if most is None or sum(bits) > most:
        raise ConfigError(
            f"moduli of {sum(bits)} bits at ring degree {degree} give less than 128 bits of "
            f"security: the HomomorphicEncryption.org table allows {most or 'none'}"
        )


@dataclass(frozen=True)
class Layout:
    """How targets and rows lie in slots.

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
        """Ciphertexts of one group of columns."""
        return -(-self.labelled // self.block)

    @property
    def groups(self) -> int:
        return -(-self.columns // self.classes)

    @property
    def num_targets(self) -> int:
        """Ciphertexts that go to a partner."""
        return self.groups * self.parts

    def num_answers(self, num_rows: int) -> int:
        """Ciphertexts that come back for so many rows of M."""
        return self.groups * -(-num_rows // self.rows)

    @classmethod
    def best(cls, labelled: int, columns: int, num_rows: int) -> Layout:
        """The one that takes the least time, at 100 Mbit/s and the milliseconds measured by
        ``benchmarks/sealed.py``."""
        sizes = [2**power for power in range(14)]
        candidates: list[tuple[float, Layout]] = []
        for classes in sorted({min(size, columns) for size in sizes}):
            for block in sizes:
                try:
                    layout = cls(labelled, columns, block, classes)
                except MessageError:
                    continue
                answers = layout.num_answers(num_rows)
                wire = layout.num_targets * TARGET_WIRE + answers * ANSWER_WIRE
                products = answers * layout.parts
                seconds = wire / 12.5e6 + 6e-3 * layout.num_targets + 8e-3 * answers
                seconds += 0.8e-3 * products / layout.groups + 0.2e-3 * products
                candidates.append((seconds, layout))
        if not candidates:
            raise ConfigError(
                f"{labelled} labelled rows of {columns} columns take more than {MAX_CIPHERTEXTS} "
                "ciphertexts; label fewer rows, or merge classes"
            )
        return min(candidates, key=lambda each: each[0])[1]


# --- Microsoft SEAL -----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _seal() -> Any:
    """The library.

    Raises:
        ConfigError: it is not installed.
    """
    install = (
        "seal-python (Microsoft SEAL, built from source on a platform that it has no wheel for), "
        'or train with method = "apfed-d"'
    )
    with needed("APFed-S", install):
        import seal
    return seal


class _Ring:
    """Context, encoder and moduli, the same on both sides."""

    def __init__(self) -> None:
        check_standard(DEGREE, MODULI_BITS)
        self.seal = seal = _seal()
        parameters = seal.EncryptionParameters(seal.scheme_type.bfv)
        parameters.set_poly_modulus_degree(DEGREE)
        moduli = seal.CoeffModulus.Create(DEGREE, list(MODULI_BITS))
        parameters.set_coeff_modulus(moduli)
        plain = seal.PlainModulus.Batching(DEGREE, PLAIN_BITS)
        parameters.set_plain_modulus(plain)
        self.context = seal.SEALContext(parameters, True, seal.sec_level_type.tc128)
        if not self.context.parameters_set():
            raise ConfigError(
                f"Microsoft SEAL refuses {PARAMETERS}: {self.context.parameter_error_message()}"
            )
        self.primes = [int(prime.value()) for prime in moduli]
        self.plain = int(plain.value())
        self.first, self.last = self.context.first_parms_id(), self.context.last_parms_id()
        self.encoder = seal.BatchEncoder(self.context)
        self.evaluator = seal.Evaluator(self.context)

    @cached_property
    def heads(self) -> dict[str, bytes]:
        """What stands before the coefficients where SEAL writes a target, a key or an answer."""
        keys = self.seal.KeyGenerator(self.context)
        public = keys.create_public_key()
        zero = self.seal.Encryptor(self.context, public).encrypt_zero(self.first)
        ntt = bytes(self.evaluator.transform_to_ntt(zero).to_string())
        answer = bytes(self.evaluator.mod_switch_to(zero, self.last).to_string())
        key = bytes(public.to_string())
        return {
            "secret": bytes(keys.secret_key().to_string())[: -8 * _KEY],
            "target": ntt[: -16 * _TARGET],
            "key": key[: -16 * _KEY],
            "answer": answer[: -16 * _ANSWER],
        }

    def secret_key(self, coefficients: np.ndarray) -> Any:
        """SEAL's own of these coefficients.

        Raises:
            MessageError: they are of other parameters.
        """
        residues = coefficients.reshape(-1)
        if residues.shape != (_KEY,) or any(
            int(part.min()) < 0 or int(part.max()) >= prime
            for prime, part in zip(self.primes, residues.reshape(-1, DEGREE), strict=True)
        ):
            raise MessageError(f"it is no secret key of {PARAMETERS}")
        whole = self.heads["secret"] + residues.astype("<u8").tobytes()
        return self.context.from_secret_str(whole)

    def ciphertext(self, kind: str, coefficients: np.ndarray) -> Any:
        """A ciphertext of these coefficients, which are below the primes."""
        loaded = self.seal.Ciphertext(self.context)
        loaded.load_bytes(self.context, self.heads[kind] + coefficients.astype("<u8").tobytes())
        return loaded


@lru_cache(maxsize=1)
def _ring() -> _Ring:
    return _Ring()


def new_nonce() -> bytes:
    """What random halves are expanded from, never twice the same."""
    return secrets.token_bytes(NONCE_BYTES)


def check_installed() -> None:
    """Refuse to go on without the library.

    Raises:
        ConfigError: it is not installed, or refuses the parameters.
    """
    _ring()


def _coefficients(written: Any, count: int) -> np.ndarray:
    return np.frombuffer(bytes(written)[-8 * count :], "<u8")


def _to_wire(coefficients: np.ndarray) -> np.ndarray:
    """(7 per coefficient,) bytes."""
    eight = np.ascontiguousarray(coefficients, "<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(eight[:, :_WIDTH]).reshape(-1)


def _from_wire(wire: np.ndarray, moduli: Sequence[int], what: str) -> np.ndarray:
    """Coefficients, each below its prime.

    Raises:
        MessageError: one that is not.
    """
    eight = np.zeros((wire.size // _WIDTH, 8), np.uint8)
    eight[:, :_WIDTH] = wire.reshape(-1, _WIDTH)
    residues_all = eight.view("<u8").reshape(len(moduli), DEGREE)
    for prime, residues in zip(moduli, residues_all, strict=True):
        if int(residues.max()) >= prime:
            raise MessageError(f"{what}: it is no ciphertext of {PARAMETERS}")
    return residues_all.reshape(-1)


def _uniform(nonce: bytes, purpose: str, moduli: Sequence[int]) -> np.ndarray:
    """Residues that nobody chose: SHAKE256 of the nonce, each residue by rejection."""
    parts = []
    for index, prime in enumerate(moduli):
        seed = hashlib.shake_256(f"dovetail {PARAMETERS} {purpose} {index} ".encode() + nonce)
        count = DEGREE + 1024
        drawn = np.frombuffer(seed.digest(8 * count), "<u8") & (2 ** prime.bit_length() - 1)
        kept = drawn[drawn < prime]
        if len(kept) < DEGREE:  # primes lie just below a power of two
            raise ConfigError(f"{PARAMETERS}: a prime is too far below a power of two")
        parts.append(kept[:DEGREE])
    return np.concatenate(parts)


def _times(a: np.ndarray, b: np.ndarray, moduli: Sequence[int]) -> np.ndarray:
    """a b modulo the primes, which are below 2^57: a float says the quotient but for a few."""
    prime = np.repeat(np.array(moduli, dtype=np.uint64), DEGREE)
    quotient = (a.astype(np.float64) * b.astype(np.float64) / prime).astype(np.uint64)
    rest = (a * b - quotient * prime).view(np.int64)  # wraps around twice alike
    product: np.ndarray = np.mod(rest, prime.view(np.int64)).astype(np.uint64)
    return product


def _less(a: np.ndarray, b: np.ndarray, moduli: Sequence[int]) -> np.ndarray:
    prime = np.repeat(np.array(moduli, dtype=np.uint64), DEGREE)
    difference: np.ndarray = (a + prime - b) % prime
    return difference


# --- The owner ----------------------------------------------------------------------------------


class Owner:
    """A key pair, which encrypts targets and decrypts answers.

    Args:
        secret: of one that was kept, as ``secret`` gives it; None: a new one.

    Raises:
        MessageError: a secret that is none.
    """

    def __init__(self, secret: np.ndarray | None = None) -> None:
        ring = self._ring = _ring()
        if secret is None:
            keys = ring.seal.KeyGenerator(ring.context)
        else:
            keys = ring.seal.KeyGenerator(ring.context, ring.secret_key(secret))
        self._keys, self._secret = keys, keys.secret_key()
        self._s = _coefficients(self._secret.to_string(), _KEY)
        self._encryptor = ring.seal.Encryptor(ring.context, keys.create_public_key(), self._secret)
        self._decryptor = ring.seal.Decryptor(ring.context, self._secret)

    @property
    def secret(self) -> np.ndarray:
        """(KEY_COEFFICIENTS,) int64 that decrypt: for the owner's own site, and nobody else."""
        return self._s.astype(np.int64)

    def public_key(self, nonce: bytes) -> np.ndarray:
        """(KEY_WIRE,) its half that travels."""
        primes = self._ring.primes
        whole = _coefficients(self._keys.create_public_key().to_string(), 2 * _KEY)
        return _to_wire(self._moved(whole, _uniform(nonce, "key", primes), primes))

    def encrypt(self, targets_LC: np.ndarray, layout: Layout, nonce: bytes) -> np.ndarray:
        """(ciphertexts, TARGET_WIRE) of whole numbers of ``TARGET_BITS``."""
        ring = self._ring
        primes = ring.primes[:3]
        padded = np.zeros(
            (layout.parts * layout.block, layout.groups * layout.classes), dtype=np.int64
        )
        padded[: layout.labelled, : layout.columns] = targets_LC
        wire = np.empty((layout.num_targets, TARGET_WIRE), np.uint8)
        for index in range(layout.num_targets):
            group, part = divmod(index, layout.parts)
            block = padded[
                part * layout.block : (part + 1) * layout.block,
                group * layout.classes : (group + 1) * layout.classes,
            ]
            slots = np.zeros(DEGREE, dtype=np.int64)
            used = layout.rows * block.size
            slots[:used] = np.repeat(block.T.reshape(-1), layout.rows)
            made = self._encryptor.encrypt_symmetric(ring.encoder.encode(slots))
            whole = _coefficients(ring.evaluator.transform_to_ntt(made).to_string(), 2 * _TARGET)
            wire[index] = _to_wire(
                self._moved(whole, _uniform(nonce, f"target {index}", primes), primes)
            )
        return wire

    def _moved(self, whole: np.ndarray, random: np.ndarray, moduli: Sequence[int]) -> np.ndarray:
        """The half that decrypts with this random half to what the whole did."""
        half, drawn = np.split(whole, 2)
        prime = np.repeat(np.array(moduli, dtype=np.uint64), DEGREE)
        more = _times(_less(drawn, random, moduli), self._s[: half.size], moduli)
        moved: np.ndarray = (half + more) % prime
        return moved

    def decrypt(self, wire: np.ndarray, layout: Layout, num_rows: int) -> np.ndarray:
        """(R, C) whole numbers, from the (ciphertexts, ANSWER_WIRE) that ``multiply`` gave.

        Raises:
            MessageError: as of ``decrypt_any``, or numbers that no rows within ``ROW_BITS`` give:
                something was altered on its way.
        """
        decrypted = self.decrypt_any(wire, layout, num_rows)
        if not plausible(decrypted).all():
            raise MessageError(
                "an answer decrypts to numbers that no weights give: a ciphertext was altered, or "
                "is of another key"
            )
        return decrypted

    def decrypt_any(self, wire: np.ndarray, layout: Layout, num_rows: int) -> np.ndarray:
        """Decrypted numbers, whatever they are: what raises here needs no key to be seen.

        Raises:
            MessageError: not as many as there should be, or no ciphertexts.
        """
        ring = self._ring
        if wire.shape != (layout.num_answers(num_rows), ANSWER_WIRE):
            raise MessageError(
                f"an answer about {num_rows} rows has {layout.num_answers(num_rows)} ciphertexts "
                f"of {ANSWER_WIRE} bytes, got {tuple(wire.shape)}"
            )
        chunks = -(-num_rows // layout.rows)
        found = np.zeros((chunks * layout.rows, layout.groups * layout.classes), dtype=np.int64)
        for index, each in enumerate(wire):
            chunk, group = divmod(index, layout.groups)
            both = np.concatenate(
                [_from_wire(half, ring.primes[:1], "answer") for half in np.split(each, 2)]
            )
            plain = self._decryptor.decrypt(ring.ciphertext("answer", both))
            used = layout.classes * layout.block * layout.rows
            parts = np.asarray(ring.encoder.decode(plain), dtype=np.int64)[:used]
            sums = parts.reshape(layout.classes, layout.block, layout.rows).sum(axis=1)
            sums = np.mod(sums, ring.plain)
            sums[sums > ring.plain // 2] -= ring.plain
            found[
                chunk * layout.rows : (chunk + 1) * layout.rows,
                group * layout.classes : (group + 1) * layout.classes,
            ] = sums.T
        return found[:num_rows, : layout.columns]


def plausible(found_RC: np.ndarray) -> np.ndarray:
    """(R,) whether weights within ``ROW_BITS`` give such numbers."""
    fits: np.ndarray = (np.abs(found_RC) <= 2 ** (TARGET_BITS + ROW_BITS)).all(axis=1)
    return fits


# --- The partner --------------------------------------------------------------------------------


class Encrypted:
    """Targets as a partner has them, checked before any work.

    Args:
        layout: how they lie in slots.
        key: (KEY_WIRE,) the owner's public key.
        targets: (ciphertexts, TARGET_WIRE).
        nonce: what the random halves are expanded from.

    Raises:
        MessageError: sizes of others, or coefficients that are none.
    """

    def __init__(self, layout: Layout, key: np.ndarray, targets: np.ndarray, nonce: bytes) -> None:
        if key.shape != (KEY_WIRE,) or targets.shape != (layout.num_targets, TARGET_WIRE):
            raise MessageError(
                f"a key has {KEY_WIRE} bytes and targets {layout.num_targets} ciphertexts of "
                f"{TARGET_WIRE}, got {tuple(key.shape)} and {tuple(targets.shape)}"
            )
        if len(nonce) != NONCE_BYTES:
            raise MessageError(f"a nonce has {NONCE_BYTES} bytes, got {len(nonce)}")
        ring = self._ring = _ring()
        self.layout, self._wire = layout, (layout, key, targets, nonce)
        self._token = secrets.token_bytes(NONCE_BYTES)
        primes = ring.primes
        halves = _from_wire(key, primes, "public key"), _uniform(nonce, "key", primes)
        public = ring.context.from_public_str(
            ring.heads["key"] + np.concatenate(halves).astype("<u8").tobytes()
        )
        self._encryptor = ring.seal.Encryptor(ring.context, public)
        self._targets = []
        for index, each in enumerate(targets):
            first = _from_wire(each, primes[:3], f"target {index}")
            second = _uniform(nonce, f"target {index}", primes[:3])
            self._targets.append(ring.ciphertext("target", np.concatenate([first, second])))

    def __reduce__(self) -> tuple[Any, ...]:
        """How it travels to a process of the party's own cluster, which keeps the last one."""
        return _again, (self._token, self._wire)

    def multiply(
        self,
        weights_of: Callable[[slice], np.ndarray],
        num_rows: int,
        blurs_of: Callable[[slice], np.ndarray],
    ) -> np.ndarray:
        """(ciphertexts, ANSWER_WIRE) of M t; of many rows on the party's own cluster.

        Args:
            weights_of: rows -> (rows, L) whole numbers; sums of their sizes stay within
                ``ROW_BITS``.
            num_rows: R.
            blurs_of: rows -> (rows, columns) whole numbers that are added to what is answered.
        """
        size = self.layout.rows * max(1, _PRODUCTS // self.layout.parts)
        parts = [slice(at, min(at + size, num_rows)) for at in range(0, num_rows, size)]
        given = ((weights_of(part).astype(np.int32), blurs_of(part)) for part in parts)
        tasks = current() if len(parts) > 1 else LOCAL
        return np.concatenate([*tasks.map(self._answers, given)])

    def _answers(self, weights_and_noise: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """(ciphertexts, ANSWER_WIRE) of (rows, L) weights and the (rows, columns) noise on them."""
        ring, layout = self._ring, self.layout
        evaluator = ring.evaluator
        answers = []
        for start in range(0, len(weights_and_noise[0]), layout.rows):
            some_RL, some_RC = (each[start : start + layout.rows] for each in weights_and_noise)
            weights = np.zeros((layout.rows, layout.parts * layout.block), dtype=np.int64)
            weights[: len(some_RL), : layout.labelled] = some_RL
            noise = np.zeros((layout.rows, layout.groups * layout.classes), dtype=np.int64)
            noise[: len(some_RC), : layout.columns] = some_RC
            sums: list[Any] = [None] * layout.groups
            for part in range(layout.parts):
                block = weights[:, part * layout.block : (part + 1) * layout.block]
                slots = np.zeros(DEGREE, dtype=np.int64)
                tiled = np.tile(block.T.reshape(-1), layout.classes)
                slots[: tiled.size] = tiled
                plain = ring.encoder.encode(slots)
                if plain.is_zero():  # SEAL multiplies by none
                    continue
                evaluator.transform_to_ntt_inplace(plain, ring.first)
                for group in range(layout.groups):
                    product = evaluator.multiply_plain(
                        self._targets[group * layout.parts + part], plain
                    )
                    if sums[group] is None:
                        sums[group] = product
                    else:
                        evaluator.add_inplace(sums[group], product)
            for group, total in enumerate(sums):
                local_noise = noise[:, group * layout.classes : (group + 1) * layout.classes]
                answers.append(self._sealed(total, local_noise))
        return np.stack(answers)

    def _sealed(self, total: Any, noise_RC: np.ndarray) -> np.ndarray:
        """What is sent: masked, made fresh, and its noise flooded."""
        ring, layout = self._ring, self.layout
        evaluator = ring.evaluator
        fresh = self._encryptor.encrypt_zero(ring.first)
        if total is not None:
            evaluator.add_inplace(fresh, evaluator.transform_from_ntt(total))
        masks = _below(ring.plain, DEGREE)
        used = layout.classes * layout.block * layout.rows
        blocks = masks[:used].reshape(layout.classes, layout.block, layout.rows)
        blocks[:, 0] = np.mod(noise_RC.T - blocks[:, 1:].sum(axis=1), ring.plain)
        masks[masks > ring.plain // 2] -= ring.plain
        evaluator.add_plain_inplace(fresh, ring.encoder.encode(masks))
        answer = evaluator.mod_switch_to(fresh, ring.last)
        halves = np.split(_coefficients(answer.to_string(), 2 * _ANSWER), 2)
        return np.concatenate([_to_wire(half) for half in halves])


#: What came last to this process of a cluster, by a token of the party's own: no owner chose it.
_last: dict[bytes, Encrypted] = {}


def _again(token: bytes, wire: tuple[Layout, np.ndarray, np.ndarray, bytes]) -> Encrypted:
    if token not in _last:
        _last.clear()
        _last[token] = Encrypted(*wire)
    return _last[token]


def _below(most: int, count: int) -> np.ndarray:
    """Uniform whole numbers below ``most``, from the system."""
    values = np.empty(0, dtype=np.int64)
    mask = 2 ** most.bit_length() - 1
    while len(values) < count:
        drawn = np.frombuffer(secrets.token_bytes(8 * 2 * count), "<u8") & np.uint64(mask)
        values = np.concatenate([values, drawn[drawn < most].astype(np.int64)])
    return values[:count].copy()


# --- Whole numbers -------------------------------------------------------------------------------


def whole_targets(targets_LC: np.ndarray) -> tuple[np.ndarray, float]:
    """Whole numbers of ``TARGET_BITS``, and what one of them stands for."""
    largest = float(np.abs(targets_LC).max(initial=0.0)) or 1.0
    unit = largest / 2**TARGET_BITS
    return np.rint(targets_LC / unit).astype(np.int64), unit


def exponent_of(largest_row: float) -> int:
    """The power of two that M is multiplied by, so that no row's sizes sum to more than
    ``ROW_BITS``."""
    if not largest_row > 0:
        return 0
    return math.floor(ROW_BITS - math.log2(largest_row)) - 1
