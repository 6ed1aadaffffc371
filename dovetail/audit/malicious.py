"""Gains of a peer that breaks the protocol, within a site's default limits and without them.

How it steers is the method's; what it has found out is measured here, by the same inversion of
``attacks/columns.py`` as an honest one's. What stands between the two is what the limits buy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.audit.attack import Settings, attack
from dovetail.audit.attacks import columns, exact
from dovetail.audit.scenes import audited_of
from dovetail.audit.tape import Tape
from dovetail.audit.verdict import Finding, finding
from dovetail.methods.facets.audited import Poisoned, Scene, Steered
from dovetail.methods.limits import NO_LIMITS, Limits
from dovetail.methods.settings.party import PolicySection
from dovetail.methods.training import Training
from dovetail.network.inprocess import overheard


def malicious(
    task: Training, scene: Scene, variant: str, seed: int, settings: Settings | None = None
) -> Iterator[Finding]:
    """Findings of steering in one variant."""
    how, audited = settings or Settings(), audited_of(task.method)
    if audited is None:
        return
    for limits in (Limits.of(PolicySection()), NO_LIMITS):
        lifted = limits == NO_LIMITS
        called = f"{variant}, steered{', no limits' if lifted else ''}"
        for each in audited.steered(task, scene, variant, seed, limits):
            if isinstance(each, Poisoned):
                yield from _poisoned(each, scene, variant, seed, called)
            else:
                yield from _steered(each, scene, called, how, lifted=lifted)


def _steered(
    steered: Steered, scene: Scene, called: str, how: Settings, *, lifted: bool
) -> Iterator[Finding]:
    """How well columns follow from what a driver was told."""
    observer, owner, samples = steered.observer, steered.owner, steered.samples
    observed, target = scene.columns_of(observer, "", samples), scene.columns_of(owner, "", samples)
    if target is None:
        return
    beside = None if observed is None else observed.numpy()
    views = {name: each.numpy() for name, each in steered.views.items()}
    names = scene.parties[owner].columns
    inverted = columns.inversion(
        beside, views, target.numpy(), names, known=steered.known, network=how.network
    )
    found = [] if inverted is None else [(inverted, steered.threat)]
    read = exact.exact(beside, views, target.numpy(), known=steered.known, trees=how.network)
    for what, each in read.items():
        of, given = exact.threat(what, steered.known), steered.threat.given
        attack_name = steered.threat.attack.replace("an inversion", of.attack)
        found.append((each, replace(of, attack=attack_name, given=given)))
    for measured, threat in found:
        yield finding(
            measured, threat, variant=called, observer=observer,
            owner=owner, channel=steered.channel, target="columns",
            note="steered with no limit in force" if lifted
            else "steered within a site's default policy (min_rows, max_uses, max_begins)",
        )  # fmt: skip


def _poisoned(
    poisoned: Poisoned, scene: Scene, variant: str, seed: int, called: str
) -> Iterator[Finding]:
    """Findings of a partner in the run that it steers, and the effect on the model."""
    tape = Tape(scene.reading, scene.num_samples())
    with overheard(tape):
        outcome = poisoned.training.train(variant, seed, lambda *_: None)
    scores = next(iter(outcome.scores.get(variant, {}).values()), {})
    text = ", ".join(
        f"{key} {scores[key]:.3f}" for key in ("accuracy", "auc", "r2") if key in scores
    )
    for each in attack(variant, scene, tape, {}, Settings(network=False)):
        if each.observer == poisoned.observer:
            yield replace(
                each, variant=called, channel=f"codes, {poisoned.name}",
                note=f"a partner that steers, {poisoned.name}: the label owner's model has {text}",
            )  # fmt: skip
