"""Counts of a site (``site.sqlite``) held to its ledger, and made again from it.

Both say what was answered. A store that is deleted, or put back from a backup, lacks runs and
alignments that the ledger has: then nothing is answered until they are counted again. What the
ledger does not say is counted as used up: rows have no more numbers to give, and runs that were
under way are not gone on with.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dovetail import methods
from dovetail.alignment import psi
from dovetail.alignment.limits import DAY_S
from dovetail.errors import ConfigError
from dovetail.methods.base import Algorithm, Site
from dovetail.network.control import Failed
from dovetail.network.ledger import files_of, verify
from dovetail.network.quota import FILE, Quota
from dovetail.node.proposal import split_run

#: Begins an alignment.
_ALIGNS = psi.Begin.wire_name()


@dataclass(frozen=True)
class Answer:
    """A request that the ledger says was answered.

    Attributes:
        driver, run, proposal, message: whose, and which.
        at: seconds since the epoch.
    """

    driver: str
    run: str
    proposal: str
    message: str
    at: float


def answers(ledger: Path, kinds: Collection[str]) -> Iterator[Answer]:
    """Requests of these kinds that were answered with more than a refusal, in order."""
    quoted = [f'"{kind}"' for kind in kinds]
    due: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for path in files_of(ledger) if ledger.exists() else ():
        with path.open(encoding="utf-8") as file:
            for text in file:
                if not text.endswith("\n") or not (due or any(each in text for each in quoted)):
                    continue  # a line is read only if it may be one of these, or answers one
                line = json.loads(text)
                key = line.get("run"), line.get("sequence")
                if line.get("message") in kinds and "from" in line:
                    due[key] = line
                elif "to" in line and (asked := due.pop(key, None)) is not None:
                    if line["message"] == Failed.wire_name():
                        continue
                    run, proposal = split_run(str(asked["run"]))
                    at = datetime.fromisoformat(asked["time"]).timestamp()
                    yield Answer(asked["from"], run, proposal, asked["message"], at)


def check_counts(quota: Quota, ledger: Path, algorithms: Mapping[str, Algorithm]) -> None:
    """Refuse counts that lack what the ledger has.

    Raises:
        ConfigError: how many, since when, and how they are counted again.
    """
    counted = {*quota.read("SELECT driver, run FROM begins")}
    aligned = quota.read("SELECT driver, run, at FROM alignments")
    counted |= {(driver, run) for driver, run, _ in aligned}
    # Of alignments those of the last day are kept.
    oldest = max((at for _, _, at in aligned), default=DAY_S) - DAY_S
    kinds = {_ALIGNS, *(name for each in algorithms.values() for name in each.begins)}
    lacking = [
        each
        for each in answers(ledger, kinds)
        if (each.driver, each.run) not in counted
        and not (each.message == _ALIGNS and each.at < oldest)
    ]
    if lacking:
        since = datetime.fromtimestamp(lacking[0].at).strftime("%Y-%m-%d %H:%M")
        raise ConfigError(
            f"{quota.path} lacks {len(lacking)} runs and alignments that {ledger} has since "
            f"{since}: it was deleted, or is an older copy, and nothing is answered that is not "
            f"counted; put it back, or count anew from the ledger: dovetail ledger "
            f"{ledger.parent} --rebuild"
        )


def rebuild(site: Site, site_folder: Path) -> dict[str, int]:
    """Count again from the ledger; what was counted, by kind.

    The store that was there is kept beside it. States of runs that were under way go: how often
    their samples were asked about is in no ledger.

    Raises:
        ConfigError: no ledger.
        NetworkError: a ledger that is broken.
    """
    ledger = site_folder / "ledger.jsonl"
    if not ledger.exists():
        raise ConfigError(f"there is no {ledger} to count from; name the site's folder")
    verify(ledger, keep=False)
    kinds = {_ALIGNS, *(name for each in site.policy.algorithms.values() for name in each.messages)}
    found = list(answers(ledger, kinds))
    for suffix in ("", "-wal", "-shm"):
        path = site_folder / f"{FILE}{suffix}"
        if path.exists():
            path.replace(site_folder / f"{FILE}.before{suffix}")
    quota, numbers = Quota(site_folder), Counter[str]()
    messages: dict[str, Counter[str]] = {}
    few = {name for each in site.policy.algorithms.values() for name in each.few}
    begins = {name for each in site.policy.algorithms.values() for name in each.begins}
    counted = Counter[str]()
    for each in found:
        messages.setdefault(each.driver, Counter())[each.message] += 1
        algorithm = each.message.partition(".")[0]
        if each.message in begins:
            numbers[each.driver] += 1
            row = (each.driver, each.run, algorithm, numbers[each.driver], each.at, False, "")
            quota.write("INSERT INTO begins VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
            counted["runs"] += 1
        if each.message == _ALIGNS:
            ids = site.max_ids  # as many as one may have: the ledger has no number
            aligned = (each.driver, each.at, each.run, each.driver, "intersection", ids)
            quota.write("INSERT INTO alignments VALUES (?, ?, ?, ?, ?, ?, NULL, 0)", *aligned)
            counted["alignments"] += 1
        if each.message in few:
            answered = (each.driver, each.run, each.message)
            quota.write(
                "INSERT INTO answers VALUES (?, ?, ?, 1, '') "
                "ON CONFLICT DO UPDATE SET times = times + 1",
                *answered,
            )
            counted["answers"] += 1
        if each.proposal:
            variant = ([*each.run.split("/"), ""])[1]
            time = datetime.fromtimestamp(each.at).strftime("%Y-%m-%dT%H:%M:%SZ")
            agreed = (each.proposal, time, each.driver, each.run, variant, "", "")
            if not quota.read("SELECT 1 FROM agreed WHERE run = ?", each.run):
                quota.write("INSERT INTO agreed VALUES (?, ?, ?, ?, ?, ?, ?)", *agreed)
    for driver, of_driver in messages.items():
        for method in methods.every().values():
            method.proposed.use_up(site, quota, driver, of_driver)
    shutil.rmtree(site_folder / "checkpoints", ignore_errors=True)
    return dict(counted)
