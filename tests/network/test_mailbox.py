"""Letters: what a place that carries them can do, and how each side finds out."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from letter_boxes import Looks, Post, ask, until
from processes import Answer, Question, credentials
from torch import ones

from dovetail.companions.mailbox.folder import Folder
from dovetail.companions.mailbox.journal import Journal
from dovetail.companions.mailbox.keys import GRACE_S, RENEW_S, LetterKeys, private_key, read_card
from dovetail.companions.mailbox.letters import SUITE, LetterLabel, read_letter, read_name, seal
from dovetail.companions.mailbox.places import MAX_NAMES, PlaceError
from dovetail.companions.mailbox.sending import MOST_ATTEMPTS
from dovetail.companions.mailbox.watching import LetterWatch
from dovetail.errors import MessageError, NetworkError, PartyError
from dovetail.network.renewal import Certified


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


# --- Sealing --------------------------------------------------------------------------------------


def _extract(salt: bytes, suite: bytes, label: bytes, ikm: bytes) -> bytes:
    """RFC 9180, 4: LabeledExtract."""
    return hmac.new(salt, b"HPKE-v1" + suite + label + ikm, hashlib.sha256).digest()


def _expand(prk: bytes, suite: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """RFC 9180, 4: LabeledExpand; of at most one block."""
    text = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info + b"\x01"
    return hmac.new(prk, text, hashlib.sha256).digest()[:length]


def rfc_9180(private: bytes, enc: bytes, info: bytes) -> tuple[bytes, bytes, bytes]:
    """Shared secret, key and base nonce of the receiver, base mode, by the RFC's formulas."""
    key = X25519PrivateKey.from_private_bytes(private)
    kem, hpke = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    dh = key.exchange(X25519PublicKey.from_public_bytes(enc))
    context = enc + key.public_key().public_bytes_raw()
    shared = _expand(_extract(b"", kem, b"eae_prk", dh), kem, b"shared_secret", context, 32)
    hashes = _extract(b"", hpke, b"psk_id_hash", b"") + _extract(b"", hpke, b"info_hash", info)
    secret = _extract(shared, hpke, b"secret", b"")
    whole = b"\x00" + hashes
    return (
        shared,
        _expand(secret, hpke, b"key", whole, 32),
        _expand(secret, hpke, b"base_nonce", whole, 12),
    )


def test_the_formulas_are_those_of_the_rfc_by_its_own_vector() -> None:
    # RFC 9180, A.2.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, base.
    shared, key, nonce = rfc_9180(
        bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb"),
        bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"),
        bytes.fromhex("4f6465206f6e2061204772656369616e2055726e"),
    )
    assert shared.hex() == "0bbe78490412b4bbea4812666f7916932b828bba79942424abb65244930d69a7"
    assert key.hex() == "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91"
    assert nonce.hex() == "5c4d98150661b848853b547f"


def test_what_is_sealed_opens_by_the_formulas_of_the_rfc() -> None:
    private = X25519PrivateKey.generate()
    sealed = SUITE.encrypt(b"gradients", private.public_key(), info=b"label")
    _, key, nonce = rfc_9180(private.private_bytes_raw(), sealed[:32], b"label")
    assert ChaCha20Poly1305(key).decrypt(nonce, sealed[32:], b"") == b"gradients"


def test_a_letter_tells_its_carrier_names_times_and_length_alone(post: Post) -> None:
    with Looks(post), post.drive() as mailbox:
        ask(mailbox)
    requests = [data for name, data in post.place.removed.items() if name.endswith(".q")]
    (letter,) = requests
    label = json.loads(letter[22 : 22 + int.from_bytes(letter[18:22], "big")])
    assert label.keys() == {
        *("sender", "receiver", "conversation", "number", "attempt", "kind", "sent", "key"),
        *("process", "answered", "num_bytes", "poll_s"),
    }
    assert b"Question" not in letter  # the message's type is sealed


def test_a_letter_to_another_is_not_opened(post: Post) -> None:
    to, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    label = LetterLabel("bank", "shop", "000001700000000-0123abcd", 1, 1, "q", 0.0)
    data = seal(label, b"body", to.public_key(), post.bank)
    letter = read_letter(data, label.name, "shop", post.shop)
    with pytest.raises(MessageError, match="sealed to another key"):
        letter.open([other])
    assert letter.open([other, to]) == b"body"


