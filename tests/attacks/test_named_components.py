"""A job of NVFlare names classes: what a Dovetail site instantiates of what somebody else wrote."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.companions.flare.site import CLASSES, loose, prepare_site
from dovetail.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("default")  # NVFlare's own

#: What a job's author might like to have built at a site, with arguments of his own.
NAMED = (
    "subprocess.Popen",
    "os.system",
    "builtins.eval",
    "dovetail.node.site_folder.SiteFolder",
    "dovetail.network.ledger.LedgerFile",
    "dovetail.data.read_table",
    "dovetail.companions.flare.job.own_run",
    "dovetail.companions.flare.job",
    "dovetail.companions.flare.job.DriverOfMine",
    "nvflare.app_common.np.np_model_persistor.NPModelPersistor",
    "nvflare.app_opt.xgboost.histogram_based_v2.csv_data_loader.CSVDataLoader",
)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    for name in ("startup", "local"):
        (tmp_path / "kit" / name).mkdir(parents=True)
    return tmp_path / "kit"


def built(kit: Path, path: str) -> bool:
    """Whether NVFlare's own check lets a component of this class be built at the site."""
    pytest.importorskip("nvflare")
    authorizer = importlib.import_module("nvflare.app_common.widgets.component_path_authorizer")
    error = importlib.import_module("nvflare.apis.fl_exception").UnsafeComponentError

    class Here(authorizer.ComponentPathAuthorizer):  # type: ignore[misc, name-defined]
        def _get_resources_file_path(self, fl_ctx: Any = None, workspace: Any = None) -> str:
            return str(kit / "local" / "resources.json")

        def _add_audit_event_once(self, *_: Any, **__: Any) -> None: ...

    try:
        Here().authorize_component_config({"path": path, "args": {"args": ["true"]}})
    except error:
        return False
    return True


def test_a_site_builds_four_classes_and_no_other(kit: Path) -> None:
    (kit / "local" / "resources.json.default").write_text('{"format_version": 2}')
    prepare_site(kit, {"party": "shop.toml"})
    assert loose(kit) == []
    assert [path for path in CLASSES if not built(kit, path)] == []
    assert [path for path in NAMED if built(kit, path)] == []


@pytest.mark.parametrize(
    ("resources", "why", "is_open"),
    [
        ({"class_allow_list": ["*"]}, r'"\*" of class_allow_list', True),
        (
            {"class_allow_list": [], "class_list_enforcement_mode": "warn"},
            'class_list_enforcement_mode is "warn"',
            True,
        ),
        (
            {"class_allow_list": ["nvflare.app_common.np.np_model_persistor.NPModelPersistor"]},
            "1 class of others",
            False,
        ),
        ({"class_allow_list": ["subprocess"]}, "1 class of others", False),
    ],
)
def test_a_site_that_lets_jobs_name_more_is_told(
    kit: Path, resources: dict[str, Any], why: str, is_open: bool
) -> None:
    """It is NVFlare's setting, and of other jobs; the command says what it comes to."""
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    prepare_site(kit, {"party": "shop.toml"})
    (line,) = loose(kit)
    assert re.search(why, line)
    assert built(kit, "subprocess.Popen") == is_open


def test_resources_that_cannot_be_read_are_named(kit: Path) -> None:
    (kit / "local" / "resources.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="cannot be read as NVFlare's resources"):
        prepare_site(kit, {"party": "shop.toml"})
