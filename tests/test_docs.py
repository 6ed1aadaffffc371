"""docs/ is a site without a dead link, and every page of it can be found."""

from __future__ import annotations

import importlib
import json
import logging
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from dovetail import __version__

ROOT = Path(__file__).parents[1]


def leaves(nav: Any) -> list[str]:
    """The pages of a navigation, nested in any way."""
    if isinstance(nav, str):
        return [nav]
    each = nav.values() if isinstance(nav, dict) else nav
    return [leaf for inner in each for leaf in leaves(inner)]


class Links(HTMLParser):
    """Where a page leads, and the places in it that can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.leads.append(value)
            elif name == "id" and value:
                self.ids.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        build(config)
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert not warnings
    return folder


#: Words of README and docs/ together, by white space: what is said twice is linked instead, and
#: tables of results go to benchmarks/results/bench.
MOST_WORDS = 70_000

#: Words of a method's page: what it does, how it is run, what crosses, what falls short.
MOST_OF_METHOD = {"chfl.md": 1_500, "hyfem.md": 1_500}


def test_the_pages_keep_to_their_words() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert sum(words.values()) <= MOST_WORDS
    assert {name for name, most in MOST_OF_METHOD.items() if words[name] > most} == set()


def test_every_page_is_in_the_navigation() -> None:
    named = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(set(named)) == len(named)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == {*named} - {"SECURITY.md"}


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 12
    dead = []
    for page, links in pages.items():
        for lead in links.leads:
            url = urlsplit(lead)
            if url.scheme:
                continue
            to = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not to.exists() or (url.fragment and url.fragment not in pages[to].ids):
                dead.append(f"{page.relative_to(site)} leads to {lead}")
    assert not dead


@pytest.mark.slow
def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        assert '<script src="http' not in text
        assert not [line for line in text.splitlines() if "<link" in line and "http" in line]


@pytest.mark.slow
def test_each_version_has_its_site_beside_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    publish = importlib.import_module("pages").publish
    for older in ("0.1.0", "0.0.9"):
        (tmp_path / older).mkdir()
        (tmp_path / older / "index.html").write_text("older")
    assert publish(tmp_path) == [__version__, "0.1.0", "0.0.9"]
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [each["version"] for each in listed] == [__version__, "0.1.0", "0.0.9"]
    assert f"{__version__}/index.html" in (tmp_path / "index.html").read_text()
    assert (tmp_path / "0.1.0" / "index.html").read_text() == "older"
    page = (tmp_path / __version__ / "mailbox.html").read_text()
    assert f"Dovetail {__version__}" in page
