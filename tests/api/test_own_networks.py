"""Networks of a user's own: given from Python, or by an import path in a party's own file."""

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.companions.service.export import export
from dovetail.data import installed
from dovetail.errors import ConfigError, ModelError, PartyError
from dovetail.models import networks
from dovetail.models.owners import load_bottom

pytestmark = pytest.mark.slow


class Residual(nn.Module):
    """An encoder from the shape of a row; what it gives is not a plain tensor."""

    def __init__(self, shape, width=8):
        super().__init__()
        self.first = nn.Linear(shape[0], width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        z = torch.relu(self.first(x))
        return SimpleNamespace(last_hidden_state=(z + self.second(z))[:, None])  # as Hugging Face


class Graph(nn.Module):
    """A graph convolution (Kipf and Welling 2017): columns are nodes, of a path."""

    def __init__(self, shape, width=8):
        super().__init__()
        ring = (
            torch.eye(shape[0]) + torch.eye(shape[0]).roll(1, 0) + torch.eye(shape[0]).roll(-1, 0)
        )
        degrees = ring.sum(1).rsqrt()
        self.register_buffer("adjacency", degrees[:, None] * ring * degrees)
        self.first, self.second = nn.Linear(1, width), nn.Linear(width, width)

    def forward(self, x):
        hidden = torch.relu(self.adjacency @ self.first(x[..., None]))
        return (self.adjacency @ self.second(hidden)).flatten(1)


@pytest.fixture(scope="module")
def frames():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    label = np.where(x[:, 0] + x[:, 1] * x[:, 3] > 0, "yes", "no")
    ours = pd.DataFrame(x[:, :3], columns=list("abc")).assign(id=range(300), label=label)
    theirs = pd.DataFrame(x[:, 3:], columns=list("def")).assign(id=range(300))
    return ours, theirs


def parties(frames, **theirs):
    return [
        dt.Party("ours", frames[0], id="id", label="label"),
        dt.Party("theirs", frames[1], id="id", **theirs),
    ]


def method(encoder, **more):
    return dt.APFed("contrastive", encoder=encoder, epochs=8, projection=4, **more)


@pytest.mark.trained
def test_a_class_makes_a_network_a_seed_and_it_learns(frames):
    own = dt.fit(method(Residual), parties(frames), baselines=["majority"], seeds=2, quiet=True)
    scores = own.scores.to_dict()
    assert scores["APFed-C, predicts alone"]["accuracy"] > 0.6
    one, other = (own.models_of(seed)["ours"] for seed in (0, 1))
    assert isinstance(one.network.encoder.network, Residual)
    assert not torch.equal(
        one.network.encoder.network.first.weight, other.network.encoder.network.first.weight
    )


@pytest.mark.trained
@pytest.mark.parametrize(("ours", "theirs"), [(Graph, Residual), (Residual, Graph)])
def test_figure_1s_graph_network_and_a_deep_one_help_each_other(frames, ours, theirs):
    """APFed's Figure 1 draws a graph network at one party, a deep network at the other."""
    both = parties(frames, apfed={"encoder": theirs, "loss": "contrastive"})
    helped = dt.APFed("partners", encoder=ours, epochs=16, learning_rate=0.01, projection=4)
    run = dt.fit(helped, both, baselines=["majority"], quiet=True)
    assert isinstance(run.models["ours"].network.encoder.network, ours)
    assert run.scores.to_dict()["APFed with mixed losses, predicts alone"]["accuracy"] > 0.6


def test_a_module_begins_from_its_weights_and_stays_as_it_was(frames):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    before = copy.deepcopy(module.state_dict())
    run = dt.fit(method(module, learning_rate=1e-9), parties(frames), quiet=True)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    trained = run.models["ours"].network.encoder.network
    torch.testing.assert_close(trained[0].weight, module[0].weight, atol=1e-5, rtol=0)


def test_a_saved_model_names_its_network_and_is_given_it_again(frames, tmp_path, monkeypatch):
    run = dt.fit(method(Residual), parties(frames), quiet=True)
    folder = run.models["ours"].save(tmp_path / "ours")
    expected = run.models["ours"].predict_proba(frames[0])
    assert (dt.load(folder).predict_proba(frames[0]) == expected).all()  # this process knows it
    monkeypatch.setattr(networks, "_own", {})  # as another does not
    with pytest.raises(ModelError, match="no folder's code is run: give it again"):
        dt.load(folder)
    assert (dt.load(folder, network=Residual).predict_proba(frames[0]) == expected).all()
    monkeypatch.setattr(networks, "_own", {})
    with pytest.raises(ModelError, match="cannot be rebuilt"):
        dt.load(folder, network=nn.Linear(3, 8))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that pip would call installed, with an encoder."""
    site = tmp_path / "site-packages"
    (site / "tiny_nets").mkdir(parents=True)
    (site / "tiny_nets" / "__init__.py").write_text(
        "from torch import nn\n"
        "class Encoder(nn.Sequential):\n"
        "    def __init__(self, shape):\n"
        "        super().__init__(nn.Linear(shape[0], 4), nn.Tanh())\n"
    )
    info = site / "tiny_nets-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-nets\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("tiny_nets\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(installed, "_trusted", set())
    yield "tiny_nets:Encoder"
    sys.modules.pop("tiny_nets", None)


def test_a_partys_own_file_names_an_installed_package(frames, package):
    given = parties(frames, apfed={"encoder": package, "loss": "contrastive"})
    run = dt.fit(dt.APFed("partners", epochs=3, projection=4), given, quiet=True)
    assert run.models["ours"].predict(frames[0]).isin(["yes", "no"]).all()
    assert "tiny_nets" in sys.modules


def test_the_label_owners_own_file_does_and_a_model_needs_it_named(
    frames, package, tmp_path, monkeypatch
):
    ours = dt.Party("ours", frames[0], id="id", label="label", apfed={"encoder": package})
    run = dt.fit(
        dt.APFed("contrastive", epochs=3, projection=4), [ours, parties(frames)[1]], quiet=True
    )
    folder = run.models["ours"].save(tmp_path / "ours")
    assert '"tiny_nets:Encoder"' in (folder / "model.json").read_text()
    monkeypatch.setattr(installed, "_trusted", set())
    with pytest.raises(ModelError, match="DOVETAIL_ENCODERS=tiny_nets:Encoder"):
        dt.load(folder)
    monkeypatch.setenv("DOVETAIL_ENCODERS", package)
    assert len(dt.load(folder).predict(frames[0])) == 300
    monkeypatch.delenv("DOVETAIL_ENCODERS")
    assert len(dt.load(folder, network=package).predict(frames[0])) == 300


def test_a_run_file_names_no_code(frames, package, tmp_path):
    for given in (package, {"own": package}):
        with pytest.raises(ConfigError):
            dt.APFed(encoder=given)
    head = 'method = "apfed-c"\n[data]\nsource = "breast_cancer"\n'
    dealt = '{ a = ["mean *"], b = ["worst *"] }'
    head += f'partition = {{ kind = "columns", active = "a", parties = {dealt} }}\n'
    for section in ("apfed", "passive", "passive.b"):
        (tmp_path / "run.toml").write_text(f'{head}[{section}]\nencoder = "{package}"\n')
        with pytest.raises(ConfigError, match="encoder"):
            dt.inspect(tmp_path / "run.toml", quiet=True)
    assert "tiny_nets" not in sys.modules


def test_a_partner_that_decodes_is_told_what_to_set(frames):
    given = parties(frames, apfed={"encoder": Residual})
    with pytest.raises(PartyError, match="encodes, and a partner that learns by reconstruction"):
        dt.fit(dt.APFed("reconstruction", epochs=2), given, quiet=True)


def test_what_makes_no_module_is_refused_in_a_sentence(frames):
    with pytest.raises(ConfigError, match="makes a tuple; give a torch module"):
        dt.fit(method(lambda shape: shape), parties(frames), quiet=True)


def test_hyfems_extractors_are_networks_of_ones_own(frames):
    ours, theirs = frames
    both = ours.merge(theirs, on="id")
    blocks = {"here": ["a", "b", "c"], "there": ["d", "e", "f"]}
    given = [
        dt.Party(name, both[start::2], id="id", label="label", blocks=blocks)
        for start, name in enumerate(("one", "two"))
    ]
    run = dt.fit(dt.HyFEM(extractors={"here": Residual, "*": [4]}, rounds=3), given, quiet=True)
    assert {"one", "two"} <= set(run.models)
    kinds = [type(each) for each in run.models["one"].network.modules()]
    assert Residual in kinds


def hospitals(frames, **ours):
    """Two parties of the same kind: columns in common, and one that each has alone."""
    frame = frames[0].merge(frames[1])
    north, south = frame.iloc[:150], frame.iloc[150:]
    return [
        dt.Party("north", north.drop(columns=["e", "f"]), id="id", label="label", **ours),
        dt.Party("south", south.drop(columns="d"), id="id", label="label"),
    ]


def test_the_own_column_of_chfl_is_any_network(frames, tmp_path):
    method = dt.CHFL(encoder=Residual, rounds=3, widths=[8, 4])
    run = dt.fit(method, hospitals(frames), baselines=["chfl-mu0", "common"], quiet=True)
    model = run.models["north"]
    assert isinstance(model.network.unique.network.network, Residual)
    assert model.spec.common
    folder = model.save(tmp_path / "north")
    frame = frames[0].merge(frames[1])
    assert (dt.load(folder, network=Residual).predict(frame) == model.predict(frame)).all()
    export(model, tmp_path / "north.onnx")
    exported = dt.load(tmp_path / "north.onnx").predict_proba(frame)
    np.testing.assert_allclose(exported, model.predict_proba(frame), atol=1e-5)


def test_the_common_column_is_as_without_a_network_of_ones_own(frames):
    """Nothing flows back into it: not from a network of one's own either."""
    settings = {"rounds": 2, "widths": [8, 4], "choose": "last", "gate": False}
    own, plain = (
        dt.fit(dt.CHFL(**settings, **more), hospitals(frames), quiet=True).models["north"]
        for more in ({"encoder": Residual}, {})
    )
    ours, theirs = (each.network.common.state_dict() for each in (own, plain))
    for name, values in ours.items():
        torch.testing.assert_close(values, theirs[name], atol=1e-5, rtol=1e-4)


def test_one_partys_own_file_names_the_network_of_its_own_column(frames, package):
    parties = hospitals(frames, chfl={"encoder": package})
    run = dt.fit(dt.CHFL(rounds=2, widths=[8, 4]), parties, quiet=True)
    kinds = {name: type(each.network.unique).__name__ for name, each in run.models.items()}
    assert kinds == {"north": "OwnColumn", "south": "UniqueColumn"}
    with pytest.raises(ConfigError, match="by the import path of an installed package"):
        dt.CHFL(encoder="wide")
    with pytest.raises(ConfigError, match="is given from Python"):
        dt.CHFL(encoder=package)


@pytest.mark.trained
def test_the_bottom_of_fedoptimus_is_any_network(frames, package):
    ours = frames[0][["id", "label"]]
    lab = dt.Party("lab", frames[0].drop(columns="label"), id="id", fedoptimus={"bottom": package})
    shop = dt.Party("shop", frames[1], id="id", fedoptimus={"bottom": Residual})
    clinic = dt.Party("clinic", ours, id="id", label="label")
    settings = {"epochs": 2, "embedding": 8, "members": 2, "top": [8]}
    run = dt.fit(dt.FedOptimus(**settings), [clinic, lab, shop], quiet=True)
    bottom = load_bottom(run.folder / "models" / "shop")
    assert bottom.spec.member.network.made is Residual
    assert next(iter(run.scores.to_dict().values()))["accuracy"] > 0.4
    frame = frames[0].merge(frames[1])
    table = dt.simulate(
        frame,
        dt.Owners(data_owners={"lab": list("abc"), "shop": list("def")}, label_owners=1),
        id="id",
        label="label",
    )
    run = dt.fit(dt.FedOptimus(bottom=Residual, **settings), table, test=0.3, quiet=True)
    assert next(iter(run.scores.to_dict().values()))["accuracy"] > 0.4


def lightning_module():
    """A LightningModule, of which only ``forward`` is called."""
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):
        def __init__(self, shape, width=8):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU(), nn.Linear(16, width))

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, index):
            raise AssertionError("Dovetail trains")

    return Lit


