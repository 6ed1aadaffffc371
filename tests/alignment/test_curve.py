"""The curve's arithmetic against the RFCs' own numbers, and against its definition."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.alignment import Workers
from dovetail.alignment.curve import to_curve

P = 2**255 - 19
A = 486662
SECRETS = st.binary(min_size=32, max_size=32)


def is_square(x: int) -> bool:
    return pow(x, (P - 1) // 2, P) == 1  # Euler's criterion


def points(*us: int) -> np.ndarray:
    data = b"".join(u.to_bytes(32, "little") for u in us)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)


def test_the_map_to_the_curve_is_that_of_rfc_9380():
    # Appendix J.4.2, curve25519_XMD:SHA-512_ELL2_NU_, msg = ""
    r = 0x608D892B641F0328523802A6603427C26E55E6F27E71A91A478148D45B5093CD
    q_x = 0x51125222DA5E763D97F3C10FCC92EA6860B9CCBBD2EB1285728F566721C1E65B
    assert to_curve([r]) == [q_x]


@pytest.mark.slow
@given(st.lists(st.integers(1, P - 1), max_size=8))
def test_the_map_reaches_the_curve_and_never_its_twist(rs):
    us = to_curve(rs)
    assert len(us) == len(rs)
    for u in us:
        assert is_square(u * (u * u + A * u + 1))


@given(st.integers(1, P - 1))
def test_four_numbers_map_to_each_point(r):
    other = pow(2 * r, -1, P)
    assert len(set(to_curve([r, P - r, other, P - other]))) == 1


def test_an_id_hashes_to_the_same_point_in_every_version():
    # Parties may run different versions: a change here needs a new domain and a new protocol.
    hashed = Workers().hash([b"sanna", b"i42"])
    assert [row.tobytes().hex() for row in hashed] == [
        "398c94e1097fb893a92d4c9f52c253edd038bf45b64ad66356b24757a60dbc0b",
        "96a81124a452dede12b0175c08f791316d4ca7155cd03bde28f78a847558b106",
    ]


def test_multiplication_is_that_of_rfc_7748():
    # Section 5.2, first vector.
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    u = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    product = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    multiplied = Workers().multiply(secret, np.frombuffer(u, dtype=np.uint8).reshape(1, 32))
    assert multiplied.tobytes().hex() == product


@given(SECRETS, SECRETS, st.lists(st.binary(), max_size=4))
def test_the_order_of_two_secrets_does_not_matter(a, b, ids):
    workers = Workers()
    hashed = workers.hash(ids)
    one = workers.multiply(a, workers.multiply(b, hashed))
    other = workers.multiply(b, workers.multiply(a, hashed))
    assert one.tolist() == other.tolist()


@given(SECRETS)
def test_points_of_low_order_become_zero_and_others_do_not(secret):
    multiplied = Workers().multiply(secret, points(0, 9, 1, P - 1))
    assert multiplied.any(axis=1).tolist() == [False, True, False, False]


def test_ids_of_any_length_keep_their_places():
    ids = [b"", b"a", bytes(1000), b"a" * 70, b"b"]
    together = Workers().hash(ids)
    assert together.tolist() == [Workers().hash([id_])[0].tolist() for id_ in ids]


def test_processes_compute_what_one_computes():
    ids = [b"i%d" % number for number in range(3000)]
    secret = bytes(range(32))
    alone = Workers()
    with Workers(2) as pair:
        points_N32 = pair.hash(ids)
        assert (points_N32 == alone.hash(ids)).all()
        assert (pair.multiply(secret, points_N32) == alone.multiply(secret, points_N32)).all()
        assert pair._pool is not None  # it did start them


def test_fewer_than_one_worker_is_an_error():
    with pytest.raises(ValueError, match="expected at least 1 worker, got 0"):
        Workers(0)


def test_a_worker_process_does_not_load_torch():
    script = "import sys, dovetail.alignment.curve; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
