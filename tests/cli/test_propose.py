"""Runs that are proposed, read and signed before anything is asked; parties are processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from federations import Federation, free_port
from markdown_it import MarkdownIt

from dovetail import methods
from dovetail.cli.proposals import show
from dovetail.errors import ConfigError, MessageError
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.variant_settings import variant_config
from dovetail.methods.settings.chfl import ChflSection
from dovetail.models.saved import load
from dovetail.network.certificates import Authority, Revocations, certificate_pem, key_pem, new_key
from dovetail.network.credentials import Credentials
from dovetail.network.ledger import verify
from dovetail.network.renewal import Certified
from dovetail.node.agreements import Agreements, Show
from dovetail.node.partyfile import open_site
from dovetail.node.proposal import Proposal, Signature, agreed_run, parse_proposal, sign, split_run
from dovetail.node.reviewing import changes
from dovetail.runs.proposing import _messages, page, propose, review
from dovetail.runs.runfile import load_run

RUN = """
method = "apfed-mixed"
parties = ["clinic.toml"]
baselines = ["alone"]
test = 0.25
evaluate_every = 0

[engine]
kind = "stream"
listen = "127.0.0.1:{port}"
partners = ["lab", "registry"]

[apfed]
encoder = [8]
head = [8]
epochs = 2
learning_rate = 0.05
"""

SIGNED = '[policy]\ndrivers = ["clinic"]\napproval = "signed"'


@pytest.fixture
def federation(
    deal: Callable[..., Any], tmp_path: Path, dovetail: Callable[..., Any]
) -> Iterator[Federation]:
    """A clinic that drives a lab and a registry, which answer only what they have signed."""
    dealt = deal()
    for name in ("lab.toml", "registry.toml"):
        dealt.change(name, ('id = "person"\n', f'id = "person"\n\n{SIGNED}\n'))
    port = free_port()
    (tmp_path / "run.toml").write_text(RUN.format(port=port))
    made = dovetail("certificates", "clinic", "lab", "registry", "--driver", "clinic")
    assert made.code == 0, made.err
    with Federation(tmp_path, port).ending() as federation:
        yield federation


@pytest.mark.network
def test_two_sign_one_refuses_then_all_sign_and_only_that_run_is_answered(
    federation: Federation, dovetail: Callable[..., Any], tmp_path: Path
) -> None:
    asked = dovetail("propose", "run.toml", "--purpose", "Which patients come back?")
    assert asked.code == 0, asked.err
    first = (tmp_path / "proposal.json").read_text()
    page = (tmp_path / "proposal.md").read_text()
    assert "Which patients come back?" in page
    assert "apfed.Codes" in page
    unsigned = dovetail("train", "run.toml", "--proposal", "proposal.json")
    assert unsigned.code == 2
    assert "not signed by lab, registry yet" in unsigned.err

    signed = dovetail("review", "proposal.json", "--party", "lab.toml", "--yes")
    assert signed.code == 0, signed.err
    refusal = "the ethics board meets in May"
    refused = dovetail("review", "proposal.json", "--party", "registry.toml", "--refuse", refusal)
    assert refused.code == 0, refused.err
    stopped = dovetail("train", "run.toml", "--proposal", "proposal.json")
    assert stopped.code == 2
    assert refusal in stopped.err
    assert "'registry'" in stopped.err

    # What was changed is a new proposal, which nobody has signed.
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("epochs = 2", "epochs = 3"))
    other = dovetail("train", "run.toml", "--proposal", "proposal.json")
    assert other.code == 2
    assert "settings.apfed.epochs 2 -> 3" in other.err
    again = dovetail("propose", "run.toml", "--purpose", "Which patients come back?")
    assert again.code == 0
    assert (tmp_path / "proposal.json").read_text() != first
    assert not (tmp_path / "proposal.lab.json").exists()  # it was of the proposal before
    reviewed = dovetail("review", "proposal.json", "--party", "lab.toml", "--yes")
    assert "settings.apfed.epochs: 2 -> 3" in reviewed.out
    assert dovetail("review", "proposal.json", "--party", "registry.toml", "--yes").code == 0

    # A run of no proposal is answered by neither; the one that all signed is.
    joined = [federation.join(name) for name in ("lab", "registry")]
    bare = federation.start("train", "run.toml", "--out", "bare")
    assert bare.ended() == 2, bare.printed()
    assert "was not proposed" in bare.printed()
    unasked = federation.start("align", "run.toml")
    assert unasked.ended() == 2, unasked.printed()
    assert "was not proposed" in unasked.printed()
    aligned = federation.start("align", "run.toml", "--proposal", "proposal.json")
    assert aligned.ended() == 0, aligned.printed()
    run = federation.start("train", "run.toml", "--proposal", "proposal.json", "--out", "out")
    assert run.ended() == 0, run.printed()
    assert all(each.running() for each in joined)

    # Its name stands in both books, in the model, and in each party's record of what was used.
    name = json.loads((tmp_path / "proposal.clinic.json").read_text())["proposal"]
    assert federation.result("out")["proposal"] == name
    about = load(tmp_path / "out" / "models" / "clinic").about
    assert about["proposal"] == name
    card = (tmp_path / "out" / "models" / "clinic" / "card.md").read_text()
    assert "- the record of lab, line " in card
    again = dovetail("card", "out/models/clinic")
    assert again.out == card  # made anew, it says the same
    assert f"Of the proposal {name}, which all parties signed." in card
    for party in ("clinic", "lab"):
        sent = [line for line in verify(tmp_path / f"{party}.site" / "ledger.jsonl").lines()]
        assert sent
        runs = (tmp_path / f"{party}.site" / "ledger.jsonl").read_text()
        assert f"agreed-{name}" in runs
    record: list[Any] = json.loads(dovetail("review", "--party", "lab.toml", "--json").out)
    kept = next(each for each in record if each["name"] == name)
    assert {n: s["decision"] for n, s in kept["signatures"].items()} == {
        "clinic": "signed",
        "lab": "signed",
        "registry": "signed",
    }
    assert [each["variant"] for each in kept["used"]].count("apfed-mixed") == 1
    listed = dovetail("review", "--party", "lab.toml").out
    assert f"Runs that began on {name[:12]}:\n" in listed
    assert all(f"  {each['time']}  {each['run']}\n" in listed for each in kept["used"])
    assert all(len(each["samples"]) == 64 for each in kept["used"])
    agreement = {path.name for path in (tmp_path / "out" / "agreement").iterdir()}
    assert agreement == {f"proposal.{n}json" for n in ("", "clinic.", "lab.", "registry.")}

    # All of it is one record, which the driver signed and the parties' own words are in.
    ledgers = [f"{party}.site" for party in ("clinic", "lab", "registry")]
    shown = ("ledger", "verify", "--record", "out/record.json", "--ca", "certificates/lab/ca.pem")
    whole = dovetail(*shown, *ledgers)
    assert whole.code == 0, whole.err
    cohort = kept["used"][-1]
    opened = hashlib.sha256(f"{cohort['salt']}:{cohort['samples']}".encode()).hexdigest()
    for words in (
        *("record signed by 'clinic'", f"proposal {name}", "models/clinic/model.safetensors"),
        *(f"proposal signed by '{party}'" for party in ("clinic", "lab", "registry")),
        *(f"account signed by '{party}'" for party in ("lab", "registry")),
        *(f"head of the ledger signed by '{party}'" for party in ("clinic", "lab", "registry")),
        f"{cohort['run']}, cohort {opened}",
    ):
        assert words in whole.out
    assert whole.out.count("; the ledger that is here has it") == 3
    run_record = json.loads((tmp_path / "out" / "cohort.json").read_text())
    opened = hashlib.sha256(f"{run_record['salt']}:{run_record['samples']}".encode()).hexdigest()
    assert f"'clinic' trained on the cohort {opened}" in whole.out
    for file, words in (
        ("models/clinic/model.safetensors", "is not what it was when the run ended"),
        ("agreement/proposal.lab.json", "is not what it was when the run ended"),
        ("record.json", "what is said to be of party 'clinic' is not what it has signed"),
        ("models/clinic/model.json", "names another proposal than the record"),
    ):
        path = tmp_path / "out" / file
        honest = path.read_bytes()
        # With its quotes: three letters stand in the text of some certificate in a hundred, too.
        mark, other = (
            (name.encode(), b"lib") if file.endswith("model.json") else (b'"lab"', b'"lib"')
        )
        path.write_bytes(honest.replace(mark, other) if mark in honest else honest + b" ")
        changed = dovetail(*shown)
        path.write_bytes(honest)
        assert changed.code == 2
        assert words in changed.err, changed.err
    other = dovetail("certificates", "clinic", "--out", "others")
    assert other.code == 0
    stranger = dovetail(*shown[:-1], "others/clinic/ca.pem")
    assert stranger.code == 2
    assert "an authority that is not believed here" in stranger.err
    lab = tmp_path / "lab.site" / "ledger.jsonl"
    lab.write_text("".join(lab.read_text().splitlines(keepends=True)[:-9]))
    short = dovetail(*shown, "lab.site")
    assert short.code == 2
    assert "the ledger of 'lab' is not the one it was when the run ended" in short.err


def test_a_party_that_must_sign_is_not_trained_in_one_process(
    deal: Callable[..., Any], dovetail: Callable[..., Any]
) -> None:
    deal().change("lab.toml", ('id = "person"\n', f'id = "person"\n\n{SIGNED}\n'))
    done = dovetail("train", "run.toml")
    assert done.code == 2
    assert "lab.toml has policy.approval" in done.err


# --- What a party answers, without a network ------------------------------------------------------


NOW = datetime.now(UTC).replace(microsecond=0)

PROPOSAL = Proposal(
    purpose="A test of agreements",
    driver="clinic",
    parties=("clinic", "lab"),
    method="chfl",
    variants=("chfl",),
    seeds=(0,),
    attempts=2,
    algorithms=("chfl",),
    messages=(),
    least_rows=10,
    settings={"chfl": {"rounds": 3}},
    stage_settings={"chfl": {"rounds": 3, "mu": {"one_of": [0.1, 1.0]}}},
    models="Each keeps one.",
    created=NOW,
    expires=NOW + timedelta(days=1),
    dovetail="1",
)

RUN_ID = "5f0c/chfl/seed-0"


class Sites:
    """An authority, and the homes of parties that it has certified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(now=datetime.now(UTC))
        self.revoked = Revocations()

    def identity(self, name: str, authority: Authority | None = None) -> Certified:
        key, now = new_key(), datetime.now(UTC) - timedelta(days=1)
        issued = (authority or self.authority).issue(name, key.public_key(), now=now)
        return Certified(Credentials(self.authority.pem, certificate_pem(issued), key_pem(key)))

    def lab(self, *, num_rows: int = 20, required: bool = True) -> Agreements:
        authorities: tuple[x509.Certificate, ...] = self.identity("lab").authorities
        return Agreements(
            self.folder,
            "lab",
            authorities,
            required=required,
            num_rows=num_rows,
            revocations=lambda: self.revoked,
        )

    def show(self, lab: Agreements, proposal: Proposal, *signatures: Signature) -> None:
        lab.shown(Show(proposal.text, tuple(each.text for each in signatures)), "clinic")

    def signed(self, lab: Agreements, proposal: Proposal = PROPOSAL) -> str:
        signatures = [sign(proposal, name, self.identity(name)) for name in proposal.signers]
        self.show(lab, proposal, *signatures)
        return proposal.name


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


