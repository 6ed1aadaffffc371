"""A driver asks more than training needs: about one person, again and again, of new networks."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail import methods
from dovetail.alignment import psi
from dovetail.alignment.stored import StoredRows, digest, save_rows
from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.errors import AlignmentError, ConfigError, ModelError
from dovetail.federated import Local
from dovetail.files import split_cell
from dovetail.methods import apfed, fedoptimus, hyfem, selection, vertical
from dovetail.methods.apfed import distil, inference
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.local_data import Labels
from dovetail.methods.limits import LimitError, Limits
from dovetail.methods.settings.apfed import ApfedSection
from dovetail.methods.settings.party import PolicySection
from dovetail.models import Head, Perceptron, randomness
from dovetail.network import InProcess, Message
from dovetail.network.checkpoint import Restore, Restored, Save
from dovetail.network.quota import Quota
from dovetail.node.limits import Guard, RunLimits
from dovetail.runs.runfile import check_run, load_run
from dovetail.settings.models import ThresholdSettings

IDS = [f"P-{number:03d}" for number in range(300)]
RUN = "a1/apfed/seed-0"
BEGIN = apfed.Begin((4,), 0, 0)


def codes(samples: Tensor) -> apfed.Codes:
    return apfed.Codes(samples, torch.arange(4.0 * len(samples)).sin().view(-1, 4))


SHOP = '[apfed]\nexact = true\nencoder = [8, 4]\nloss = "reconstruction"'


@pytest.fixture
def site_of(shop_site: Callable[..., Any]) -> Callable[..., Any]:
    """A shop in this process, with this policy, that the bank has aligned its 300 rows with."""

    def make(policy: str = "", *, align: bool = True) -> Any:
        site = shop_site(IDS, f"{policy}\n{SHOP}")
        if align:
            psi.align(site.engine("a1"), IDS)
        return site

    return make


def test_a_question_about_one_row_is_refused_and_written_down(site_of: Any) -> None:
    site = site_of()
    party = site.runs.open(RUN, "apfed", "bank")
    party.handle(BEGIN)
    party.handle(codes(torch.arange(16)))
    for samples, words in (
        (torch.tensor([5]), r"about 1 samples: its policy\.min_rows is 16"),
        (torch.arange(15), r"about 15 samples: its policy\.min_rows is 16"),
        (torch.zeros(5000, dtype=torch.int64), "5000 samples of which 1 are different"),
        (torch.tensor([*range(20), 3]), "21 samples of which 20 are different"),
    ):
        with pytest.raises(LimitError, match=words):
            party.handle(codes(samples))
    written = (site.path / "refusals.jsonl").read_text()
    assert "policy.min_rows is 16" in written
    assert "apfed.Codes" in written
    party.handle(codes(torch.arange(16, 80)))  # and the run goes on


def test_twenty_begins_get_one_network_and_a_restart_of_the_shop_changes_nothing(
    site_of: Any,
) -> None:
    site = site_of()
    site.runs.open(RUN, "apfed", "bank").handle(BEGIN)
    for number in range(19):
        if number == 10:
            site = site_of(align=False)  # the same site, another process
        with pytest.raises(LimitError, match=r"policy\.max_begins is 1; a driver that fell goes o"):
            site.runs.open(RUN, "apfed", "bank").handle(BEGIN)


def test_six_opens_of_classic_vertical_learning_get_one_network(site_of: Any) -> None:
    site = site_of('algorithms = ["align", "tvfl"]')
    party = site.runs.open("a1/tvfl/seed-0", "vertical", "bank")
    party.handle(vertical.Open(0))
    for _ in range(5):
        with pytest.raises(LimitError, match=r"policy\.max_begins is 1"):
            party.handle(vertical.Open(0))


def test_a_partner_of_apfed_d_is_asked_about_no_one_sample_alone_nor_for_ever(
    site_of: Any,
) -> None:
    site = site_of('algorithms = ["align", "apfed-d"]\nmax_uses = 3')
    party = site.runs.open("a1/apfed-d/seed-0", "distil", "bank")
    ready = party.handle(distil.Begin(("linear",), 2, 2, 0))
    assert (ready.min_rows, ready.max_uses, ready.max_begins) == (16, 3, 1)
    with pytest.raises(LimitError, match=r"policy\.max_begins is 1"):
        party.handle(distil.Begin(("linear",), 2, 2, 1))

    def encode(samples: Tensor) -> Any:
        none = torch.zeros(0, 0)
        return party.handle(distil.Encode(("linear",), (), none, samples, True, test=False))

    for samples in (torch.full((64,), 7), torch.arange(15).repeat(2)):
        with pytest.raises(LimitError, match=r"about \d+ samples: its policy\.min_rows is 16"):
            encode(samples)
    for _ in range(3):
        encode(torch.arange(16).repeat(2))  # each of two members its own batch: one use
    with pytest.raises(LimitError, match=r"answered 3 times in this run: its policy\.max_uses"):
        encode(torch.arange(15, 31).repeat(2))
    encode(torch.arange(16, 32).repeat(2))

    def predicted() -> Any:  # of the same rows of the same table, by another name
        rows, none = torch.arange(40, 60).repeat(2), torch.zeros(0, 0)
        return party.handle(distil.Encode(("linear",), (), none, rows, False, test=True))

    for _ in range(2):
        encode(torch.arange(40, 60).repeat(2))
    predicted()
    with pytest.raises(LimitError, match=r"answered 3 times in this run: its policy\.max_uses"):
        predicted()


def test_another_driver_is_told_nothing_of_a_run_and_leaves_its_networks_as_they_are(
    site_of: Any,
) -> None:
    """A run's id is no secret: it stands in the model that the run gave the label owner."""
    site = site_of('algorithms = ["align", "apfed-d"]')
    run = "a1/apfed-d/seed-0"

    def train(driver: str) -> None:
        party = site.runs.open(run, "distil", driver)
        party.handle(distil.Begin(("linear",), 2, 2, 0))
        party.handle(distil.Finish(("linear",)))

    def recall(driver: str) -> Any:
        psi.align(site.engine("b2/predict", driver), IDS)
        party = site.runs.open("b2/predict", "recalling", driver)
        return party.handle(inference.Recall(run, torch.arange(16)))

    train("bank")
    codes = recall("bank").code_BE
    with pytest.raises(ModelError, match="it keeps no network of the run 'a1/apfed-d/seed-0'"):
        recall("eve")
    psi.align(site.engine("a1", "eve"), IDS)
    with pytest.raises(ConfigError, match="keeps what another driver's run 'a1/apfed-d/seed-0'"):
        train("eve")
    assert torch.equal(recall("bank").code_BE, codes)


