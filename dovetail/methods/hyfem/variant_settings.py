"""HyFEM as a run trains it, beside the baselines of the paper's section 4 and Appendix C.1."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from dovetail import data as dd
from dovetail.data import Input
from dovetail.federated import Driver, Federation, Party
from dovetail.methods import hyfem
from dovetail.methods.base import Run, deciding, weighed
from dovetail.methods.hyfem.sections import run_extractors
from dovetail.methods.labels import OWN_BASELINE
from dovetail.methods.outcome import Observer, Scores, described, inputs_of
from dovetail.methods.settings.hyfem import HyfemSection
from dovetail.methods.training import Separately, Training, Variant, VariantRun
from dovetail.models import Model, Unchanged
from dovetail.network import Checkpoint, Engine
from dovetail.settings.section import narrowed

#: Who drives, in ledgers and among the models.
SERVER = "server"

#: The only party of the baseline "pooled".
POOLED = "pooled"


def variant_config(
    config: hyfem.Settings, variant: str, settings: Mapping[str, Any], *, proximal: float
) -> hyfem.Settings:
    """Settings that a variant is trained with: those of all without what it has none of, and its
    own.

    Raises:
        ValidationError: settings that cannot be.
    """
    mu = settings.get("proximal", proximal)
    config = hyfem.Settings(
        **{**config.model_dump(), **{key: settings[key] for key in settings if key != "proximal"}}
    )
    match variant:
        case "standalone" | "pooled":
            return hyfem.alone(config)
        case "fedavg":
            return hyfem.fedavg(config)
        case "fedprox":
            return hyfem.fedprox(config, mu)
        case "fedper":
            return hyfem.fedper(config)
        case "fedma":
            return hyfem.fedma(config)
        case "lg-fedavg":
            return hyfem.lg_fedavg(config, mu)
    return config


class Apart(Separately[hyfem.Coordinator]):
    """Each party with a coordinator of its own: "standalone".

    Args:
        config: of all of them.
        runs: party -> its coordinator.
    """

    def __init__(self, config: hyfem.Settings, runs: Mapping[str, hyfem.Coordinator]) -> None:
        super().__init__(runs)
        self.config = config

    def reach(self, name: str, network: Federation) -> Federation:
        federation = self.runs[name].federation(network)
        federation.only = (name,)
        return federation

    def together(self, done: Mapping[str, Any], network: Federation) -> hyfem.Round:
        losses = {party: loss for each in done.values() for party, loss in each.losses.items()}
        return hyfem.Round(metrics={"loss": statistics.fmean(losses.values())}, losses=losses)


def party_model(driver: Driver, member: hyfem.Member) -> Model:
    """A party's model so far: its slice of the server's, if that has a classifier."""
    if isinstance(driver, hyfem.Coordinator) and driver.config.classifier != "own":
        model = driver.model_of(member.name)
        inputs: dict[str, Input] = {**model.inputs, **member.inputs}  # with the site's own limits
        return replace(model, inputs=inputs, task=member.task)
    return member.model()


def with_inputs(model: Model, inputs: Mapping[str, Input]) -> Model:
    """A model with how raw columns become its blocks, where it does not know yet."""
    known = {**inputs, **model.inputs}
    return replace(model, inputs={block: known[block] for block in model.shapes if block in known})


def whole_of(
    data: dd.Partitioned, party_data: Mapping[str, hyfem.HyfemData]
) -> hyfem.HyfemData | None:
    """Everybody's rows with all blocks, at the widest party; None where they are in no one place.

    Its test rows are those that the server's model is scored on.
    """
    if not isinstance(data, dd.Blocks):
        return None
    widest = max(
        (local_data.widths for local_data in party_data.values()),
        key=lambda widths: (len(widths), widths),
    )
    return hyfem.HyfemData(data.pooled, data.task, widest, test=data.pooled_test)


def common_blocks(party_data: Mapping[str, hyfem.HyfemData]) -> list[str]:
    """The blocks that every party has."""
    first, *others = party_data.values()
    return [block for block in first.blocks if all(block in other.blocks for other in others)]


class HyfemVariant(Variant):
    """HyFEM, or a baseline of it with rounds."""

    def __init__(self, variant: str) -> None:
        self.silent = variant in ("standalone", "pooled")

    def variant_data(self, training: Training, name: str) -> Mapping[str, hyfem.HyfemData]:
        """Everybody's own; of "pooled" one, and of baselines on common blocks only these."""
        party_data = training.party_data
        if name == "pooled":
            whole = whole_of(training.loaded.data, party_data)
            return {} if whole is None else {POOLED: whole}
        if name in ("fedavg", "fedprox"):
            return {
                party: local_data.only(common_blocks(party_data))
                for party, local_data in party_data.items()
            }
        return party_data

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``Begin`` carries."""
        section = run.settings("hyfem", HyfemSection)
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, hyfem.Settings), run), run)
        made = variant_config(plain, name, given, proximal=section.proximal)
        return made.model_dump(mode="json")

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> hyfem.Settings:
        """A variant's settings."""
        section: HyfemSection = training.settings
        plain = weighed(narrowed(section, hyfem.Settings), training.run)
        if name != "pooled":
            plain = deciding(plain, training.run, judges=training.trying)
        given = section.variants.get(name, {})
        return variant_config(plain, name, given, proximal=section.proximal)

    def driver(
        self,
        training: Training,
        name: str,
        party_data: Mapping[str, Any],
        settings: hyfem.Settings,
        seed: int,
    ) -> Driver:
        """The server; of parties that each train alone, one for each."""
        data = training.loaded.data
        extractors = run_extractors(training.settings, training.party_data, data)
        if name == "fedma":
            extractors = dict.fromkeys(extractors, Unchanged())

        def server(blocks: Collection[str]) -> hyfem.Coordinator:
            used = {block: each for block, each in extractors.items() if block in blocks}
            return hyfem.Coordinator(data.task, used, settings, seed=seed, name=SERVER)

        if name == "standalone":
            return Apart(settings, {party: server(x.blocks) for party, x in party_data.items()})
        of_common = name in ("fedavg", "fedprox") and not training.elsewhere
        return server(common_blocks(party_data) if of_common else extractors)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """Engine that reaches the parties of this process."""
        return training.in_process(parties, SERVER)

    def model(self, party: Party, local_data: hyfem.HyfemData, name: str = "") -> Model:
        """Model that a party can use alone, as it is now."""
        assert isinstance(party, hyfem.Member)
        method = name or ("fedper" if party.config.classifier == "own" else "hyfem")
        model = with_inputs(party.model(), local_data.train.inputs)
        rate = party.config.learning_rate
        return described(model, method=method, label=local_data.label, learning_rate=rate)

    def validate(self, party: Party, local_data: hyfem.HyfemData) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of rows that were kept out of training."""
        assert isinstance(party, hyfem.Member)
        return party.held_out()

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; the server's too, if all blocks are here."""
        name, driver = variant_run.name, variant_run.driver
        whole = whole_of(variant_run.training.loaded.data, variant_run.training.party_data)
        whole = whole if whole is not None and whole.is_tested else None

        def scored(party: str, model: Model, local_data: hyfem.HyfemData) -> Scores:
            test, rows = local_data.test, None
            assert test is not None
            x = inputs_of(model, test)
            if last and party != SERVER:
                rows = with_inputs(model, local_data.train.inputs), x
            tested = model.outputs(x), test.required_labels
            return variant_run.score(party, model.task, *tested, last=last, rows=rows)

        if name == "pooled" and whole is None:
            return {}
        if name in ("fedavg", "fedprox") and whole is not None:
            return {name: {SERVER: scored(SERVER, driver.model(), whole)}}
        parties = {
            party: scored(party, party_model(driver, variant_run.parties[party]), local_data)
            for party, local_data in variant_run.party_data.items()
            if local_data.is_tested
        }
        found = {name: parties} if parties else {}
        if name == "hyfem" and whole is not None:
            found[SERVER] = {SERVER: scored(SERVER, driver.model(), whole)}
        return found

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Party -> its model, and the server's."""
        data, settings = variant_run.training.loaded.data, variant_run.settings
        models = {name: party.model() for name, party in variant_run.parties.items()}
        # Of times and counts each party has a baseline of its own, and the server has none.
        shared = variant_run.name in ("hyfem", "fedavg", "fedprox", "fedma", "lg-fedavg")
        if shared and not isinstance(data.task, OWN_BASELINE):
            models[SERVER] = variant_run.driver.model()
        inputs = data.block_inputs if isinstance(data, dd.Blocks) else {}
        found = {}
        for name, model in models.items():
            local_data = variant_run.party_data.get(name)
            of_party = {} if local_data is None else local_data.train.inputs
            found[name] = described(
                with_inputs(model, {**inputs, **of_party}),
                method=variant_run.name,
                label=(local_data.label if local_data else "") or data.label,
                learning_rate=settings.learning_rate,
            )
        return found
