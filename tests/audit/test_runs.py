"""Each method's messages are read and attacked, in small runs of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import pytest

from dovetail.audit.attack import Settings
from dovetail.audit.attacks import labels, shadows
from dovetail.audit.defence_search import BEST_ALONE, recommend, try_defences
from dovetail.audit.run import Audit, audit
from dovetail.audit.verdict import worst_of
from dovetail.errors import ConfigError
from dovetail.methods import baselines
from dovetail.methods.apfed import steering
from dovetail.methods.base import Points, Progress
from dovetail.methods.facets.defences import Defence
from dovetail.report.audit import defences, defences_svg
from dovetail.runs.runfile import check_run, resolved
from dovetail.settings.privacy import Once, PrivateSteps, Release

pytestmark = pytest.mark.usefixtures("brief_learners", "brief_attacks")

COLUMNS = {
    "kind": "columns",
    "active": "clinic",
    "parties": {"clinic": ["mean *"], "lab": ["worst *"]},
}


def run_of(method: str, partition: dict[str, Any], **sections: Any) -> Any:
    values = {
        "method": method,
        "evaluate_every": 0,
        "data": {"source": "breast-cancer", "test": 0.4, "partition": partition},
        **sections,
    }
    return check_run(values, where="test")


@pytest.fixture
def brief_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shadow models name members more surely, and take much of the time."""
    monkeypatch.setattr(shadows, "SHADOWS", 6)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of known labels make a mean steadier, and take most of an audit's time."""
    monkeypatch.setattr(labels, "DRAWS", {1: 3, 10: 1})


def audited(run: Any) -> Audit:
    return audit(run, (0,), settings=Settings(network=False))


def channels(audited: Audit) -> set[tuple[str, str, str, str]]:
    return {(each.observer, each.owner, each.channel, each.target) for each in audited.findings}