def test_another_driver_has_no_rows_of_a_run_of_fedoptimus_that_it_calls_by_its_name(
    site_of: Any,
) -> None:
    site = site_of('algorithms = ["align", "fedoptimus"]', align=False)
    stored = StoredRows("shop", "a1", torch.arange(300), digest(site.runs._site.table.ids), "lab")
    (site.path / "aligned" / "hub").mkdir(parents=True)
    save_rows(site.path / "aligned" / "hub" / "lab.train.safetensors", stored)
    run = "a1/fedoptimus/seed-0"
    settings = fedoptimus.Config(embedding=4).model_dump_json()
    begin = fedoptimus.messages.BeginData(settings, 0, ("lab",), (300,), (300,))
    site.runs.open(run, "fedoptimus", "hub").handle(begin)
    chosen = selection.Open("lab", torch.arange(2), torch.arange(1))
    site.runs.open(run, "selection", "hub").handle(chosen)
    for algorithm in ("fedoptimus", "selection"):
        with pytest.raises(AlignmentError, match="it keeps no rows of alignment 'a1'"):
            site.runs.open(run, algorithm, "eve")


def test_a_data_owner_embeds_for_label_owners_of_the_run_and_for_no_other_driver(
    site_of: Any,
) -> None:
    site = site_of('algorithms = ["align", "fedoptimus"]', align=False)
    stored = StoredRows("shop", "a1", torch.arange(300), digest(site.runs._site.table.ids), "lab")
    (site.path / "aligned" / "hub").mkdir(parents=True)
    save_rows(site.path / "aligned" / "hub" / "lab.train.safetensors", stored)
    run = "a1/fedoptimus/seed-0"
    settings = fedoptimus.Config(embedding=4).model_dump_json()
    party = site.runs.open(run, "fedoptimus", "hub")
    party.handle(fedoptimus.messages.BeginData(settings, 0, ("lab",), (300,), (300,)))
    party.handle(fedoptimus.messages.FinishData())

    def recall(driver: str) -> Any:
        psi.align(site.engine("b2/predict", driver), IDS)
        party = site.runs.open("b2/predict", "predicting", driver)
        return party.handle(predicting.Recall(run, torch.arange(16)))

    assert recall("lab").embedding_BE.shape == (16, 4)
    for driver in ("eve", "hub"):
        with pytest.raises(ModelError, match="it keeps no network of the run 'a1/fedoptimus"):
            recall(driver)


