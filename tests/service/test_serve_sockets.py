"""The service on real sockets: mutual TLS, and the page that a browser gets."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import ssl
import urllib.error
import urllib.request

import forked
import pytest
from learned import clinic_table, fitted_model
from serving import PATIENCE_S, serving

from dovetail.models.learners.linear import Linear

pytestmark = pytest.mark.network

ROW = {"age": 51.5, "job": "cook", "smoker": True, "admitted": "2024-05-01"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "clinic"
    fitted_model(clinic_table(300), [Linear()]).save(path)
    return path


def ask(address, context=None):
    request = urllib.request.Request(
        f"{address}/predict", json.dumps(ROW).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as reply:
        return json.loads(reply.read())


def test_a_party_with_its_certificate_is_answered_and_nobody_else_is(folder, tmp_path):
    def certificates(out, *names):
        command = ["certificates", *names, "--driver", names[0], "--host", "127.0.0.1"]
        done = forked.command(tmp_path, *command, "--out", out, "-q")
        assert done.code == 0, done.err

    certificates(tmp_path / "ours", "clinic", "shop")
    certificates(tmp_path / "theirs", "clinic", "shop")

    def context_of(party):
        context = ssl.create_default_context(cafile=tmp_path / "ours" / "clinic" / "ca.pem")
        if party is not None:
            context.load_cert_chain(party / f"{party.name}.pem", party / f"{party.name}.key")
        return context

    options = ("--certificates", tmp_path / "ours" / "clinic")
    with serving(folder, tmp_path / "log", *options, anew=True) as (address, _):
        assert address.startswith("https://")
        answer = ask(address, context_of(tmp_path / "ours" / "shop"))
        assert answer["predictions"][0]["prediction"] in ("no", "yes")
        for party in (None, tmp_path / "theirs" / "shop"):
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                ask(address, context_of(party))
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            ask(address.replace("https", "http"))
        assert ask(address, context_of(tmp_path / "ours" / "shop")) == answer
        done = forked.command(
            tmp_path, "certificates", "shop", "--revoke", "--out", tmp_path / "ours", "-q"
        )
        assert done.code == 0, done.err
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            ask(address, context_of(tmp_path / "ours" / "shop"))
        ask(address, context_of(tmp_path / "ours" / "clinic"))
    assert "not answered: the certificate of 'shop'" in (tmp_path / "log").read_text()


def test_connections_that_ask_nothing_keep_nobody_out(folder, tmp_path, monkeypatch):
    """The one that is due for longest makes room; what is announced and does not come has none."""
    announced = b"POST /models/m/predict HTTP/1.1\r\nHost: localhost\r\n"
    announced += b"content-type: text/csv\r\ncontent-length: 9000000\r\n\r\na,b"
    monkeypatch.setattr("dovetail.companions.service.serving._HEAD_S", 60.0)
    with serving(folder, tmp_path / "log", "--max-requests", "16") as (address, _):
        host, port = address.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            for sent in [announced] * 8 + [b"GET /health HTTP/1.1\r\nHo", b""] * 50:
                idle = stack.enter_context(socket.create_connection((host, int(port))))
                idle.sendall(sent)
            with urllib.request.urlopen(f"{address}/health", timeout=PATIENCE_S) as reply:
                assert reply.status == 200
            assert ask(address)["predictions"]
            stalled = stack.enter_context(socket.create_connection((host, int(port))))
            stalled.close()


def test_the_page_asks_what_is_there_and_a_row_of_the_schemas_examples_is_answered(
    folder, tmp_path
):
    """What the page's script does, done by hand: nothing of it comes from elsewhere."""
    with serving(folder, tmp_path / "log") as (address, _):
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
            policy, page = reply.headers["content-security-policy"], reply.read().decode()
        for word in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
            assert word in policy
        assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
        assert "innerHTML" not in page  # a column's name is no markup
        assert 'name="viewport"' in page
        asked = set(re.findall(r'read\("([a-z]+)|"/([a-z]+)"', page))
        assert {one or other for one, other in asked} == {"health", "models", "schema", "predict"}
        for element in set(re.findall(r'at\("(\w+)"\)', page)):
            assert f'id="{element}"' in page
        with urllib.request.urlopen(f"{address}/models/m/schema", timeout=PATIENCE_S) as reply:
            schema = json.loads(reply.read())
        row = {name: each["examples"][0] for name, each in schema["properties"].items()}
        request = urllib.request.Request(
            f"{address}/models/m/predict",
            json.dumps([row]).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            (prediction,) = json.loads(reply.read())["predictions"]
        assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_an_answer(folder, tmp_path, width):
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="a browser is driven by playwright, which is not installed"
    )
    with serving(folder, tmp_path / "log") as address, playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        except playwright.Error as error:
            pytest.skip(f"playwright has no browser here: {error}")
        page = browser.new_page(viewport={"width": width, "height": 900})
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address[0])
        page.locator("#fields input").first.wait_for()
        page.locator("#form button").click()
        page.locator(".bar").first.wait_for()
        assert "ill: " in page.locator("#said").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert problems == []
        browser.close()