def approve(
    lab: Agreements, agreed: str, run: str = RUN_ID, policy: str = "chfl", driver: str = "clinic"
) -> Any:
    return lab.approve(run, agreed, policy, driver, samples=lambda: "digest")


def test_a_run_that_all_have_signed_is_answered_and_written_down_once(sites: Sites) -> None:
    lab = sites.lab()
    name = sites.signed(lab)
    for _ in range(2):  # the same run: it goes on
        assert approve(lab, name).variant == "chfl"
    assert [each["run"] for each in lab.used(name)] == [RUN_ID]
    assert lab.used(name)[0]["samples"] == "digest"


def test_without_signatures_a_policy_that_asks_for_none_is_as_before(sites: Sites) -> None:
    lab = sites.lab(required=False)
    assert approve(lab, "").proposal is None
    with pytest.raises(ConfigError, match="not shown"):
        approve(lab, 64 * "a")


@pytest.mark.parametrize(
    ("run", "policy", "driver", "why"),
    [
        ("5f0c/common/seed-0", "chfl", "clinic", "is of the variants chfl and the seeds 0"),
        ("5f0c/chfl/seed-1", "chfl", "clinic", "is of the variants chfl and the seeds 0"),
        (RUN_ID, "hyfem", "clinic", "is of chfl"),
        (RUN_ID, "chfl", "bank", "is 'clinic''s"),
    ],
)
def test_what_was_not_agreed_on_is_refused(
    sites: Sites, run: str, policy: str, driver: str, why: str
) -> None:
    lab = sites.lab()
    with pytest.raises(ConfigError, match=why):
        approve(lab, sites.signed(lab), run, policy, driver)


