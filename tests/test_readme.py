"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from dovetail.methods.validation import validate
from dovetail.node.partysections import party_file
from dovetail.runs.runfile import check_run

ROOT = Path(__file__).parents[1]


def files() -> dict[str, str]:
    """Name -> text of the files that the README has its reader paste."""
    page = (ROOT / "README.md").read_text()
    return dict(re.findall(r"cat > (\S+) <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE))


def test_the_run_file_of_the_readme_is_one() -> None:
    run = check_run(tomllib.loads(files()["digits.toml"]), where="README.md")
    assert run.all_seeds() == (0, 1, 2)


def test_the_files_of_the_bank_and_the_shop_are_what_they_are_called() -> None:
    assert files().keys() == {"bank.toml", "digits.toml", "run.toml", "shop.toml"}
    for name in ("bank", "shop"):
        party = validate(party_file(), tomllib.loads(files()[f"{name}.toml"]), where="README.md")
        assert party.party.name == name
    run = check_run(tomllib.loads(files()["run.toml"]), where="README.md")
    assert run.engine.kind == "stream"


def test_every_link_of_the_pages_leads_somewhere() -> None:
    results = (ROOT / "benchmarks" / "results" / "bench").glob("*.md")
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md"), *results]
    targets = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text())
        if "://" not in target
    ]
    assert len(targets) > 100
    for page, target in targets:
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
