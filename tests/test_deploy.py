"""What examples/deploy ships is valid by the checkers of its formats.

No container is built or run here: the checkers read the files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from dovetail import __version__
from dovetail.cli.main import app

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
CHART, RELAY = (DEPLOY / "helm" / name for name in ("dovetail-party", "dovetail-relay"))


def rendered(template: Path) -> Any:
    """A template of the chart with its default values; it uses plain values alone."""
    values = yaml.safe_load((template.parents[1] / "values.yaml").read_text())
    known = {f".Values.{key}": str(value) for key, value in values.items()}
    known[".Release.Name"] = "shop"
    text = re.sub(r"{{ (\S+) }}", lambda matched: known[matched[1]], template.read_text())
    return yaml.safe_load(text)


def words_of(command: str, words: list[str]) -> None:
    """Parses the words as the command does; they name options that there are."""
    group = get_command(app)
    command_found = group.get_command(None, command)  # type: ignore[attr-defined]
    command_found.make_context(command, words, resilient_parsing=False)


@pytest.mark.parametrize(
    "template",
    sorted(DEPLOY.glob("helm/*/templates/*.yaml")),
    ids=lambda path: f"{path.parts[-3]}-{path.name}",
)
def test_templates_are_valid_kubernetes(template: Path) -> None:
    kubernetes_validate.validate(rendered(template), "1.29", strict=True)


def test_a_template_with_a_mistake_is_found() -> None:
    broken = rendered(CHART / "templates" / "statefulset.yaml")
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.29", strict=True)


def test_a_party_dials_out_and_nobody_dials_in_but_probes() -> None:
    policy = rendered(CHART / "templates" / "networkpolicy.yaml")["spec"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [9100]
    assert [port["port"] for port in policy["egress"][0]["ports"]] == [7443]


def test_a_relay_is_reached_for_letters_and_calls_nobody() -> None:
    policy = rendered(RELAY / "templates" / "networkpolicy.yaml")["spec"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [8443, 9100]
    assert policy["egress"] == []
    chart = rendered(RELAY / "templates" / "statefulset.yaml")
    assert "--port=8443" in chart["spec"]["template"]["spec"]["containers"][0]["args"]


def test_containers_run_commands_that_there_are() -> None:
    for folder in (CHART, RELAY):
        chart = rendered(folder / "templates" / "statefulset.yaml")
        container = chart["spec"]["template"]["spec"]["containers"][0]
        words_of(container["args"][0], container["args"][1:])
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services.keys() == {"bank", "shop", "relay"}
    for service in services.values():
        words_of(service["command"][0], service["command"][1:])
        assert service["read_only"] is True
        assert service["user"] == "10001"


@pytest.mark.parametrize("folder", [CHART, RELAY], ids=lambda path: path.name)
def test_the_charts_are_of_this_version(folder: Path) -> None:
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    image = yaml.safe_load((folder / "values.yaml").read_text())["image"]
    assert image.endswith(f":{__version__}")


def test_the_dockerfile_follows_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint has no wheel for this system")
    done = subprocess.run(
        [hadolint, "--ignore", "DL3042", DEPLOY / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("", 0)
    assert os.access(hadolint, os.X_OK)