def test_a_run_begins_as_often_as_was_agreed_on(sites: Sites) -> None:
    lab = sites.lab()
    name = sites.signed(lab)
    for fresh in "ab":
        approve(lab, name, f"{RUN_ID}/{fresh}")
    with pytest.raises(ConfigError, match="allows it 2 times"):
        approve(sites.lab(), name, f"{RUN_ID}/c")  # of another process, too


def test_too_few_rows_and_an_end_that_is_past_are_refused(sites: Sites) -> None:
    small = sites.lab(num_rows=9)
    with pytest.raises(ConfigError, match="10 rows or more"):
        approve(small, sites.signed(small))
    times = {"created": NOW - timedelta(hours=2), "expires": NOW - timedelta(minutes=1)}
    ended = PROPOSAL.model_copy(update=times)
    lab, signatures = sites.lab(), []
    for name in ended.signers:
        identity = sites.identity(name)
        then = sign(ended, name, identity).model_copy(update={"time": NOW - timedelta(hours=1)})
        signatures.append(then.signed(identity))
    sites.show(lab, ended, *signatures)
    with pytest.raises(ConfigError, match="it ended on"):
        approve(lab, ended.name)


def test_the_driver_cannot_sign_for_a_party(sites: Sites) -> None:
    lab = sites.lab()
    clinic = sites.identity("clinic")
    signature = sign(PROPOSAL, "clinic", clinic)
    sites.show(lab, PROPOSAL, signature)
    with pytest.raises(ConfigError, match="not signed by lab"):
        approve(lab, PROPOSAL.name)
    with pytest.raises(MessageError, match="certificate of another"):
        sites.show(lab, PROPOSAL, signature, sign(PROPOSAL, "lab", clinic))
    forged = sites.identity("lab", Authority.create(now=NOW - timedelta(days=2)))
    with pytest.raises(MessageError, match="authority that is not believed"):
        sites.show(lab, PROPOSAL, signature, sign(PROPOSAL, "lab", forged))