class Told(Progress):
    """Lines and bars of an audit."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bars: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def print(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def points(self, title: str) -> Iterator[Points]:
        self.bars.append(title)
        yield lambda done, total: self.steps.append((done, total))


@pytest.mark.usefixtures("few_draws")
def test_an_audit_shows_one_bar_and_no_line() -> None:
    told = Told()
    run = run_of("tvfl", COLUMNS, apfed={"encoder": [8], "head": [8], "epochs": 1})
    audit(run, (0,), settings=Settings(network=False), talk=told)
    assert (told.lines, told.bars) == ([], ["audit of tvfl, seed 0"])
    assert told.steps == [(done, len(told.steps)) for done in range(1, len(told.steps) + 1)]


@pytest.mark.trained
@pytest.mark.usefixtures("few_draws")
def test_classic_vertical_learning_tells_labels_by_its_gradients():
    apfed = {"encoder": [8], "head": [8], "epochs": 2}
    result = audited(run_of("tvfl", COLUMNS, apfed=apfed))
    assert {
        ("clinic", "lab", "codes", "columns"),
        ("lab", "clinic", "gradients", "labels"),
    } <= channels(result)
    findings = [each for each in result.findings if each.channel == "gradients"]
    assert max(each.score for each in findings) > 0.95


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_the_teacher_of_apfed_d_tells_every_label_by_a_sign():
    distil = {"students": ["linear"], "max_steps": 60, "folds": 2, "copies": 1}
    distil["exchange"] = "gradients"
    run = run_of("apfed-d", COLUMNS, apfed={"distil": distil})
    result = audited(run)
    assert ("clinic", "lab", "codes", "columns") in channels(result)
    (sign,) = [each for each in result.findings if each.channel == "output gradients"]
    assert (sign.observer, sign.owner) == ("lab", "clinic")
    assert sign.score > 0.99
    assert sign.verdict == "high"


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_coordinator_and_owners_of_fedoptimus_are_read():
    owners = {
        "kind": "owners",
        "data_owners": {"clinic": ["mean *"], "lab": ["worst *"]},
        "label_owners": 2,
    }
    fedoptimus = {
        "epochs": 2,
        "bottom": [8],
        "embedding": 4,
        "top": [4],
        "batch_size": 32,
        "selection": {"share": 1.0, "rows": 120, "queries": 60},
    }
    read = channels(audited(run_of("fedoptimus", owners, fedoptimus=fedoptimus)))
    for label_owner in ("label-1", "label-2"):
        assert ("coordinator", label_owner, "gradients", "labels") in read
        assert (label_owner, "the data owners together", "codes", "columns") in read
    assert {each[1] for each in read if each[2:] == ("codes", "columns")} >= {"clinic", "lab"}
    assert ("coordinator", "lab", "distances", "columns") in read
    assert ("lab", "label-1", "gradients", "labels") in read


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_numbers_of_apfed_s_are_attacked_as_their_owner_decrypts_them():
    run = run_of("apfed", COLUMNS, apfed={"distil": {"students": ["linear"]}})
    found = audit(run, (0,), settings=Settings(network=False), malicious=True)
    assert ("lab", "clinic", "ciphertexts", "labels") in channels(found)
    assert {each.verdict for each in found.findings if each.observer == "lab"} == {"none"}
    numbers = [each for each in found.findings if each.channel.endswith("numbers")]
    honest, *steered = numbers
    within, lifted = (
        [each for each in steered if each.variant == f"apfed, steered{limits}"]
        for limits in ("", ", no limits")
    )
    (model,) = [each for each in found.findings if each.channel == "model" and each.owner == "lab"]
    assert (model.observer, model.target, model.verdict) == ("clinic", "columns", "none")
    assert (honest.owner, honest.channel, honest.target) == ("lab", "numbers", "columns")
    assert honest.score > honest.baseline + 0.05
    assert [each.threat.attack.partition(" as ")[0] for each in within] == [
        "its columns", "single rows"
    ]  # fmt: skip
    assert len(within) == len(lifted) == 2  # each is all that a policy gives
    most_within, most_lifted = (max(each.score for each in of) for of in (within, lifted))
    assert most_lifted > max(most_within, honest.score)  # forty-eight numbers of a row, and one
    assert worst_of(lifted) == "high"


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_weights_of_chfl_are_attacked_unless_they_are_summed_in_secret():
    partition = {"kind": "common-unique", "parties": 3, "common": 0.3}
    chfl = {"widths": [8, 8], "rounds": 2, "local_epochs": 1, "batch_size": 16}
    read = channels(audited(run_of("chfl", partition, chfl=chfl)))
    driver = {each[0] for each in read if each[2] == "weights"}
    assert len(driver) == 1
    for target in ("rows", "membership"):
        assert {each[1] for each in read if each[2:] == ("weights", target)} == {
            "party-1", "party-2", "party-3"
        }  # fmt: skip
    secret = channels(audited(run_of("chfl", partition, chfl={**chfl, "secure": True})))
    assert not [each for each in secret if each[2] == "weights"]
    assert [each for each in secret if each[2] == "model"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_weights_of_hyfem_are_attacked():
    blocks = {
        "kind": "blocks",
        "blocks": {"mean": ["mean *"], "worst": ["worst *"]},
        "assignment": [
            {"party": "clinic", "blocks": ["mean", "worst"], "classes": [1, 2], "rows": 0.5},
            {"party": "lab", "blocks": ["mean"], "classes": [1, 2], "rows": 0.5},
        ],
        "disjoint": True,
    }
    hyfem = {"rounds": 2, "local_steps": 2, "widths": [8], "extractors": {"*": [8]}}
    read = channels(audited(run_of("hyfem", blocks, hyfem=hyfem)))
    for target in ("membership", "rows"):
        owners_read = {each[1] for each in read if each[2:] == ("weights", target)}
        assert owners_read == {"clinic", "lab"}
    assert {each[1] for each in read if each[2:] == ("model", "membership")} == {"clinic", "lab"}


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_grid_of_defences_recommends_within_its_limit():
    apfed = {"encoder": [8], "head": [8], "epochs": 2, "steps_per_epoch": 4}
    run = run_of("apfed-c", COLUMNS, apfed=apfed, passive={"encoder": [8]})
    loud = Release(clip=1.0, noise=50.0)
    grid = (Defence("as it is", {}), Defence("noise 50", {"codes": loud}, loud))
    tried = try_defences(run, (0,), defences=grid)
    as_it_is, noised, alone = tried.cells
    assert (alone.name, alone.advantage) == (BEST_ALONE, {})
    drawn = ElementTree.fromstring(defences_svg(tried.to_json()))
    assert [each.text or "" for each in drawn.iter() if (each.text or "").startswith("2  noise 50")]
    assert as_it_is.epsilon is None
    assert as_it_is.advantage["columns from codes"] > noised.advantage["columns from codes"]
    assert noised.epsilon is not None
    assert noised.epsilon > 0
    assert tried.recommended == recommend(tried.cells, "low")
    assert recommend([as_it_is], as_it_is.verdict) == "as it is"
    if as_it_is.verdict != "none":
        assert recommend([as_it_is], "none") is None


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_grid_of_classic_vertical_learning_clips_at_the_run_s_own_lengths():
    run = run_of("tvfl", COLUMNS, apfed={"encoder": [8], "head": [8], "epochs": 3})
    loud = Release(clip=1.0, noise=2.0)
    deafening = Defence("noise 1e12", {}, codes=Release(clip=1.0, noise=1e12))
    grid = (Defence("as it is", {}), deafening, Defence("noise 2", {}, loud, codes=loud))
    tried = try_defences(run, (0,), defences=grid)
    as_it_is, noised, alone = tried.cells
    assert "codes are above" in tried.failed["noise 1e12"]  # the others are tried all the same
    assert as_it_is.advantage["labels from gradients"] > 0.7
    assert noised.advantage["labels from gradients"] < 0.5
    assert as_it_is.advantage["columns from codes"] > noised.advantage["columns from codes"] + 0.2
    assert (as_it_is.epsilon, alone.advantage) == (None, {})
    assert noised.epsilon is not None
    assert 0 < noised.held_out < as_it_is.held_out  # what it learns so is chance
    assert all(0.5 < each.test["accuracy"] <= 1 for each in (as_it_is, alone))


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_grid_of_fedoptimus_noises_embeddings_and_gradients():
    owners = {
        "kind": "owners",
        "data_owners": {"clinic": ["mean *"], "lab": ["worst *"]},
        "label_owners": 2,
    }
    fedoptimus = {"epochs": 3, "bottom": [16], "embedding": 8, "top": [16], "batch_size": 32}
    run = run_of("fedoptimus", owners, fedoptimus=fedoptimus)
    loud = Release(clip=1.0, noise=8.0)
    grid = (
        Defence("as it is", {}),
        Defence("noise 8 on gradients", {}, loud),
        Defence("noise 8 on embeddings", {}, codes=loud),
    )
    as_it_is, gradients, embeddings = try_defences(run, (0,), defences=grid).cells
    assert as_it_is.advantage["labels from gradients"] > 0.9
    assert gradients.advantage["labels from gradients"] < 0.5
    assert embeddings.advantage["labels from gradients"] > 0.5
    advantages = [
        each.advantage["columns from codes"] for each in (as_it_is, gradients, embeddings)
    ]
    assert advantages[2] < min(advantages[:2]) - 0.2
    assert as_it_is.epsilon is None
    assert None not in (gradients.epsilon, embeddings.epsilon)
    assert as_it_is.held_out > 0.8


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_grid_of_chfl_trains_its_weights_with_noise(monkeypatch: pytest.MonkeyPatch):
    quick = {name: baselines.LEARNERS[name] for name in ("linear", "boosting")}
    monkeypatch.setattr(baselines, "LEARNERS", quick)
    partition = {"kind": "common-unique", "parties": 2, "common": 0.3}
    chfl = {"widths": [8], "rounds": 4, "local_epochs": 2, "batch_size": 16, "learning_rate": 0.01}
    grid = (Defence("as it is", {}), Defence("loud", {"private": PrivateSteps(noise=20.0)}))
    tried = try_defences(run_of("chfl", partition, chfl=chfl), (0,), defences=grid)
    as_it_is, loud, alone = tried.cells
    assert as_it_is.advantage.keys() == {"rows from weights", "membership from weights"}
    assert as_it_is.epsilon is None
    assert loud.epsilon is not None
    assert as_it_is.held_out > 0.7
    assert alone.held_out > 0.8
    assert alone.test["accuracy"] > 0.8


@pytest.mark.slow
def test_columns_that_are_released_once_tell_partners_no_label():
    distil = {"students": ["linear"], "max_steps": 40, "folds": 2, "copies": 1}
    run = run_of("apfed-d", COLUMNS, apfed={"distil": distil})
    grid = (
        Defence("label DP", {"label_epsilon": 0.5}),
        Defence("once", {}, once=Once(width=2, noise=0.5)),
    )
    randomised, once, _ = try_defences(run, (0,), defences=grid).cells
    assert "labels from output gradients" in randomised.advantage
    # No gradient: its own encoder, which no label trained, is all that names labels.
    assert once.advantage.keys() == {"columns from codes", "labels from its own encoder"}
    assert once.advantage["labels from its own encoder"] < 0.05
    assert once.epsilon is not None


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_driver_that_sends_codes_all_alike_learns_a_partners_columns_unless_they_are_noised():
    apfed = {"encoder": [8], "head": [8], "epochs": 2, "steps_per_epoch": 4}

    def steered(**passive: Any) -> dict[str, Any]:
        run = run_of("apfed-r", COLUMNS, apfed=apfed, passive={"encoder": [8], **passive})
        audited = audit(run, (0,), settings=Settings(network=False), malicious=True)
        assert "--malicious" not in str(audited.not_tried)
        findings = [each for each in audited.findings if each.variant == "apfed-r, steered"]
        assert {each.observer for each in findings} == {"lab"}  # a site refuses codes all alike
        lifted = [
            each for each in audited.findings if each.variant == "apfed-r, steered, no limits"
        ]
        assert {each.observer for each in lifted} == {"clinic", "lab"}
        return {each.threat.attack: each for each in lifted if each.observer == "clinic"}

    few, bare = steered().values()  # from 20 and 100 known rows
    assert few.score > 0.8
    assert bare.score > 0.9
    assert bare.verdict == "high"
    _, noised = steered(gradients={"clip": 1e-3, "noise": 5.0}).values()
    assert noised.advantage < 0.5 * bare.advantage


@pytest.mark.trained
@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_a_driver_that_steers_an_encoder_reads_its_codes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steering, "_LONG", steering._STEPS)  # without limits it may take longer
    run = run_of("tvfl", COLUMNS, apfed={"encoder": [8], "head": [8], "epochs": 1})
    audited = audit(run, (0,), settings=Settings(network=False), malicious=True)
    steered = [each for each in audited.findings if each.channel == "steered codes"]
    hijacked, lifted = steered
    assert (hijacked.variant, lifted.variant) == ("tvfl, steered", "tvfl, steered, no limits")
    assert hijacked.score > 0.8
    assert lifted.note == "steered with no limit in force"


def test_what_cannot_be_audited_here_is_refused():
    with pytest.raises(ConfigError, match=r"--try is for simulated runs of apfed.* is of 'alone'"):
        try_defences(run_of("alone", COLUMNS), (0,))
    run = run_of("tvfl", COLUMNS)
    with pytest.raises(ConfigError, match="the run has no variant 'alone'"):
        audit(run, (0,), variants=("alone",))


def test_what_was_configured_names_the_settings_of_each_method():
    def set_of(method: str, partition: dict[str, Any], **sections: Any) -> dict[str, str]:
        settings = defences(resolved(run_of(method, partition, **sections), 0))
        return {key: value for key, value in settings.items() if value != "off"}

    codes = {"clip": 1.0, "noise": 2.0}
    lab = {"codes": {"clip": 0.5, "noise": 4.0}}
    sections = {"apfed": {"gradients": codes, "label_epsilon": 2.0}, "passive": {"lab": lab}}
    settings = set_of("tvfl", COLUMNS, **sections)
    assert settings.keys() == {
        "apfed.gradients", "apfed.label_epsilon", "apfed.label_stages", "passive.lab.codes"
    }  # fmt: skip
    assert "noise = 4.0" in settings["passive.lab.codes"]
    owners = {"kind": "owners", "data_owners": {"clinic": ["mean *"]}, "label_owners": 2}
    fedoptimus = {"embeddings": codes, "selection": {"secure": True}}
    settings = set_of("fedoptimus", owners, fedoptimus=fedoptimus)
    assert settings.keys() == {"fedoptimus.embeddings", "fedoptimus.selection.secure"}
    common = {"kind": "common-unique", "parties": 3, "common": 0.3}
    assert set_of("chfl", common, chfl={"private": {"noise": 4.0}}).keys() == {"chfl.private"}