def test_one_message_of_a_selection_tells_which_rows_are_of_one_class() -> None:
    """What an honest list needs: how far each goes. docs/messages.md says who should refuse."""
    labels_N = torch.arange(300) * 7 % 11 % 2
    owner = selection.LabelOwner("lab", torch.arange(300), labels_N)
    drawn = owner.handle(selection.Choose(1, 300, 0, 0))
    assert isinstance(drawn, selection.Chosen)
    first, others = drawn.samples_N[0], torch.arange(1, 300)
    lists = torch.zeros(299, 1, dtype=torch.int32)
    threshold = owner.handle(
        selection.Nearest(1, others, lists, torch.zeros(299, 1, dtype=torch.bool))
    )
    assert isinstance(threshold, selection.Decided)
    alike = labels_N[drawn.samples_N[1:]] == labels_N[first]
    assert torch.equal(~threshold.open_B, alike)


def test_masked_sums_of_several_groups_tell_an_owner_s_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sums that tell owners' worth apart tell their parts apart: docs/messages.md says so."""
    rng = np.random.default_rng(0)
    columns = {f"owner-{each}": rng.normal(size=(100, 2)) for each in range(3)}
    labels = torch.from_numpy(sum(each[:, 0] for each in columns.values()) > 0).long()
    sums: dict[tuple[int, int], dict[tuple[str, ...], float]] = {}
    measured = selection.Session._measure_masked

    def seen(self: Any, members: Any, queries_M: Any, rows_M: Any, *more: Any) -> Any:
        found = measured(self, members, queries_M, rows_M, *more)
        rows_N = self._request.samples_N.numpy()
        pairs = zip(rows_N[self._queries_Q[queries_M]], rows_N[rows_M], strict=True)
        for pair, total in zip(pairs, np.ldexp(found[0], -self._bits), strict=True):
            sums.setdefault(pair, {})[tuple(members)] = total
        return found

    monkeypatch.setattr(selection.Session, "_measure_masked", seen)
    owners: dict[str, Any] = {
        name: selection.DataOwner(name, lambda _, rows_B, x=x: torch.from_numpy(x)[rows_B])
        for name, x in columns.items()
    }
    bank = selection.LabelOwner("bank", torch.arange(100), labels)
    network = InProcess({**owners, "bank": bank}, driver="coordinator")
    selection.score(network, [*columns], ["bank"], selection.Config(secure=True), seed=0)
    whole = {pair: found for pair, found in sums.items() if len(found) >= 3}
    assert len(whole) > len(sums) / 4
    for (one, other), found in whole.items():
        known = [[float(name in members) for name in columns] for members in found]
        parts = np.linalg.solve(known[:3], [*found.values()][:3])
        true = [((x[one] - x[other]) ** 2).sum() for x in columns.values()]
        np.testing.assert_allclose(parts, true, atol=1e-9)


def test_what_is_released_once_is_the_same_in_every_run_of_every_driver(site_of: Any) -> None:
    """The mean of 200 runs a day would be without noise."""

    def released(noise: float, driver: str, run: str, seed: int) -> Tensor:
        once = f"[apfed.distil]\nrelease = {{ width = 2, noise = {noise} }}"
        site = site_of(f'algorithms = ["align", "apfed-d"]\n{once}', align=False)
        psi.align(site.engine("a1", driver), IDS)
        party = site.runs.open(f"a1/apfed-d/{run}", "distil", driver)
        party.handle(distil.Begin(("released",), 1, 2, seed))
        asked = torch.arange(300), False, False
        codes: Tensor = party.handle(distil.Encode(("released",), (), none, *asked)).code_ND
        return codes[site.runs._stored("a1", driver).rows_S.argsort()]

    none = torch.zeros(0, 0)
    first = released(0.5, "bank", "seed-0", 0)
    assert torch.equal(released(0.5, "bank", "seed-1", 1), first)
    assert torch.equal(released(0.5, "eve", "seed-2", 2), first)
    other = released(0.6, "bank", "seed-3", 0)
    assert (other - first).std() > 0.5  # and not the same noise, a little larger