def test_a_signature_of_a_revoked_certificate_does_not_count_whenever_it_says_it_was_made(
    sites: Sites,
) -> None:
    lab, thief = sites.lab(), sites.identity("lab")
    proposal = PROPOSAL.model_copy(update={"created": NOW - timedelta(hours=2)})
    signature = sign(proposal, "clinic", sites.identity("clinic"))
    early = sign(proposal, "lab", thief)
    early = early.model_copy(update={"time": NOW - timedelta(hours=1)}).signed(thief)
    sites.show(lab, proposal, signature, early)
    approve(lab, proposal.name)
    shown = thief.credentials.certificate
    serial = x509.load_pem_x509_certificate(shown).serial_number
    revoked = {serial: (NOW, x509.ReasonFlags.key_compromise)}
    listed = sites.authority.revoke(revoked, number=1, now=NOW, days=9)
    authorities = thief.authorities
    sites.revoked = Revocations.read(certificate_pem(listed), authorities, where="crl.pem")
    with pytest.raises(MessageError, match="of party 'lab' does not count: the certificate of"):
        sites.show(lab, proposal, signature, early)
    with pytest.raises(MessageError, match="of party 'lab' does not count"):
        approve(lab, proposal.name)  # nor what was kept before


def test_nothing_that_a_driver_writes_hides_what_a_party_is_to_read() -> None:
    words = "Research\x1b]0;you\x07\x1b[8m\n\n<!--\n\n```\n# Settings"
    purpose = {"purpose": words, "settings": {"chfl": {"x | <!-- | `": "| <b> ```"}}}
    shown = page(PROPOSAL.model_copy(update=purpose))
    assert "\x1b" not in shown
    html = str(MarkdownIt().enable("table").render(shown))
    assert "<!--" not in html
    assert "<code" not in html
    quoted, rest = html.split("</blockquote>")
    assert "<h1>Settings</h1>" in quoted  # as what it is: quoted
    assert "<td>chfl.x | &lt;!-- | `</td>" in rest
    assert "&lt;b&gt;" in rest


