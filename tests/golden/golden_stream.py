"""The golden record's federations with every party in a process of its own, over gRPC with mTLS."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import golden
from federations import Federation, free_port
from golden_cases import FEDERATIONS

#: What numbers a run, an alignment or what was agreed: other digits every time.
NUMBER = re.compile(r"[0-9a-f]{16}")

ENGINE = """
[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = {partners}
{name}
wait_s = 180
grace_s = 3
timeout_s = 120
"""


def run(method: str, folder: Path) -> dict[str, Any]:
    """The record of a federation that certificates, joining parties and a driver have trained."""
    made = FEDERATIONS[method]
    made.write(folder)
    drives = made.driver in made.parties
    partners = [name for name in made.parties if name != made.driver]
    port = free_port()
    engine = ENGINE.format(
        port=port,
        partners=json.dumps(partners),
        name="" if drives else f'name = "{made.driver}"',
    )
    made.write_run(folder / "network.toml", (made.driver,) if drives else (), engine)
    named = (*partners, made.driver, "--driver", made.driver, "--host", "127.0.0.1")
    code, _, err = golden.dovetail(folder, "certificates", *named, "-q")
    assert code == 0, err
    with Federation(folder, port, ("--name", made.driver)).ending() as federation:
        joined = [federation.join(name) for name in partners]
        driver = federation.start("train", "network.toml", "--out", "out")
        assert driver.ended() == 0, driver.printed()
        for each in joined:
            each.signal(signal.SIGTERM)
            assert each.ended() == 0, each.printed()
    return taken(method, folder)


def variant_of(run: str, between: str) -> str:
    """The variant and the seed that a run's name tells."""
    return "/".join(part for part in run.split(between) if not NUMBER.fullmatch(part))


def sent(site_folder: Path) -> list[str]:
    """Kinds of messages in the ledger that a party keeps at home of what left it; sorted."""
    counts: Counter[str] = Counter()
    for line in golden.json_lines(site_folder / "ledger.jsonl"):
        # Where ledgers stand, told when a driver leaves, is no part of what a method sends.
        if "to" in line and not line["message"].startswith("heads."):
            tensors = ", ".join(
                f"{name} {dtype} {shape}" for name, (dtype, shape) in line["tensors"].items()
            )
            variant = variant_of(line["run"], "/")
            size = f"{line['bytes']} bytes each ({tensors})"
            counts[f"{variant or 'align'}: -> {line['to']}: {line['message']}, {size}"] += 1
    return sorted(f"{number} times {text}" for text, number in counts.items())


def taken(method: str, folder: Path) -> dict[str, Any]:
    """What the driver and every party have at their sites."""
    out = folder / "out"
    weights = golden.weights(out / "models")
    site_folders = {site_folder.stem: site_folder for site_folder in sorted(folder.glob("*.site"))}
    for party, site_folder in site_folders.items():
        for kept in sorted((site_folder / "models").glob("*")):
            for file, each in golden.weights(kept).items():
                weights[f"{party}/{variant_of(kept.name, '+')}/{file}"] = each
    return {
        "platform": golden.here(),
        "result": golden.result(out),
        "rounds": golden.rounds(out),
        "weights": weights,
        **golden.messages(out / "ledger.jsonl"),
        "homes": {party: sent(site_folder) for party, site_folder in site_folders.items()},
    }