def first_gradient(site: Any, run: str) -> Tensor:
    party = site.runs.open(run, "apfed", "bank")
    party.handle(BEGIN)
    gradient: Tensor = party.handle(codes(torch.arange(64))).gradient_BD
    return gradient


def test_no_two_runs_begin_with_the_same_network_and_their_number_a_day_has_an_end(
    site_of: Any,
) -> None:
    """One network that is met in each of many runs could be asked 64 rows' questions in each."""
    site = site_of("max_runs_per_day = 5")
    runs = [f"a1/apfed/seed-{number}" for number in range(5)]
    gradients = [first_gradient(site, run) for run in runs[:3]]
    site = site_of("max_runs_per_day = 5", align=False)
    gradients += [first_gradient(site, run) for run in runs[3:]]
    for one in range(5):
        assert not any(torch.allclose(gradients[one], other) for other in gradients[one + 1 :])
    for _ in range(2):
        with pytest.raises(LimitError, match=r"begun 5 in 24 hours.*max_runs_per_day is 5"):
            first_gradient(site, "a1/apfed/more")
        site = site_of("max_runs_per_day = 5", align=False)


def test_going_back_to_an_earlier_state_is_for_a_driver_that_fell(site_of: Any) -> None:
    site = site_of("max_runs_per_day = 3")
    party = site.runs.open(RUN, "apfed", "bank")
    party.handle(BEGIN)
    party.handle(Save("apfed", 1, 0))
    party.handle(codes(torch.arange(64)))
    for message in (Restore("apfed", 1, True), Restore("apfed", 0, True)):
        with pytest.raises(LimitError, match="refuses to go back to an earlier state in the mid"):
            party.handle(message)

    site.runs.restarted("bank")  # another process of the driver: it resumes
    assert party.handle(Restore("apfed", 1, True)).done == 1
    with pytest.raises(LimitError, match="refuses to go back"):
        party.handle(Restore("apfed", 1, True))

    # One that lost everything begins anew: a run more of its day, and another network.
    for _ in range(2):
        site.runs.restarted("bank")
        party.handle(Restore("apfed", 0, True))
        party.handle(BEGIN)
    site.runs.restarted("bank")
    party.handle(Restore("apfed", 0, True))
    with pytest.raises(LimitError, match="max_runs_per_day is 3"):
        party.handle(BEGIN)


def test_a_sample_is_answered_for_max_uses_times_a_run_whoever_is_restarted(site_of: Any) -> None:
    site = site_of("max_uses = 6")
    party = site.runs.open(RUN, "apfed", "bank")
    party.handle(BEGIN)
    for number in range(4):
        party.handle(codes(torch.arange(64)))
        if number == 1:
            party.handle(Save("apfed", 1, 0))
    site.runs.restarted("bank")
    party.handle(Restore("apfed", 1, True))  # the state goes back, the count does not
    for _ in range(2):
        party.handle(codes(torch.arange(64)))
    with pytest.raises(LimitError, match=r"answered 6 times in this run: its policy\.max_uses"):
        party.handle(codes(torch.arange(60, 130)))
    party.handle(codes(torch.arange(64, 128)))
    party.handle(Save("apfed", 2, 1))
    party = site_of("max_uses = 6", align=False).runs.open(RUN, "apfed", "bank")
    with pytest.raises(LimitError, match=r"policy\.max_uses"):
        party.handle(codes(torch.arange(64)))