def test_what_is_signed_is_shown_to_its_end_on_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"column number {number}" for number in range(40)]
    long = PROPOSAL.model_copy(update={"settings": {"chfl": {"common": names}}})
    (tmp_path / "lab.csv").write_text("id,x\n1,2\n")
    (tmp_path / "lab.toml").write_text('[party]\nname = "lab"\ntable = "lab.csv"\nid = "id"\n')
    show(long, open_site(tmp_path / "lab.toml"), [], None, [])
    shown = capsys.readouterr().out
    assert long.name in shown
    assert all(name in " ".join(shown.split()) for name in names)
    of_proposal = shown.partition("\nThe first proposal")[0]  # a path of the test comes behind it
    assert max(map(len, of_proposal.splitlines())) <= 80


def test_of_thirty_messages_those_that_differ_from_the_last_proposal_are_shown() -> None:
    before = tuple(_messages(("align", "chfl")))
    worded = before[3].model_copy(update={"about": "Otherwise."})
    after = (*before[:3], worded, *before[4:-1])
    found = changes(
        PROPOSAL.model_copy(update={"messages": before}),
        PROPOSAL.model_copy(update={"messages": after}),
    )
    assert [key for key, _, _ in found] == [
        f"messages.{worded.name}.about",
        f"messages.{before[-1].name}",
    ]
    twice = PROPOSAL.model_copy(update={"messages": (*before, worded)})
    (only,) = changes(PROPOSAL.model_copy(update={"messages": before}), twice)
    assert only[0] == "messages"  # no name hides another


def test_a_proposal_that_leaves_a_message_out_or_words_one_anew_is_told(tmp_path: Path) -> None:
    (tmp_path / "lab.csv").write_text("id,x\n" + "\n".join(f"{n},{n / 7}" for n in range(20)))
    text = '[party]\nname = "lab"\ntable = "lab.csv"\nid = "id"\n[policy]\nalgorithms = ["chfl"]\n'
    (tmp_path / "lab.toml").write_text(text)
    site = open_site(tmp_path / "lab.toml")
    honest = tuple(_messages(("chfl",)))
    models = {"models": methods.METHODS["chfl"].models}
    assert not review(PROPOSAL.model_copy(update={**models, "messages": honest}), site)
    worded = honest[0].model_copy(update={"about": "Nothing of anybody's."})
    for messages, name in ((honest[1:], honest[0].name), ((worded, *honest[1:]), worded.name)):
        (warning,) = review(PROPOSAL.model_copy(update={**models, "messages": messages}), site)
        assert f"the message {name} is not what this version sends" in warning
    (warning,) = review(PROPOSAL.model_copy(update={"messages": honest}), site)
    assert "says otherwise than this version who keeps which model" in warning