def test_no_byte_of_a_letter_changes_what_is_read(post: Post) -> None:
    key = X25519PrivateKey.generate()
    label = LetterLabel("bank", "shop", "000001700000000-0123abcd", 1, 1, "q", 0.0)
    data = seal(label, b"body", key.public_key(), post.bank)
    unnoticed = 0
    for index in range(len(data)):
        altered = bytearray(data)
        altered[index] ^= 1
        try:
            letter = read_letter(bytes(altered), label.name, "shop", post.shop)
        except MessageError:
            continue
        # One bit of a certificate says how many of its signature's are unused: nothing else.
        assert (letter.label.name, letter.open([key])) == (label.name, b"body")
        unnoticed += 1
    assert unnoticed <= 1


def test_a_letter_counts_under_its_own_name_and_in_its_own_folder_alone(post: Post) -> None:
    label = LetterLabel("bank", "shop", "000001700000000-0123abcd", 1, 1, "q", 0.0)
    data = seal(label, b"", X25519PrivateKey.generate().public_key(), post.bank)
    later = label.name.replace(".000001.", ".000002.")
    for name, receiver in ((later, "shop"), (label.name, "lab")):
        with pytest.raises(MessageError, match="not as it was written"):
            read_letter(data, name, receiver, post.shop)
    named = read_name(label.name)
    assert named is not None
    assert (named.sender, named.number, named.attempt, named.kind) == ("bank", 1, 1, "q")
    assert read_name("../../etc/passwd") is None


def test_a_card_that_another_has_signed_does_not_count(post: Post, tmp_path: Path) -> None:
    lab = Certified(credentials(post.authority, "lab"))
    keys = LetterKeys(tmp_path / "lab")
    keys.publish(post.place, lab)
    (tmp_path / "place" / "cards" / "lab").replace(tmp_path / "place" / "cards" / "shop")
    with pytest.raises(MessageError, match="the card of 'shop'"):
        read_card(post.place, "shop", post.bank)


# --- A driver and a party -------------------------------------------------------------------------


def test_letters_are_answered_once_and_nothing_stays(post: Post, tmp_path: Path) -> None:
    with Looks(post), post.drive() as mailbox:
        assert [each.handled for each in ask(mailbox, 3)] == [1, 2, 3]
    assert not [path for path in (tmp_path / "place" / "mail").rglob("*") if path.is_file()]
    assert post.told == {"bank": [], "shop": []}


def test_a_party_that_has_left_no_card_is_waited_for(post: Post, tmp_path: Path) -> None:
    (tmp_path / "place" / "cards" / "shop").unlink()
    with (
        post.drive() as mailbox,
        pytest.raises(NetworkError, match=r"'shop' has left no key in .* dovetail join --mailbox"),
    ):
        mailbox.wait(0.3)


class KilledError(BaseException):
    """Ends a process as a signal would: nothing behind it is done."""