def test_a_party_that_is_killed_forgets_no_answer_since_it_saved(site_of: Any) -> None:
    """Who makes it die would be answered anew by the network that was saved, as often again."""
    party = site_of("max_uses = 4").runs.open(RUN, "apfed", "bank")
    party.handle(BEGIN)
    party.handle(codes(torch.arange(64)))
    party.handle(Save("apfed", 1, 0))
    for _ in range(2):
        party.handle(codes(torch.arange(64)))
    party.handle(codes(torch.arange(32, 96)))
    site = site_of("max_uses = 4", align=False)  # a process that knows what is written down
    party = site.runs.open(RUN, "apfed", "bank")
    party.handle(codes(torch.arange(32)))
    with pytest.raises(LimitError, match=r"answered 4 times in this run: its policy\.max_uses"):
        party.handle(codes(torch.arange(31, 50)))
    party.handle(codes(torch.arange(64, 96)))
    party.handle(Save("apfed", 2, 1))
    party = site_of("max_uses = 4", align=False).runs.open(RUN, "apfed", "bank")
    for samples in (torch.arange(16), torch.arange(40, 60)):
        with pytest.raises(LimitError, match=r"policy\.max_uses"):
            party.handle(codes(samples))
    for _ in range(2):
        party.handle(codes(torch.arange(64, 96)))


def test_a_prediction_by_its_name_trains_nothing(site_of: Any) -> None:
    """Its rows are neither watched nor told as an alignment's, nor are they those of a proposal."""
    site = site_of('algorithms = ["align", "apfed-mixed", "tvfl"]')
    psi.align(site.engine("b2/predict"), IDS[:20])
    for algorithm in ("apfed", "vertical"):
        with pytest.raises(ConfigError, match=f"refuses '{algorithm}' in 'b2/predict'"):
            site.runs.open("b2/predict", algorithm, "bank")


def test_what_a_site_agrees_to_unless_it_says_more() -> None:
    policy = PolicySection()
    assert policy.algorithms == ("align", "apfed")
    assert (policy.min_rows, policy.max_begins, policy.max_runs_per_day) == (16, 1, 200)
    assert policy.max_uses == 1000  # the paper's 300 epochs three times over


@pytest.mark.slow
def test_every_run_file_that_ships_keeps_to_what_a_site_agrees_to() -> None:
    """Simulated, they have no policies; the same settings between sites are answered to the end."""
    root = Path(__file__).parents[2]
    shipped = json.loads((root / "tests" / "runs" / "run_files.json").read_text())
    files = [root / "runs" / name for name in shipped]
    (readme,) = re.findall(
        r"cat > run.toml <<'END'\n(.*?)END", (root / "README.md").read_text(), re.DOTALL
    )
    runs = [check_run(tomllib.loads(readme), where="README.md")]
    for file in files:
        recipes = tomllib.loads(split_cell(file)[0].read_text()).get("recipes", {})
        runs += [load_run(file, recipe=recipe) for recipe in (None, *recipes)]
    limits = Limits.of(PolicySection())
    asked = 0
    for run in runs:
        settings = run.settings("apfed", ApfedSection)
        if methods.method_of(run.method).name != "apfed":
            continue
        asked += 1
        # No set that ships is smaller; without steps_per_epoch an epoch is a pass or less.
        rows = 1000
        steps = settings.steps_per_epoch or 0
        passes = settings.epochs * max(1, steps * settings.batch_size / rows)
        limits.check_run("shop", rows, batch_size=settings.batch_size, passes=passes)
        variants = len(run.baselines) + 1
        assert len(run.all_seeds()) * variants <= PolicySection().max_runs_per_day
    assert asked > 100


# --- A driver that keeps the limits ---------------------------------------------------------------


def bank(num_rows: int, **settings: Any) -> apfed.Active:
    x = torch.randn(num_rows, 3, generator=torch.Generator().manual_seed(1))
    everybody = torch.arange(300)
    rows = torch.where(everybody < num_rows, everybody, -1)
    return apfed.Active(
        PartyData("bank", everybody[:num_rows].numpy(), {"own": x}, (x[:, 0] > 0).long()),
        Alignment({"bank": rows, "shop": everybody}),
        Classification(("no", "yes")),
        apfed.Config(**{"epochs": 3, "batch_size": 64, **settings}),
        Local("bank"),
        seed=0,
        encoder=Perceptron((8, 4)),
        head=Head((4,)),
    )


class Listens:
    """What a party is asked, on the way to it."""

    def __init__(self, party: Any) -> None:
        self.party = party
        self.accepts = party.accepts
        self.sizes: list[int] = []

    def handle(self, message: Any) -> Any:
        if isinstance(message, apfed.Codes):
            self.sizes.append(len(message.samples_B))
        return self.party.handle(message)