def test_a_signature_holds_for_what_was_signed_only(sites: Sites) -> None:
    lab = sites.lab()
    signed = sign(PROPOSAL, "lab", sites.identity("lab"))
    other = PROPOSAL.model_copy(update={"purpose": "Another one"})
    with pytest.raises(MessageError, match="is not the proposal"):
        sites.show(lab, other, signed)
    moved = signed.model_copy(update={"proposal": other.name})
    with pytest.raises(MessageError, match="is not what it has signed"):
        sites.show(lab, other, moved)
    turned = sign(PROPOSAL, "lab", sites.identity("lab"), refuse="no")
    with pytest.raises(MessageError, match="is not what it has signed"):
        sites.show(lab, PROPOSAL, turned.model_copy(update={"decision": "signed", "why": ""}))
    future = signed.model_copy(update={"time": NOW + timedelta(hours=1)})
    with pytest.raises(MessageError, match="in the future"):
        sites.show(lab, PROPOSAL, future)


def test_a_later_no_ends_what_was_signed(sites: Sites) -> None:
    lab = sites.lab()
    name = sites.signed(lab)
    approve(lab, name)
    later = sign(PROPOSAL, "lab", sites.identity("lab"), refuse="the contract has ended")
    later = later.model_copy(update={"time": later.time + timedelta(seconds=1)})
    with pytest.raises(MessageError):  # the time is signed, too
        lab.keep(PROPOSAL, {"lab": later})
    kept = sites.folder / "proposals" / name / "said.lab.json"
    signed = Signature.model_validate_json(kept.read_text())
    early = sign(PROPOSAL, "lab", sites.identity("lab"), refuse="the contract has ended")
    kept.write_text(early.text)
    sites.show(lab, PROPOSAL, signed)  # the driver shows what was said before
    with pytest.raises(ConfigError, match="the contract has ended"):
        approve(lab, name)


