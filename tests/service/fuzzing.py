"""Malformed requests to a service, drawn at random; by hand against one that runs:

python tests/service/fuzzing.py http://127.0.0.1:8000 20000 PID
"""

import asyncio
import json
import random
import sys
from collections import Counter

import httpx

_ROW = {"age": 51.5, "job": "cook", "smoker": True, "admitted": "2024-05-01"}
_KINDS = (
    "application/json",
    "text/csv",
    "application/vnd.apache.parquet",
    "application/xml",
    "multipart/form-data",
    "",
    "application/json; charset=\x7f",
)
_VALUES = (
    "x",
    "",
    "1e999",
    "9" * 400,
    10**400,
    -(10**18),
    1e308,
    True,
    [],
    [1, 2],
    {},
    {"a": 1},
    "\x00",
    "💣" * 50,
    "2024-99-99",
    "0001-01-01T00:00:00+23:59",
    "../../etc/passwd",
    "'; DROP TABLE data; --",
)


def _cell(rng):
    return rng.choice(_VALUES)


def _json(rng):
    draw = rng.random()
    if draw < 0.35:
        row = dict(_ROW)
        row[rng.choice([*_ROW, "else"])] = _cell(rng)
        if rng.random() < 0.3:
            del row[rng.choice([*row])]
        return json.dumps([row, row] if rng.random() < 0.5 else {"rows": [row]}).encode()
    if draw < 0.45:
        return json.dumps(_cell(rng)).encode()
    if draw < 0.55:
        deep = rng.choice([5, 500, 20_000])
        return b"[" * deep + b"]" * rng.choice([0, deep])
    if draw < 0.65:
        return json.dumps([_ROW] * rng.choice([0, 300])).encode()
    whole = bytearray(json.dumps([_ROW]).encode())
    for _ in range(rng.randint(1, 4)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole[: rng.randint(0, len(whole))])


def _csv(rng):
    draw = rng.random()
    if draw < 0.3:
        return b"age,job,smoker,admitted\n" + rng.choice(
            [
                b"",
                b"x,cook,true,2024-01-01\n",
                b"1,2\n",
                b'"',
                b"\xff\xfe,,,\n",
                b"1,astro,true,2024-01-01\n",
            ]
        )
    if draw < 0.5:
        return rng.choice([b"age,age\n1,2\n", b"\n\n\n", b",,,\n,,,\n", b"age\n" + b"1\n" * 300])
    return bytes(rng.randrange(256) for _ in range(rng.randint(1, 200)))


def _parquet(rng):
    middle = bytes(rng.randrange(256) for _ in range(rng.randint(0, 100)))
    return b"PAR1" + middle + rng.choice([b"PAR1", b"", b"\xff\xff\xff\x7fPAR1"])


def malformed(rng):
    """One request: method, path, headers, body."""
    kind = rng.choice(_KINDS) if rng.random() < 0.2 else _KINDS[0]
    make = {"text/csv": _csv, "application/vnd.apache.parquet": _parquet}.get(kind, _json)
    path = "/predict"
    method = "POST"
    draw = rng.random()
    if draw < 0.05:
        method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
    elif draw < 0.1:
        path = rng.choice(
            ["/models/nobody/predict", "/models/../predict", "/" + "a" * 3000, "/%00", "/predict/"]
        )
    elif draw < 0.15:
        path = "/predict?" + rng.choice(["model=%F0%9F", "model=x", "partial=2", "allow_unseen=[]"])
    headers = {"content-type": kind.encode("latin-1")} if kind else {}
    return method, path, headers, make(rng)


def judged(reply):
    """What is wrong with an answer; None where nothing is."""
    if "Traceback" in reply.text:
        return "a traceback"
    if reply.status_code == 200:
        return None  # a body that was spoilt into another good one
    if not 400 <= reply.status_code < 500:
        return f"status {reply.status_code}"
    try:
        error = reply.json()["error"]
    except (ValueError, KeyError):
        return "no sentence"
    return None if len(error) > 10 else "no sentence"


async def fire(client, count, *, seed=0, at_once=16):
    """Statuses of so many malformed requests, and what was wrong with any answer."""
    rng = random.Random(seed)
    statuses, wrong = Counter(), []
    for start in range(0, count, at_once):
        drawn = [malformed(rng) for _ in range(min(at_once, count - start))]
        replies = await asyncio.gather(
            *(
                client.request(method, path, headers=headers, content=body)
                for method, path, headers, body in drawn
            )
        )
        for asked, reply in zip(drawn, replies, strict=True):
            statuses[reply.status_code] += 1
            complaint = judged(reply)
            if complaint:
                wrong.append((complaint, asked, reply.text[:300]))
    return statuses, wrong


async def _main(url, count, pid):
    import psutil

    process = psutil.Process(pid)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for part in range(10):
            statuses, wrong = await fire(client, count // 10, seed=part)
            print(f"{part}: {dict(statuses)}, {process.memory_info().rss >> 20} MiB", wrong[:3])


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