def asked(site: Any, active: apfed.Active, run: str = RUN) -> list[int]:
    """How many rows each question of a whole run is about; none may be refused."""
    shop = Listens(site.runs.open(run, "apfed", "bank"))
    for epoch in apfed.train(active, InProcess({"shop": shop}, driver="bank")):
        assert not epoch.missed, epoch.reasons
    return shop.sizes


def test_a_last_batch_that_is_too_small_joins_the_one_before(site_of: Any) -> None:
    site = site_of()
    assert asked(site, bank(130)) == 3 * [64, 66]
    assert asked(site, bank(144), "a1/apfed/2") == 3 * [64, 64, 16]  # enough: as ever


def test_who_shares_few_rows_of_a_batch_is_asked_about_more_of_its_own(site_of: Any) -> None:
    """A fifth of the bank's rows are the shop's, so that a batch of 64 has 13 of them."""
    site = site_of()
    active = bank(300)
    assert active.questions.alignment is not None
    shop = torch.where(torch.arange(300) % 5 == 0, torch.arange(300), -1)
    active.questions.alignment = Alignment(
        {"bank": torch.arange(300), "shop": shop, "lab": shop * 0}
    )

    class Shop(Listens):
        def handle(self, message: Any) -> Any:
            if isinstance(message, apfed.Codes):
                assert set(message.samples_B.tolist()) <= set(range(0, 300, 5))
            return super().handle(message)

    party = Shop(site.runs.open(RUN, "apfed", "bank"))
    lab = apfed.Passive(
        _rows("lab"),
        apfed.PassiveConfig(loss="reconstruction"),
        Perceptron((8, 4)),
        Local("lab"),
    )
    for epoch in apfed.train(active, InProcess({"shop": party, "lab": lab}, driver="bank")):
        assert not epoch.missed, epoch.reasons
    sizes = party.sizes
    assert min(sizes) == 16
    assert max(sizes) < 40


def _rows(name: str) -> SharedRows:
    return SharedRows(name, torch.zeros(300, 2), torch.arange(300))


def test_a_run_that_cannot_keep_a_limit_says_so_before_it_begins(site_of: Any) -> None:
    site = site_of("max_uses = 2")
    with pytest.raises(ConfigError, match=r"'shop' 3 times about each sample, and it answers 2"):
        asked(site, bank(300))
    with pytest.raises(ConfigError, match=r"asked about 8 samples at a time .*policy\.min_rows"):
        asked(site, bank(300, epochs=1, batch_size=8), "a1/apfed/2")
    with pytest.raises(ConfigError, match=r"'shop' shares 10 samples .* answers about 16 or more"):
        asked(site, bank(10, epochs=1), "a1/apfed/3")


def test_the_limits_are_told_when_a_run_begins() -> None:
    for reply in (apfed.Ready, vertical.Opened, distil.Ready):
        assert {"min_rows", "max_uses"} <= {each.name for each in fields(reply)}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["apfed", "vertical", "distil"])