def test_a_no_is_not_forgotten_for_proposals_that_a_driver_heaps_up(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.node.agreements.KEPT_PROPOSALS", 3)
    lab = sites.lab()
    name = sites.signed(lab)
    yes = lab.signatures(name)
    no = sign(PROPOSAL, "lab", sites.identity("lab"), refuse="the contract has ended")
    (sites.folder / "proposals" / name / "said.lab.json").write_text(no.text)

    def others(number: int) -> Proposal:
        created = NOW + timedelta(minutes=number)
        return PROPOSAL.model_copy(update={"created": created, "purpose": f"No. {number}"})

    shown = [others(number) for number in range(1, 6)]
    for each in shown:
        sites.show(lab, each)
    sites.show(lab, PROPOSAL, *yes.values())
    with pytest.raises(ConfigError, match="the contract has ended"):
        approve(lab, name)
    assert {each.name for each in lab.known()} == {name, *(each.name for each in shown[-2:])}
    for each in shown[-2:]:
        sites.signed(lab, each)
    with pytest.raises(ConfigError, match="that its owner has signed or refused"):
        sites.show(lab, others(6))


def test_settings_of_a_first_message_are_those_agreed_on(sites: Sites) -> None:
    lab = sites.lab()
    check = approve(lab, sites.signed(lab)).checks(("chfl.Begin",))

    def begin(settings: dict[str, Any]) -> chfl.Begin:
        return chfl.Begin(json.dumps(settings), 0, ("x",), "")

    for mu in (0.1, 1.0):
        check(begin({"rounds": 3, "mu": mu}))
    with pytest.raises(ConfigError, match=r"mu = 0.1 or 1, and it was told 0.5"):
        check(begin({"rounds": 3, "mu": 0.5}))
    with pytest.raises(ConfigError, match="rounds = 3, and it was told 30"):
        check(begin({"rounds": 30, "mu": 1.0}))
    with pytest.raises(ConfigError, match="says secure = nothing"):
        check(begin({"rounds": 3, "mu": 1.0, "secure": False}))
    with pytest.raises(ConfigError, match="it was told nothing"):
        check(begin({"rounds": 3}))


def test_a_copy_that_was_changed_at_home_is_found(sites: Sites) -> None:
    lab = sites.lab()
    name = sites.signed(lab)
    path = sites.folder / "proposals" / name / "proposal.json"
    changed = PROPOSAL.model_copy(update={"attempts": 99})
    path.write_text(changed.text)
    with pytest.raises(ConfigError, match="was changed"):
        approve(lab, name)


# --- The text -------------------------------------------------------------------------------------


def test_a_number_that_has_no_canonical_form_is_told() -> None:
    for number in ("1e999", "1" + 30 * "0"):
        text = PROPOSAL.text.replace('"rounds":3', f'"rounds":{number}', 1)
        with pytest.raises(ConfigError, match="is not written as dovetail propose writes it"):
            parse_proposal(text, where="proposal.json")


@pytest.mark.parametrize(
    "choice", ['{"one_of":null}', '{"one_of":[]}', '{"one_of":"0.5"}', '{"also":1,"one_of":[2]}']
)
def test_a_choice_of_settings_that_is_no_list_is_told(choice: str) -> None:
    settings = {"chfl": {"mu": 0.5}}
    text = PROPOSAL.model_copy(update={"stage_settings": settings}).text
    assert parse_proposal(text, where="proposal.json").stage_settings == settings
    text = text.replace('"mu":0.5', f'"mu":{choice}', 1)
    with pytest.raises(ConfigError) as error:
        parse_proposal(text, where="proposal.json")
    assert str(error.value).startswith(
        "proposal.json is no proposal: stage_settings chfl.mu: expected a value, or "
        '{"one_of": [values]} alone with one value or more, got {"'
    )


def test_the_text_is_canonical_and_names_itself() -> None:
    again = parse_proposal(PROPOSAL.text, where="here")
    assert again.name == PROPOSAL.name
    assert again == PROPOSAL
    with pytest.raises(ConfigError, match="RFC 8785"):
        parse_proposal(json.dumps(json.loads(PROPOSAL.text), indent=1), where="here")
    with pytest.raises(ConfigError, match="no proposal: purpose"):
        parse_proposal("{}", where="here")
    assert split_run(agreed_run(RUN_ID, PROPOSAL.name)) == (RUN_ID, PROPOSAL.name)
    assert split_run(RUN_ID) == (RUN_ID, "")


FIELDS = set(chfl.Config.model_fields)


def test_stage_settings_are_what_begin_carries(tmp_path: Path) -> None:
    text = """
method = "chfl"
baselines = ["common"]

[engine]
kind = "stream"
listen = "127.0.0.1:7443"
partners = ["north", "south"]
name = "board"

[chfl]
rounds = 4

[chfl.search]
mu = [0.1, 1.0]
rounds = 2
"""
    (tmp_path / "run.toml").write_text(text)
    run = load_run(tmp_path / "run.toml")
    proposal = propose(run, where="run.toml", purpose="Learn", days=1)
    assert proposal.signers == ("north", "south", "board")
    config = chfl.Config(**run.settings("chfl", ChflSection).model_dump(include=FIELDS))
    for rounds in (2, 4):
        for mu in (0.1, 1.0, config.mu):
            begun = variant_config(config, "chfl", {"mu": mu, "rounds": rounds})
            proposal.check_settings("chfl", begun.model_dump_json())
    begun = variant_config(config, "chfl", {"rounds": 5})
    with pytest.raises(ConfigError, match="rounds = 4 or 2"):
        proposal.check_settings("chfl", begun.model_dump_json())