@pytest.mark.parametrize("moment", ["park", "keep", "put", "remove", "done"])
def test_a_party_that_is_killed_at_any_moment_answers_each_number_once(
    post: Post, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    things: dict[str, object] = {"park": post.kept, "put": post.place, "remove": post.place}
    thing = things.get(moment, Journal)
    real, deadly = getattr(thing, moment), [2, 3]  # numbers at which it falls

    def fall(*given: object) -> None:
        of_shop = isinstance(threading.current_thread(), Looks)
        if of_shop and post.party.handled in deadly:
            deadly.remove(post.party.handled)
            raise KilledError
        real(*given)

    monkeypatch.setattr(thing, moment, fall)
    answers = []
    with post.drive() as mailbox:
        mailbox.wait(5)
        engine = mailbox.engine("run", timeout_s=20)
        for number in (1, 2, 3, 4):
            sent = engine.send({"shop": Question(ones(1))}, Answer)
            if number in deadly:
                with Looks(post) as falling:
                    falling.join(20)
                assert isinstance(falling.error, KilledError)
                post.start()
            with Looks(post):
                answers.append(sent.replies().or_raise()["shop"].handled)
    assert answers == [1, 2, 3, 4]
    assert not deadly


def test_what_is_half_done_is_told(post: Post) -> None:
    post.kept.half_done = "an alignment is under way"
    assert post.mailman.busy() == "an alignment is under way"


# --- A place that lies ----------------------------------------------------------------------------


def test_a_place_that_shows_an_answered_letter_again_is_told(post: Post) -> None:
    with Looks(post), post.drive() as mailbox:
        ask(mailbox)
        for name, data in list(post.place.removed.items()):
            post.place.place.put(name, data)
        ask(mailbox)
        until(
            lambda: post.printed("bank", "was shown again by") and post.printed("shop", "repeated")
        )
    assert "request 1 of 'bank' was shown again by" in post.refused[0]
    assert post.printed("bank", "answer 1 of 'shop' was shown again by")
    assert post.party.handled == 2


def test_letters_of_a_replaced_driver_are_refused(post: Post) -> None:
    with Looks(post):
        with post.drive() as mailbox:
            ask(mailbox)
        old = {name: data for name, data in post.place.removed.items() if name.endswith(".q")}
        time.sleep(0.01)
        with post.drive() as mailbox:
            ask(mailbox)
            for name, data in old.items():
                post.place.place.put(name, data)
            until(lambda: post.refused)
    assert "another has taken the place of" in post.refused[0]
    assert post.party.handled == 2


@pytest.mark.parametrize("kind", [".q", ".a"])
def test_a_place_that_alters_a_letter_is_told_and_the_letter_sent_again(
    post: Post, kind: str
) -> None:
    altered: set[str] = set()

    def alter(name: str, data: bytes) -> None:
        if name.endswith(kind) and not altered:
            altered.add(name)
            data = data[:-1] + bytes([data[-1] ^ 1])
        post.place.place.put(name, data)

    post.place.put_ = alter
    with Looks(post), post.drive() as mailbox:
        assert [each.handled for each in ask(mailbox, 2)] == [1, 2]
    who = "shop" if kind == ".q" else "bank"
    assert post.printed(
        who, "1 of 'bank' was altered" if kind == ".q" else "1 of 'shop' was altered"
    )
    assert post.printed("bank", "it is asked again")


@pytest.mark.parametrize("kind", [".q", ".a"])
def test_a_place_that_loses_a_letter_is_told_and_the_letter_sent_again(
    post: Post, kind: str
) -> None:
    lost: set[str] = set()

    def lose(name: str, data: bytes) -> None:
        if name.endswith(kind) and not lost:
            lost.add(name)
            return
        post.place.place.put(name, data)

    post.place.put_ = lose
    with Looks(post), post.drive() as mailbox:
        assert [each.handled for each in ask(mailbox, 2)] == [1, 2]
    assert post.printed("bank", "request 1 to 'shop', or its answer, is gone; it is asked again")


def test_a_letter_that_is_hidden_at_every_second_look_is_not_sent_again(post: Post) -> None:
    looks: list[str] = []

    def flicker(folder: str, names: list[str]) -> list[str]:
        if isinstance(threading.current_thread(), Looks):
            return names if len(looks) > 20 else []
        if folder == "mail/shop/":
            looks.append(folder)
            return names if len(looks) % 2 else []
        return names

    post.place.names_ = flicker
    with Looks(post), post.drive() as mailbox:
        ask(mailbox)
    assert not post.printed("bank", "is gone; it is asked again")


def test_a_place_that_holds_letters_back_is_told(tmp_path: Path) -> None:
    post = Post(tmp_path, late_s=0.2)
    began = time.monotonic()

    def hold_back(folder: str, names: list[str]) -> list[str]:
        is_shop = isinstance(threading.current_thread(), Looks)
        return [] if is_shop and time.monotonic() < began + 1 else names

    post.place.names_ = hold_back
    with Looks(post), post.drive() as mailbox:
        ask(mailbox)
    assert post.printed("shop", "request 1 of 'bank' was sent at")
    assert post.printed("shop", "held back on the way, or clocks differ")


def test_a_letter_that_is_torn_may_become_whole_or_is_told(tmp_path: Path) -> None:
    post = Post(tmp_path, torn_s=0.3)
    half: dict[str, bytes] = {}

    def tear(name: str, data: bytes) -> None:
        if name.endswith(".q") and len(half) < 1:
            half[name] = data
            data = data[: len(data) // 2]
        post.place.place.put(name, data)

    post.place.put_ = tear
    with Looks(post), post.drive() as mailbox:
        assert ask(mailbox)[0].handled == 1
    assert post.printed("shop", "request 1 of 'bank' is torn")
    post.told["shop"].clear()
    half.clear()
    with Looks(post), post.drive() as mailbox:

        def mend() -> None:
            until(lambda: half)
            ((name, data),) = half.items()
            post.place.place.put(name, data)

        thread = threading.Thread(target=mend)
        thread.start()
        assert ask(mailbox)[0].handled == 2
        thread.join()
    assert not post.printed("shop", "torn")


def test_a_place_that_alters_every_answer_fails_the_question_by_name(post: Post) -> None:
    def alter(name: str, data: bytes) -> None:
        post.place.place.put(name, data[:-1] + b"\0" if name.endswith(".a") else data)

    post.place.put_ = alter
    with Looks(post), post.drive() as mailbox:
        with pytest.raises(PartyError, match=f"left in .* {MOST_ATTEMPTS} times, and no answer"):
            ask(mailbox)
        post.place.put_ = None
        assert ask(mailbox)[0].handled == 2  # and the next is answered: the number was given up
    assert post.party.handled == 2


def test_a_site_that_is_older_than_the_run_answers_no_more(post: Post, tmp_path: Path) -> None:
    with post.drive() as mailbox:
        with Looks(post):
            ask(mailbox)
            journal = tmp_path / "shop" / "mailbox"
            backup = {path.name: path.read_bytes() for path in journal.iterdir()}
            ask(mailbox)
        for path in journal.iterdir():
            path.unlink()
        for name, data in backup.items():
            (journal / name).write_bytes(data)
        post.start()
        with Looks(post), pytest.raises(PartyError, match="site is older than this run"):
            ask(mailbox)


def test_a_driver_that_was_not_named_is_not_answered(post: Post) -> None:
    other = Certified(credentials(post.authority, "eve", listens=True))
    label = LetterLabel("eve", "shop", "000001700000000-0123abcd", 1, 1, "q", 0.0)
    key = read_card(post.place, "shop", post.bank)
    assert key is not None
    post.place.put(label.place, seal(label, b"", key, other))
    assert post.mailman.look() == 0
    assert post.printed("shop", "of 'eve' lies in")


def test_a_party_that_may_not_drive_is_not_answered(post: Post) -> None:
    """Its certificate says that it joins; the name alone makes no driver."""
    false = Certified(credentials(post.authority, "bank", listens=False))
    label = LetterLabel("bank", "shop", "000001700000000-0123abcd", 1, 1, "q", 0.0)
    key = read_card(post.place, "shop", post.bank)
    assert key is not None
    post.place.put(label.place, seal(label, b"", key, false))
    assert post.mailman.look() == 0
    assert "may join and not drive" in post.refused[0]


# --- A folder -------------------------------------------------------------------------------------


def test_a_folder_follows_no_links_and_waits_for_no_pipe(tmp_path: Path) -> None:
    index = Folder(tmp_path)
    (tmp_path / "secret").write_bytes(b"key")
    index.put("mail/shop/a", b"letter")
    (tmp_path / "mail" / "shop" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "mail" / "shop" / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(PlaceError):
            index.get(f"mail/shop/{name}", 100)
    assert index.get("mail/shop/a", 100) == b"letter"
    with pytest.raises(PlaceError, match="6 bytes; at most 5"):
        index.get("mail/shop/a", 5)


def test_files_have_the_rights_of_the_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    before = os.umask(0o077)
    try:
        Folder(shared).put("mail/shop/a", b"letter")
    finally:
        os.umask(before)
    rights = [(shared / name).stat().st_mode & 0o7777 for name in ("mail", "mail/shop/a")]
    assert rights == [0o2770, 0o660]


def test_a_folder_that_is_flooded_is_listed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_NAMES >= 1000
    monkeypatch.setattr("dovetail.companions.mailbox.folder.MAX_NAMES", 10)
    index = Folder(tmp_path)
    for number in range(12):
        index.put(f"mail/shop/{number}", b"")
    assert len(index.names("mail/shop/")) == 10
    assert index.names("mail/nobody/") == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    index = Folder(tmp_path / "drive")
    (tmp_path / "drive").rmdir()
    with pytest.raises(PlaceError, match="mount it again"):
        index.names("mail/shop/")


# --- A key that is stolen later -------------------------------------------------------------------


def opens(data: bytes, keys: Sequence[X25519PrivateKey], post: Post) -> bool:
    """Whether somebody with these keys reads a request to the shop."""
    label = json.loads(data[22 : 22 + int.from_bytes(data[18:22], "big")])
    name = f"bank.{label['conversation']}.{label['number']:06d}.{label['attempt']}.q"
    try:
        read_letter(data, name, "shop", post.shop).open(keys)
    except MessageError:
        return False
    return True


def keys_in(folder: Path) -> list[X25519PrivateKey]:
    """Every X25519 key that a site's files hold, in hexadecimal."""
    text = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [private_key(each.decode()) for each in set(re.findall(rb"\b[0-9a-f]{64}\b", text))]


def test_letters_that_were_answered_open_with_no_key_that_is_left(post: Post) -> None:
    now = [time.time()]
    sent: list[bytes] = []

    def keep(name: str, data: bytes) -> None:
        if name.endswith(".q"):
            sent.append(data)
        post.place.place.put(name, data)

    post.place.put_ = keep
    site = post.folder / "shop" / "mailbox"
    with Looks(post), post.drive() as mailbox:
        ask(mailbox, 3)
    assert [opens(each, keys_in(site), post) for each in sent] == [True, False, False]
    keys = LetterKeys(site, clock=lambda: now[0])
    before = keys.private
    now[0] += RENEW_S + 1
    assert keys.renew()
    assert keys.private[1:] == before  # for letters that were under way
    now[0] += GRACE_S + 1
    assert not keys.renew()
    assert len(keys.private) == 1
    assert [opens(each, keys_in(site), post) for each in sent] == [False, False, False]
    assert [opens(each, before, post) for each in sent] == [True, False, False]  # they do open


def test_a_letter_that_was_under_way_when_its_key_was_forgotten_is_sent_again(post: Post) -> None:
    with post.drive() as mailbox:
        mailbox.wait(5)
        engine = mailbox.engine("run", timeout_s=20)
        sent = engine.send({"shop": Question(ones(1))}, Answer)
        until(lambda: post.place.names("mail/shop/"))
        (post.folder / "shop" / "mailbox" / "keys.json").unlink()
        post.start()  # with another key, whose card it leaves
        with Looks(post):
            assert sent.replies().or_raise()["shop"].handled == 1
    assert post.printed("shop", "is sealed to another key than 'shop' has now")


def test_a_place_that_shows_an_old_card_is_not_believed(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (post.folder / "place" / "cards" / "shop").read_bytes()
    month = time.time() + 30 * 86400
    monkeypatch.setattr(time, "time", lambda: month)
    with pytest.raises(MessageError, match=r"the card of 'shop' .* is 30 days old"):
        read_card(post.place, "shop", post.bank)
    keys = LetterKeys(post.folder / "shop" / "mailbox", clock=lambda: month)
    assert keys.renew()
    keys.publish(post.place, post.shop)
    assert read_card(post.place, "shop", post.bank) is not None
    post.place.place.put("cards/shop", old)
    with pytest.raises(MessageError, match="or an old card is shown"):
        read_card(post.place, "shop", post.bank)


def test_a_folder_that_was_made_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere, mail = tmp_path / "elsewhere", tmp_path / "place" / "mail"
    elsewhere.mkdir()
    mail.mkdir(parents=True)
    (elsewhere / "a").write_bytes(b"none of its business")
    (mail / "bank").symlink_to(elsewhere)
    place = Folder(tmp_path / "place")
    for use in (
        lambda: place.put("mail/bank/b", b"x"),
        lambda: place.get("mail/bank/a", 100),
        lambda: place.names("mail/bank/"),
        lambda: place.remove("mail/bank/a"),
    ):
        with pytest.raises(PlaceError, match="mail/bank is a link that somebody has put there"):
            use()
    assert [path.name for path in elsewhere.iterdir()] == ["a"]


def test_since_when_a_letter_is_torn_outlives_the_process(tmp_path: Path) -> None:
    def is_torn(torn_s: float) -> bool:
        return LetterWatch("here", print, torn_s=torn_s, kept=tmp_path / "torn.json").is_torn(
            "a letter"
        )

    assert not is_torn(3600.0)
    time.sleep(0.02)
    assert is_torn(0.01)
    assert not is_torn(3600.0)  # another of that name
