"""A whole federation driven from two rooms in a real browser: proposal, signature, run, report."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, Process, free_port

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here (Debian: apt install chromium)"),
]

#: Where screenshots are kept, if somebody asks for them: the pages of docs/.
PICTURES = os.environ.get("DOVETAIL_PICTURES")

RUN = """
method = "apfed-mixed"
parties = ["clinic.toml"]
baselines = ["alone"]
test = 0.25
evaluate_every = 5

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab", "registry"]

[apfed]
encoder = [8]
head = [8]
epochs = 120
learning_rate = 0.05
"""

SIGNED = '[policy]\ndrivers = ["clinic"]\napproval = "signed"'

#: Milliseconds that a page has: a run trains beside it.
PATIENCE = 120_000


@pytest.fixture
def federation(
    deal: Callable[..., Any], tmp_path: Path, dovetail: Callable[..., Any]
) -> Iterator[Federation]:
    """A clinic that drives a lab and a registry, which answer only what they have signed."""
    dealt = deal()
    for name in ("lab.toml", "registry.toml"):
        dealt.change(name, ('id = "person"\n', f'id = "person"\n\n{SIGNED}\n'))
    port = free_port()
    (tmp_path / "run.toml").write_text(RUN.format(port=port))
    made = dovetail("certificates", "clinic", "lab", "registry", "--driver", "clinic")
    assert made.code == 0, made.err
    with Federation(tmp_path, port).ending() as federation:
        yield federation


@pytest.fixture
def browser() -> Iterator[Any]:
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        yield browser
        browser.close()


def opened(browser: Any, room: Process) -> Any:
    """A page at the address that a room has printed; nothing in it may fail or be cut."""
    room.wait_for("token=")
    (address,) = re.findall(r"http://\S+token=\S+", room.printed())
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "console", lambda line: page.problems.append(line.text) if line.type == "error" else None
    )
    page.goto(address)
    return page


def looked_at(page: Any, name: str) -> None:
    """Wide and narrow: nothing stands beyond the page's edge."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (name, width, wide)
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/{name}-{width}.png")
    page.set_viewport_size({"width": 1280, "height": 900})


def reached(page: Any, words: str) -> None:
    """Go to what is called so by the keyboard alone."""
    for _ in range(200):
        page.keyboard.press("Tab")
        at = "document.activeElement.innerText || document.activeElement.name || ''"
        if page.evaluate(at).strip() == words:
            return
    raise AssertionError(f"no Tab leads to {words!r}")


def test_a_federation_from_its_rooms(
    federation: Federation, dovetail: Callable[..., Any], tmp_path: Path, browser: Any
) -> None:
    asked = dovetail("propose", "run.toml", "--purpose", "Which patients come back?")
    assert asked.code == 0, asked.err
    assert dovetail("review", "proposal.json", "--party", "registry.toml", "--yes").code == 0
    address = f"127.0.0.1:{federation.port}"
    lab = opened(browser, federation.start("room", "lab.toml", "--driver", address, "--port", 0))

    # The lab reads what it was sent, and signs it by the keyboard alone.
    sync_api.expect(lab.locator("h1")).to_have_text("lab")
    lab.locator("input[type=file]").set_input_files(tmp_path / "proposal.json")
    lab.get_by_role("button", name="Read it").click()
    sync_api.expect(lab.locator("main")).to_contain_text("Which patients come back?")
    sync_api.expect(lab.locator("main")).to_contain_text("Your policy and your table go with it.")
    looked_at(lab, "room-proposal")
    reached(lab, "Sign")
    lab.keyboard.press("Enter")
    sync_api.expect(lab.locator("main")).to_contain_text("You have signed it")
    with lab.expect_download() as saved:
        lab.get_by_text("Your answer, to be sent to clinic").click()
    saved.value.save_as(tmp_path / "proposal.lab.json")

    # It answers drivers from its room; the registry does by a command.
    lab.goto(lab.url.split("/proposals")[0] + "/")
    lab.get_by_role("button", name="Answer drivers").click()
    sync_api.expect(lab.locator("main")).to_contain_text("On.")
    federation.join("registry")

    # The clinic trains from its own, stops, and goes on; nobody reloads a page.
    runs = opened(browser, federation.start("room", "out", "--port", 0))
    sync_api.expect(runs.locator("main")).to_contain_text("None yet.")
    runs.locator("select[name=proposal]").select_option("proposal.json")
    runs.locator("input[name=name]").fill("first")
    runs.get_by_role("button", name="Train").click()
    sync_api.expect(runs.locator("tbody")).to_contain_text(
        re.compile(r"seed 0, apfed-mixed: epoch \d")
    )
    looked_at(runs, "room-runs")
    runs.get_by_role("button", name="stop first").click()
    sync_api.expect(runs.locator("tbody")).to_contain_text("stopped")
    runs.locator("select[name=proposal]").select_option("proposal.json")
    runs.locator("input[name=name]").fill("first")
    runs.locator("input[name=resume]").check()
    runs.get_by_role("button", name="Train").click()
    sync_api.expect(runs.locator("tbody")).to_contain_text("done")

    # What came of it, on both sides.
    runs.get_by_role("link", name="first").click()
    frame = runs.frame_locator("iframe")
    sync_api.expect(frame.locator("h1")).to_contain_text("first")
    looked_at(runs, "room-run")
    runs.get_by_role("link", name="models/clinic", exact=True).click()
    sync_api.expect(runs.locator("main")).to_contain_text("Rows, as CSV")
    looked_at(runs, "room-model")
    told = lab.locator("section[aria-labelledby=left]")
    sync_api.expect(told.locator("h3")).to_have_text("clinic")
    sync_api.expect(told).to_contain_text("Which patients come back? (until")
    sync_api.expect(told).to_contain_text(re.compile(r"[\d,]+ of your [\d,]+ people"))
    sync_api.expect(told).to_contain_text("our audits rate it: labels, to partners")
    looked_at(lab, "room-party")
    lab.get_by_role("button", name="Stop answering").click()
    sync_api.expect(lab.locator("main")).to_contain_text("Off.")
    assert not lab.problems
    assert not runs.problems
    assert (tmp_path / "out" / "first" / "result.json").exists()
    proved = dovetail("ledger", "verify", "clinic.site", "lab.site")
    assert proved.code == 0, proved.err