def test_a_sites_network_is_not_the_one_that_the_seed_alone_gives(
    site_of: Any, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a method forgets to hand on, this finds: a party there draws with its secret."""
    begins = {
        "apfed": BEGIN,
        "vertical": vertical.Open(0),
        "distil": distil.Begin(("network",), 1, 2, 0),
    }
    site = site_of('algorithms = ["align", "apfed-mixed", "tvfl", "apfed-d"]')
    drawn: list[bytes | None] = []
    given = randomness.generator

    def seen(seed: int, *purpose: str, secret: bytes | None = None) -> torch.Generator:
        drawn.append(secret)
        return given(seed, *purpose, secret=secret)

    monkeypatch.setattr(randomness, "generator", seen)
    site.runs.open(f"a1/{algorithm}/seed-0", algorithm, "bank").handle(begins[algorithm])
    assert drawn
    assert all(each is not None and len(each) == 16 for each in drawn)


def test_passes_over_labels_of_a_run_have_an_end_whatever_it_goes_back_to(tmp_path: Path) -> None:
    """Each tells a coordinator labels of rows that it chooses by embeddings of its own."""
    known = methods.METHODS["fedoptimus"].algorithms["fedoptimus"]
    policy = PolicySection(algorithms=("fedoptimus",), max_uses=2)
    labels_S = torch.arange(1100) % 2
    config = fedoptimus.Config(embedding=2, top=(4,), decide=ThresholdSettings())
    begin = fedoptimus.messages.BeginLabels(config.model_dump_json(), 0, "")

    def guarded() -> Callable[[Message], Any]:
        """After a restart of either side, in which nothing that was saved is taken back."""
        scored = {"test": labels_S}
        held = Labels("l1", Classification((0, 1)), labels_S, scored=scored, max_scored=2)
        owner = fedoptimus.LabelOwner(held, Local("l1"))
        owner.handle(begin)
        limits = RunLimits(Quota(tmp_path), policy)
        guard = limits.of("hub", "a1/fedoptimus/0", "fedoptimus", known)
        return lambda message: guard.answer(message, owner.handle)

    def passes(kind: type[Message], samples_N: Tensor) -> Any:
        ask = guarded()
        first = ask(kind(samples_N[:1024], torch.zeros(min(1024, len(samples_N)), 2)))
        if len(samples_N) <= 1024:
            return first
        assert not first.num_rows  # nothing is told yet, and nothing counted
        return ask(kind(samples_N[1024:], torch.zeros(len(samples_N) - 1024, 2)))

    for _ in range(2):
        assert passes(fedoptimus.messages.Measure, torch.arange(1100)).num_rows == 1100
    with pytest.raises(LimitError, match=r"answered 2 times, and its policy\.max_uses is 2"):
        passes(fedoptimus.messages.Measure, torch.arange(1100))
    held_out = guarded()(fedoptimus.messages.GiveHeldOut()).samples_N
    for _ in range(3):
        assert passes(fedoptimus.messages.Validate, held_out).num_rows == len(held_out)
    with pytest.raises(LimitError, match="answered 3 times, and a run that keeps the rules asks 3"):
        passes(fedoptimus.messages.Validate, held_out)


def test_scores_of_weights_that_a_coordinator_makes_have_an_end(tmp_path: Path) -> None:
    """Two that differ in one row alone tell its label: 30 of 30 by 60, with no round trained."""
    known = methods.METHODS["chfl"].algorithms["chfl"]
    policy = PolicySection(algorithms=("chfl",), max_uses=6)

    def average(run: str, num_rows: int = 30) -> Message:
        """The answer of a site that was restarted, and has long kept ledgers."""
        guard = RunLimits(Quota(tmp_path), policy).of("hub", run, "chfl", known)
        return guard.answer(
            chfl.Average(0, 0, torch.zeros(3)), lambda message: chfl.Scored(0.5, num_rows, 0.0)
        )

    for run in "abcdef":
        for _ in range(6):
            average(run, num_rows=0)  # who has no validation rows tells nothing
            average(run)
    assert Quota(tmp_path).read("SELECT count(*) FROM answers") == [(6,)]
    for run in "abcdef":
        with pytest.raises(LimitError, match=r"answered 6 times, and its policy\.max_uses is 6"):
            average(run)


def test_moments_and_judgements_of_a_run_have_an_end_whatever_it_goes_back_to(
    tmp_path: Path,
) -> None:
    known = methods.METHODS["hyfem"].algorithms["hyfem"]
    policy = PolicySection(algorithms=("hyfem",))
    asked = hyfem.GiveMoments(torch.zeros(3)), hyfem.Judge(torch.zeros(3), torch.zeros(2))
    answered: list[Message] = []

    def handle(message: Message) -> Message:
        answered.append(message)
        return Restored(0) if isinstance(message, Restore) else hyfem.Judged(1, 2)

    def guard(run: str) -> Guard:
        """The guard of a process that knows what is written down, and nothing else."""
        return RunLimits(Quota(tmp_path), policy).of("server", run, "hyfem", known)

    for message, most in zip(asked, (3, 6), strict=True):
        for _ in range(most):
            guard("a1/hyfem/seed-0").answer(message, handle)
        again = guard("a1/hyfem/seed-0")
        again.answer(
            Restore("hyfem", 0, exactly=False), handle
        )  # it begins anew, and the count does not
        words = f"it has answered {most} times, and a run that keeps the rules asks {most} times"
        with pytest.raises(LimitError, match=words):
            again.answer(message, handle)
        guard("a1/hyfem/seed-1").answer(message, handle)  # another run
    assert len([each for each in answered if not isinstance(each, Restore)]) == 3 + 6 + 2
    limits = RunLimits(Quota(tmp_path), policy)
    assert limits.number("server", "any") == 1  # and none of them is a run that began
