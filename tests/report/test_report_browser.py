"""The report's page in a real browser: nothing is cut, nothing overlaps, dark is dark.

A copy of the page gets a script that measures it, and the browser prints what the script found.
"""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import numpy as np
import pytest
import torch

from dovetail.data import PartyData
from dovetail.data.coverage import Part
from dovetail.report.folder import read_run
from dovetail.report.page import Coverage, html
from dovetail.report.tables import Names

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium here (Debian: apt install chromium)"),
]

MEASURE = """
<script>
const seen = (one) => one.getBoundingClientRect();
const wide = document.documentElement.clientWidth;
const beyond = [...document.querySelectorAll("main *")].filter((one) =>
  !one.closest(".scroll") && !one.closest(".stack thead") && seen(one).width > 0
  && (seen(one).right > wide + 1 || seen(one).left < -1));
const cut = [...document.querySelectorAll(".names span, .name, .n, figcaption")].filter((one) =>
  one.offsetParent && !one.closest(".stack thead") && one.scrollWidth > one.clientWidth + 1);
const scrolled = [...document.querySelectorAll(".scroll")].filter((one) =>
  one.scrollWidth > one.clientWidth + 1);
const overlaps = [];
for (const group of document.querySelectorAll(".names, .y, .x, .dotrow")) {
  const all = [...group.children].filter((one) => seen(one).width > 0).map(seen);
  all.forEach((a, i) => all.slice(i + 1).forEach((b) => {
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
    if (!beside && a.top < b.bottom - 3 && b.top < a.bottom - 3)
      overlaps.push(group.className + ": " + group.textContent.slice(0, 80));
  }));
}
parent.document.getElementById("measured").textContent = JSON.stringify({
  inner: window.innerWidth, client: wide, scroll: document.documentElement.scrollWidth,
  beyond: beyond.map((one) => one.outerHTML.slice(0, 120)),
  cut: cut.map((one) => one.outerHTML.slice(0, 120)),
  scrolled: scrolled.map((one) => one.textContent.trim().slice(0, 80)),
  overlaps: overlaps,
  empty: [...document.querySelectorAll(".plot")].filter((one) =>
    ![...one.querySelectorAll("path[class^=s]")].some((p) => p.getTotalLength() > 50)).length,
  plots: document.querySelectorAll(".plot").length,
  ground: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
});
</script>
"""


def measured(text, folder, *, width, dark=False):
    """What the browser found of this page."""
    opened, _, rest = text.partition('<meta http-equiv="Content-Security-Policy"')
    text = opened + rest.partition(">\n")[2]  # it would stop the script
    path = folder / "page.html"
    inner = escape(text.replace("</main>", "</main>" + MEASURE))
    # In a frame: a window cannot be as narrow as a phone.
    frame = f'<iframe style="width:{width}px;height:2000px;border:0" srcdoc="{inner}"></iframe>'
    path.write_text(f'<!DOCTYPE html><pre id="measured"></pre>{frame}', encoding="ascii")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1400,2000",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (measured_text,) = re.findall(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(unescape(measured_text))


