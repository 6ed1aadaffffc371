"""A web page of somebody else's, open in a browser on the machine that serves a model."""

import contextlib
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest
from learned import clinic_table, fitted_model
from serving import PATIENCE_S, serving

from dovetail.models.learners.linear import Linear

DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(
        DRIVER is None, reason="no chromedriver here (Debian: apt install chromium-driver)"
    ),
]

ROW = {"age": 51.5, "job": "cook", "smoker": True, "admitted": "2024-05-01"}

#: All that a page may send without asking first, and what it must ask for.
ASK = """
const [address, row, done] = arguments;
const rows = JSON.stringify({rows: [row]});
const asked = [
  ["no type", {method: "POST", mode: "no-cors", body: new Blob([rows])}],
  ["text", {method: "POST", mode: "no-cors", body: rows}],
  ["form", {method: "POST", mode: "no-cors", body: new URLSearchParams({rows})}],
  ["json", {method: "POST", body: rows, headers: {"content-type": "application/json"}}],
];
(async () => {
  const said = {};
  for (const [name, options] of asked) {
    try {
      const reply = await fetch(address + "/predict", options);
      said[name] = reply.type + " " + reply.status + " " + (await reply.text()).slice(0, 200);
    } catch (error) { said[name] = String(error); }
  }
  for (const page of ["/schema", "/metrics", "/models", "/health"]) {
    try { said[page] = await (await fetch(address + page)).text(); }
    catch (error) { said[page] = String(error); }
  }
  said.beacon = String(navigator.sendBeacon(address + "/predict", new Blob([rows])));
  done(said);
})();
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    fitted_model(clinic_table(300), [Linear()]).save(folder / "clinic")
    with serving(folder / "clinic", folder / "log") as (address, _):
        yield address


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Opens a page and runs a script in it; what the script gives to ``done``."""
    folder = tmp_path_factory.mktemp("browser")
    log = folder / "log"
    with log.open("w") as out:
        driver = subprocess.Popen([DRIVER, "--port=0"], stdout=out, stderr=out)
    try:
        until = time.monotonic() + PATIENCE_S
        while not (started := re.search(r"started successfully on port (\d+)", log.read_text())):
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        base = f"http://127.0.0.1:{started[1]}"

        def ask(path, **body):
            request = urllib.request.Request(
                base + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return json.loads(reply.read())["value"]

        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'user'}",
        ]
        options = {"goog:chromeOptions": {"args": flags}}
        session = "/session/" + ask("/session", capabilities={"alwaysMatch": options})["sessionId"]

        def browse(url, script, *arguments):
            ask(f"{session}/url", url=url)
            return ask(f"{session}/execute/async", script=script, args=list(arguments))

        try:
            yield browse
        finally:
            closing = urllib.request.Request(base + session, method="DELETE")
            urllib.request.urlopen(closing, timeout=PATIENCE_S).close()
    finally:
        driver.terminate()
        driver.wait()


@pytest.fixture(scope="module")
def elsewhere():
    """A page at another port: of the same site by the name 127.0.0.1, of another as localhost."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><title>elsewhere</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def rows_answered(address):
    with contextlib.closing(urllib.request.urlopen(f"{address}/metrics", timeout=60)) as reply:
        metric = re.search(r'dovetail_rows_total{model="m"} ([\d.]+)', reply.read().decode())
    return float(metric[1]) if metric else 0.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_from_elsewhere_asks_nothing_and_reads_nothing(address, browse, elsewhere, host):
    before = rows_answered(address)
    results = browse(f"http://{host}:{elsewhere}/", ASK, address, ROW)
    for name in ("no type", "text", "form"):
        assert results[name].startswith("opaque"), results  # sent, and its answer is not to be read
    for name in ("json", "/schema", "/metrics", "/models", "/health"):
        assert results[name] == "TypeError: Failed to fetch"
    assert results["beacon"] == "true"
    time.sleep(0.5)
    assert rows_answered(address) == before


def test_the_services_own_page_is_answered_in_a_browser(address, browse):
    before = rows_answered(address)
    results = browse(f"{address}/", ASK, address, ROW)
    assert results["json"].startswith("basic 200 "), results
    assert "415" in results["no type"]
    assert rows_answered(address) == before + 1