def hugging_face_model():
    """A BERT of columns as tokens; it gives back more than one tensor."""
    transformers = pytest.importorskip("transformers")

    class Bert(nn.Module):
        def __init__(self, shape):
            super().__init__()
            sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
            config = transformers.BertConfig(**sizes, intermediate_size=16, vocab_size=4)
            self.bert, self.up = transformers.BertModel(config), nn.Linear(1, 8)

        def forward(self, x):
            return self.bert(inputs_embeds=self.up(x[..., None]))

    return Bert


@pytest.mark.parametrize("made", [lightning_module, hugging_face_model])
def test_modules_of_lightning_and_hugging_face_are_networks(made, frames, tmp_path):
    network, ours = made(), frames[0]
    halves = {name: ours.iloc[start::2] for start, name in enumerate(("north", "south"))}
    run = dt.fit(method(network), parties(frames, apfed={"encoder": network}), quiet=True)
    again = dt.load(run.models["ours"].save(tmp_path / "ours"))
    expected = run.models["ours"].predict_proba(ours)
    np.testing.assert_array_equal(again.predict_proba(ours), expected)
    blocks = {"all": list("abc")}
    whole = [
        dt.Party(name, rows, id="id", label="label", blocks=blocks) for name, rows in halves.items()
    ]
    by_block = dt.fit(dt.HyFEM(extractors={"*": network}, rounds=4), whole, quiet=True)
    towers = [
        dt.Party(name, rows, id="id", label="label", chfl={"common": ("a",)})
        for name, rows in halves.items()
    ]
    by_tower = dt.fit(dt.CHFL(encoder=network, rounds=2), towers, quiet=True)
    for trained in (by_block, by_tower):
        assert set(trained.models) >= set(halves)
        assert trained.models["north"].predict_proba(ours).shape == (300, 2)
    clinic = dt.Party("clinic", ours[["id", "label"]], id="id", label="label")
    lab = dt.Party("lab", ours[["id", *"abc"]], id="id", fedoptimus={"bottom": network})
    together = dt.fit(dt.FedOptimus(epochs=2), [clinic, lab], test=0.25, quiet=True)
    assert 0 <= together.result["parties"]["clinic"]["accuracy"] <= 1