def write(folder, method, variants, parties, *, seeds=3, rounds=12, value=False):
    """A run folder with every section that a page can have."""
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        path = folder / f"seed-{seed}"
        (path / "models" / parties[0]).mkdir(parents=True)
        (path / "models" / parties[0] / "model.json").write_text("{}")
        settings = f'method = "{method}"\nseed = {seed}\n[data]\nsource = "digits"\n'
        (path / "run.toml").write_text(settings + "[chfl]\nwidths = [512, 256, 128]\n")
        done, lines, ledger = {}, [], []
        for index, variant in enumerate(variants):
            curve = 0.9 - 0.08 * index - 0.5 * np.exp(-np.arange(rounds) / 3)
            curve = curve + rng.normal(size=rounds) / 60
            lines += [
                {"variant": variant, "round": n + 1, "loss": 1 - y, "auc": y, "accuracy": y / 1.1}
                for n, y in enumerate(curve.tolist())
            ]
            entry = {
                p: {"auc": curve[-1], "accuracy": curve[-1] / 1.1, "log_loss": 0.4} for p in parties
            }
            missed = {
                parties[-1]: {"rounds": 2, "of": rounds, "first": "round 3: no answer in time"}
            }
            done[variant] = {"seconds": 12.3, "missed": missed, "scores": {variant: entry}}
        tensor = {"name": "weights_of_the_first_layer", "shape": [512, 256], "dtype": "float32"}
        for party in parties:
            for pair in (("coordinator", party), (party, "coordinator")):
                line = {
                    "variant": method,
                    "from": pair[0],
                    "to": pair[1],
                    "message": "chfl.Weights",
                }
                ledger.append({**line, "tensors": [tensor] * 3, "count": 12, "bytes": 10**6})
        for name, rows in (("metrics", lines), ("ledger", ledger)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (path / f"{name}.jsonl").write_text(text)
        result = {"method": method, "seed": seed, "variants": done}
        (path / "result.json").write_text(json.dumps(result))
    if value:
        each = {
            p: {k: {"mean": 0.01 - n / 90, "std": 0.01} for k in ("mi", "loo", "shapley")}
            for n, p in enumerate(parties)
        }
        written = {"by": "shapley", "metric": "auc", "seeds": [0, 1, 2], "partners": each}
        (folder / "value.json").write_text(json.dumps(written))
    return folder


TITLES = {
    "chfl": "CHFL, predicts alone",
    "chfl-mu0": "CHFL without lateral connections",
    "common": "common columns, FedAvg",
    "local": "each party alone",
    "pooled": "pooled (all blocks and rows in one place)",
    "tvfl-a": "classic vertical, partners gone: average",
}
NAMES = Names(dict.fromkeys(TITLES, "chfl"), {"chfl": TITLES})
PARTIES = ["clinic", "laboratory", "registry", "a-hospital-with-a-rather-long-name", "p5"]


def coverage():
    parts = []
    for n, name in enumerate(PARTIES):
        ids = np.arange(20 * n, 20 * n + 60)
        blocks = {"columns": torch.zeros(60, 7), "images": torch.zeros(60, 3)}
        named = {"columns": tuple("abcdefg"), "images": tuple("xyz")}
        labels = torch.arange(60) % 3 if n < 2 else None
        parts.append(Part(PartyData(name, ids, blocks, labels), named, ("yes", "no", "perhaps")))
    return Coverage(parts)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run with everything, and three side by side."""
    folder = tmp_path_factory.mktemp("runs")
    one = write(folder / "one", "chfl", list(TITLES), PARTIES, value=True)
    two = write(folder / "two", "chfl-mu0", ["chfl-mu0", "local"], PARTIES[:2], seeds=1)
    three = write(folder / "another-run", "common", ["common", "local", "pooled"], PARTIES[:3])
    runs = [read_run(path) for path in (one, two, three)]
    held = {run.name: coverage() for run in runs}
    return {
        "one run": html(runs[:1], NAMES, coverage=held),
        "three runs": html(runs, NAMES, coverage=held),
    }


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["one run", "three runs"])
def test_nothing_is_cut_and_nothing_overlaps(pages, tmp_path, name, width):
    sizes = measured(pages[name], tmp_path, width=width)
    assert sizes["inner"] == width
    assert sizes["scroll"] <= sizes["client"]
    assert sizes["beyond"] == sizes["cut"] == sizes["overlaps"] == []
    assert sizes["plots"] == 2
    assert sizes["empty"] == 0
    assert sizes["scrolled"] == []


def test_light_is_light_and_dark_is_dark(pages, tmp_path):
    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    light = measured(pages["one run"], tmp_path, width=1280)
    dark = measured(pages["one run"], tmp_path, width=1280, dark=True)
    assert brightness(light["ground"]) > 700 > 200 > brightness(light["ink"])
    assert brightness(dark["ink"]) > 650 > 200 > brightness(dark["ground"])


def test_pages_are_small(pages):
    assert max(map(len, pages.values())) < 1.5e6
