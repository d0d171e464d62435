"""Bearer keys: who is let in, who is not, and what stands in the file."""

import json
import logging
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, BadArgument, BadKeys, BadName, NotFound, Unauthorized
from forkpoint.server.http.keys import (
    ROLES,
    ApiKey,
    Keyring,
    Keys,
    KeySource,
    OneKey,
    add_key,
    change_role,
    default_keys_file,
    list_keys,
    revoke_key,
)
from forkpoint.testing.clock import ManualClock

unix = pytest.mark.skipif(os.name == "nt", reason="Windows has neither modes nor such signals")
no_root = pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def edit(file: Path, change: Callable[[Any], None]) -> None:
    """Changes a file as somebody with an editor would."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


# A key, and what is like it.


def test_a_key_says_whose_it_is(file: Path) -> None:
    clock = ManualClock()
    ann = add_key(file, "ann", "acme", clock=clock)
    bob = add_key(file, "bob", clock=clock)
    ring = Keyring([Keys(file)])
    assert ring.check(f"Bearer {ann.token}") == ann.key
    assert ring.check(f"Bearer {bob.token}") == bob.key
    assert (ann.key.name, ann.key.tenant, bob.key.tenant) == ("ann", "acme", "default")
    assert ann.key.created is not None
    assert bob.key.created is not None
    assert ann.key.created < bob.key.created <= clock()


def test_a_key_is_an_id_and_256_random_bits(file: Path) -> None:
    made = [add_key(file, f"key{number}") for number in range(5)]
    for one in made:
        assert re.fullmatch(rf"fp_{one.key.id}_[A-Za-z0-9_-]{{43}}", one.token)
        assert re.fullmatch(r"[a-z2-9]{8}", one.key.id)
    assert len({one.token[12:] for one in made}) == len({one.key.id for one in made}) == 5


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  ", " \tBearer"])
def test_the_scheme_is_bearer_in_any_case(file: Path, scheme: str) -> None:
    made = add_key(file, "ann")
    assert Keyring([Keys(file)]).check(f"{scheme} {made.token} ") == made.key


WRONG: dict[str, Callable[[str], str]] = {
    "the id alone": lambda token: token[:11],
    "no secret": lambda token: token[:12],
    "another id": lambda token: "fp_22222222" + token[11:],
    "another secret": lambda token: token[:12] + "A" * 43,
    "one character is another": lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
    "one character less": lambda token: token[:-1],
    "one character more": lambda token: token + "A",
    "in capitals": str.upper,
    "in small letters": lambda token: token.lower() if token != token.lower() else token.upper(),
    "another prefix": lambda token: "FP_" + token[3:],
    "without its prefix": lambda token: token[3:],
    "a blank in it": lambda token: token[:20] + " " + token[20:],
    "a tab in it": lambda token: token[:20] + "\t" + token[20:],
    "a newline after it": lambda token: token + "\n",
    "a zero byte after it": lambda token: token + "\0",
    "twice": lambda token: f"{token} {token}",
    "after a comma": lambda token: f"x,{token}",
    "in quotes": lambda token: f'"{token}"',
    "not ASCII": lambda token: token[:-1] + "é",
    "other letters that look alike": lambda token: token.replace("f", "\u0192", 1),
    "half a character": lambda token: token + "\udcff",
    "very long": lambda token: token + "A" * 1_000_000,
    "very long, and nothing of a key": lambda _: "A" * 1_000_000,
    "nothing": lambda _: "",
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_exactly_the_key_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    token = add_key(file, "ann").token
    monkeypatch.setenv("SERVER_KEY", token)
    for ring in (Keyring([Keys(file)]), Keyring([OneKey.from_environment("SERVER_KEY")])):
        assert ring.check(f"Bearer {token}").tenant == "default"
        with pytest.raises(Unauthorized) as refused:
            ring.check(f"Bearer {change(token)}")
        assert token[12:] not in str(refused.value)


def test_an_id_that_exists_is_refused_in_the_same_words_as_one_that_does_not(file: Path) -> None:
    made = add_key(file, "ann")
    ring = Keyring([Keys(file)])
    words = set()
    for id in (made.key.id, "22222222"):
        with pytest.raises(Unauthorized) as refused:
            ring.check(f"Bearer fp_{id}_{'A' * 43}")
        words.add(str(refused.value))
    assert len(words) == 1


def test_a_digest_is_compared_in_constant_time_also_where_there_is_no_such_id(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = add_key(file, "ann")
    keys = Keys(file)
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    for token in (made.token, made.token[:12] + "A" * 43, f"fp_22222222_{'A' * 43}", "x", ""):
        keys.find(token)
    assert compared == [(32, 32)] * 5


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer:{}", "Bearer={}", "Token {}"]
)
def test_a_header_that_has_no_key_says_what_to_send_and_tells_nothing(file: Path, header: str | None) -> None:
    token = add_key(file, "ann").token
    with pytest.raises(Unauthorized) as refused:
        Keyring([Keys(file)]).check(None if header is None else header.format(token))
    assert "Authorization: Bearer KEY" in str(refused.value)
    assert token[12:] not in str(refused.value)


# What is kept, and what is shown.


def test_the_file_never_holds_the_secret(file: Path) -> None:
    made = add_key(file, "ann")
    text = file.read_text()
    assert made.token[12:] not in text
    assert json.loads(text)["keys"][0].keys() == {"id", "name", "tenant", "hash", "created", "role"}
    for other in file.parent.iterdir():
        assert made.token[12:] not in other.read_text()


def test_nothing_that_is_printed_shows_a_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = add_key(file, "ann")
    monkeypatch.setenv("SERVER_KEY", made.token)
    one = OneKey.from_environment("SERVER_KEY")
    keys = Keys(file)
    for thing in (made, one, keys, Keyring([one, keys]), made.key, [made], vars(keys), vars(one)):
        assert made.token[12:] not in f"{thing!r} {thing!s}"


@unix
def test_a_new_file_is_its_owners_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    file = tmp_path / "config" / "forkpoint" / "keys.json"
    before = os.umask(0)
    try:
        add_key(file, "ann")
        add_key(file, "bob")
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {
        "keys.json": 0o600,
        "keys.json.lock": 0o600,
    }
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@unix
def test_a_group_that_may_read_the_file_still_may_and_others_never(file: Path) -> None:
    add_key(file, "ann")
    file.chmod(0o666)
    add_key(file, "bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@unix
def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    link, real = tmp_path / "keys.json", tmp_path / "elsewhere" / "real.json"
    link.symlink_to(real)
    made = add_key(link, "ann")
    assert link.is_symlink()
    assert Keys(link).find(made.token) == Keys(real).find(made.token) == made.key


# What a key says about its holder's lists.


def test_a_key_may_say_what_counts_of_the_lists_that_come_with_it(file: Path) -> None:
    made = {history: add_key(file, str(history), history=history) for history in ("full", "latest", None)}
    ring = Keyring([Keys(file)])
    for history, one in made.items():
        assert ring.check(f"Bearer {one.token}").history == one.key.history == history
    assert [key.history for key in list_keys(file)] == ["full", "latest", None]
    assert revoke_key(file, "full").history == "full"
    assert [entry.get("history", "-") for entry in json.loads(file.read_text())["keys"]] == ["latest", "-"]


def test_a_file_without_it_stays_as_it_was_and_is_read(file: Path) -> None:
    made = add_key(file, "ann")
    before = file.read_bytes()
    add_key(file, "bob", history="full")
    revoke_key(file, "bob")
    assert file.read_bytes() == before
    edit(file, lambda document: document["keys"][0].update(history=None))
    assert Keys(file).find(made.token) == made.key


def test_a_key_says_what_it_may_do_and_a_new_one_may_use(file: Path) -> None:
    made = {role: add_key(file, role, role=role) for role in ROLES}
    plain = add_key(file, "plain")
    ring = Keyring([Keys(file)])
    for role, one in made.items():
        assert ring.check(f"Bearer {one.token}").role == one.key.role == role
    assert ring.check(f"Bearer {plain.token}").role == plain.key.role == "use"
    assert [key.role for key in list_keys(file)] == ["read", "use", "operate", "use"]


def test_a_key_that_was_made_before_there_were_roles_may_do_what_it_could(file: Path) -> None:
    old = add_key(file, "ann")
    edit(file, lambda document: document["keys"][0].pop("role"))
    add_key(file, "bob")
    assert Keyring([Keys(file)]).check(f"Bearer {old.token}").role == "operate"
    assert [entry.get("role") for entry in json.loads(file.read_text())["keys"]] == [None, "use"]


@pytest.mark.parametrize("how", ["id", "name", "key"])
def test_a_key_gets_another_role_and_stays_the_same_key(file: Path, how: str) -> None:
    made, other = add_key(file, "ann", "acme", history="full"), add_key(file, "bob")
    named = {"id": made.key.id, "name": "ann", "key": made.token}[how]
    assert change_role(file, named, "read") == replace(made.key, role="read")
    assert Keys(file).find(made.token) == replace(made.key, role="read")
    assert list_keys(file) == (replace(made.key, role="read"), other.key)


def test_a_role_that_there_is_not_is_refused_before_anything_is_written(file: Path) -> None:
    with pytest.raises(BadArgument, match="read, use, operate"):
        add_key(file, "ann", role="root")  # type: ignore[arg-type]
    assert not file.exists()
    add_key(file, "ann")
    with pytest.raises(BadArgument, match="read, use, operate"):
        change_role(file, "ann", "root")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        change_role(file, "bob", "read")
    assert [key.role for key in list_keys(file)] == ["use"]


def test_a_history_that_there_is_not_is_refused_before_anything_is_written(file: Path) -> None:
    with pytest.raises(BadArgument, match="neither latest nor full"):
        add_key(file, "ann", history="all")  # type: ignore[arg-type]
    assert not file.exists()


def test_a_key_of_the_environment_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "a" * 32)
    found = OneKey.from_environment("SERVER_KEY").find("a" * 32)
    assert found is not None
    assert found.history is None


# Names and ids.


def test_a_name_is_given_once(file: Path) -> None:
    add_key(file, "ann")
    before = file.read_bytes()
    with pytest.raises(AlreadyExists):
        add_key(file, "ann", "other")
    assert file.read_bytes() == before
    assert add_key(file, "Ann").key.name == "Ann"


def test_a_name_that_is_the_id_of_another_key_is_taken(file: Path) -> None:
    with pytest.raises(AlreadyExists):
        add_key(file, add_key(file, "ann").key.id)


def test_a_new_id_is_none_that_is_a_key_or_a_name_already(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = add_key(file, "ann").key.id
    add_key(file, "aaaaaaaa")
    drawn = iter(first + "aaaaaaaa" + "bbbbbbbb" + "cccccccc")
    monkeypatch.setattr("secrets.choice", lambda _: next(drawn))
    assert add_key(file, "bbbbbbbb").key.id == "cccccccc"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a" * 129, "a\n"])
def test_names_and_tenants_are_those_that_the_store_takes(file: Path, name: str) -> None:
    with pytest.raises(BadName):
        add_key(file, name)
    with pytest.raises(BadName):
        add_key(file, "ann", name)
    with pytest.raises(BadName):
        OneKey.from_environment("HOME", name)
    assert not file.exists()


def test_a_key_is_not_taken_for_a_name_and_not_repeated(file: Path) -> None:
    token = add_key(file, "ann").token
    with pytest.raises(BadArgument) as refused:
        add_key(file, token)
    assert token[12:] not in str(refused.value)


# Revoking.


@pytest.mark.parametrize("how", ["id", "name", "token"])
def test_a_key_is_revoked_by_its_id_its_name_or_as_a_whole(file: Path, how: str) -> None:
    ann, bob = add_key(file, "ann"), add_key(file, "bob")
    given = {"id": ann.key.id, "name": "ann", "token": ann.token}[how]
    assert revoke_key(file, given) == ann.key
    assert list_keys(file) == (bob.key,)
    assert Keys(file).find(ann.token) is None
    with pytest.raises(NotFound, check=NotFound.no_such_key.made) as missing:
        revoke_key(file, given)
    assert ann.token[12:] not in str(missing.value)


def test_a_revoked_name_can_be_given_again_and_the_old_key_stays_refused(file: Path) -> None:
    old = add_key(file, "ann")
    revoke_key(file, "ann")
    new = add_key(file, "ann")
    keys = Keys(file)
    assert keys.find(old.token) is None
    assert keys.find(new.token) == new.key


def test_to_revoke_or_list_makes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "keys.json"
    assert list_keys(file) == ()
    with pytest.raises(NotFound, check=NotFound.no_such_key.made):
        revoke_key(file, "ann")
    assert list(tmp_path.iterdir()) == []


def test_open_keys_see_what_was_added_and_revoked_within_a_second(file: Path) -> None:
    clock = ManualClock()
    ann = add_key(file, "ann")
    keys = Keys(file, clock=clock)
    bob = add_key(file, "bob")
    revoke_key(file, "ann")
    assert keys.find(ann.token) == ann.key, "it looks at the file once a second, and not for every call"
    clock.pass_by(1)
    assert keys.find(ann.token) is None
    assert keys.find(bob.token) == bob.key
    assert keys.count == 1
    revoke_key(file, "bob")
    clock.pass_by(1)
    assert keys.count == 0
    with pytest.raises(Unauthorized):
        Keyring([keys]).check(f"Bearer {bob.token}")


def test_a_change_of_the_same_size_at_the_same_time_is_seen(file: Path) -> None:
    clock = ManualClock()
    ann = add_key(file, "ann")
    keys = Keys(file, clock=clock)
    before, text = file.stat(), file.read_text()
    hash = json.loads(text)["keys"][0]["hash"]
    file.write_text(text.replace(hash, hash[::-1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.pass_by(1)
    assert keys.find(ann.token) is None


def test_a_clock_that_was_set_back_does_not_keep_a_revoked_key_alive(file: Path) -> None:
    clock = ManualClock()
    ann = add_key(file, "ann")
    keys = Keys(file, clock=clock)
    revoke_key(file, "ann")
    clock.pass_by(-3600)
    assert keys.find(ann.token) is None


# A file that is not as it should be.


BROKEN: dict[str, tuple[Callable[[Any], None] | bytes, str]] = {
    "empty": (b"", "truncated"),
    "cut off": (b'{"version": 1, "keys": [', "truncated"),
    "no JSON": (b"ann = 1", "malformed"),
    "not UTF-8": (b'{"version": 1, "keys": [], "\xff": 1}', "UTF-8"),
    "a list": (b"[]", "object"),
    "deep": (b"[" * 100_000, "does not hold what it should"),
    "without a version": (lambda document: document.pop("version"), "version"),
    "of a later version": (lambda document: document.update(version=2), "version 2"),
    "without keys": (lambda document: document.pop("keys"), "keys"),
    "a field that is not known": (lambda document: document["keys"][0].update(tennant="x"), "tennant"),
    "a field that is missing": (lambda document: document["keys"][0].pop("tenant"), "tenant"),
    "a hash that is a number": (lambda document: document["keys"][0].update(hash=1), "hash"),
    "a hash that is short": (lambda document: document["keys"][0].update(hash="ab"), "key 1 of 2 in it has a hash"),
    "a hash with blanks": (lambda document: document["keys"][1].update(hash=" " * 64), "key 2 of 2 in it has a hash"),
    "an id that is none": (lambda document: document["keys"][0].update(id="ANN"), "id"),
    "a tenant that is none": (lambda document: document["keys"][0].update(tenant="a b"), "tenant"),
    "a name that is none": (lambda document: document["keys"][0].update(name=""), "name"),
    "a history that is none": (lambda document: document["keys"][1].update(history="all"), "key 2 of 2"),
    "a role that is none": (lambda document: document["keys"][1].update(role="root"), "key 2 of 2"),
    "a role that is a number": (lambda document: document["keys"][0].update(role=1), "role"),
    "a history that is a number": (lambda document: document["keys"][0].update(history=1), "history"),
    "the same key twice": (lambda document: document["keys"].append(document["keys"][0]), "key 3 of 3"),
    "two with one name": (lambda document: document["keys"][0].update(name="bob"), "another key has too"),
    "a name that is another's id": (
        lambda document: document["keys"][0].update(name=document["keys"][1]["id"]),
        "another key has too",
    ),
    "too large": (b" " * (16 * 1024 * 1024 + 1), "more than 16,777,216 bytes"),
}


def break_it(file: Path, change: Callable[[Any], None] | bytes) -> None:
    if isinstance(change, bytes):
        file.write_bytes(change)
    else:
        edit(file, change)


@pytest.mark.parametrize(("change", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_by_everybody_with_the_reason_and_left_as_it_is(
    file: Path, change: Any, said: str
) -> None:
    add_key(file, "ann")
    add_key(file, "bob")
    break_it(file, change)
    before = file.read_bytes()
    attempts: list[Callable[[], object]] = [
        lambda: Keys(file),
        lambda: list_keys(file),
        lambda: add_key(file, "new"),
        lambda: revoke_key(file, "ann"),
    ]
    for attempt in attempts:
        with pytest.raises(BadKeys) as refused:
            attempt()
        assert said in refused.value.why
        assert str(file) in str(refused.value)
        assert "Restore or repair it" in str(refused.value)
    assert file.read_bytes() == before


def test_a_secret_that_somebody_put_into_the_file_is_not_told(file: Path) -> None:
    token = add_key(file, "ann").token
    for field in ("id", "name", "tenant", "hash", "created", "history", "role"):
        whole = file.read_bytes()
        edit(file, lambda document, field=field: document["keys"][0].update({field: f"{token} "}))  # type: ignore[misc]
        with pytest.raises(BadKeys) as refused:
            Keys(file)
        assert token[12:] not in str(refused.value)
        file.write_bytes(whole)


def test_keys_cannot_be_opened_where_no_file_is(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="it is not there"):
        Keys(tmp_path / "keys.json")
    with pytest.raises(BadKeys, match="it is not a file"):
        Keys(tmp_path)


@unix
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadKeys, match="it is not a file"):
        Keys(tmp_path / "pipe")


def test_a_file_where_a_folder_should_be_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(BadKeys, match="cannot be"):
        add_key(tmp_path / "taken" / "keys.json", "ann")
    with pytest.raises(BadKeys, match="cannot be read"):
        list_keys(tmp_path / "taken" / "keys.json")


@no_root
def test_a_file_that_may_not_be_read_or_written_is_an_error_of_ours(file: Path) -> None:
    add_key(file, "ann")
    file.chmod(0)
    with pytest.raises(BadKeys, match="Permission denied"):
        Keys(file)
    file.chmod(0o600)
    file.parent.chmod(0o500)
    try:
        with pytest.raises(BadKeys, match="Permission denied"):
            add_key(file, "bob")
    finally:
        file.parent.chmod(0o700)
    assert [key.name for key in list_keys(file)] == ["ann"]


@pytest.mark.parametrize("change", [b"{", b"", None], ids=["broken", "empty", "deleted"])
def test_open_keys_outlive_their_file_with_one_warning(
    file: Path, change: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    ann = add_key(file, "ann")
    keys = Keys(file, clock=clock)
    good = file.read_bytes()
    for times in (1, 2):  # it may go wrong again
        file.unlink() if change is None else file.write_bytes(change)
        for _ in range(3):
            clock.pass_by(1)
            assert keys.find(ann.token) == ann.key
            assert keys.find("fp_22222222_x") is None
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == times
        assert str(file) in warnings[-1].getMessage()
        assert ann.token[12:] not in caplog.text
        file.write_bytes(good)
        clock.pass_by(1)
        assert keys.find(ann.token) == ann.key
    revoke_key(file, "ann")
    clock.pass_by(1)
    assert keys.find(ann.token) is None


# Several at once, and one that is killed.


ADD = """
import sys
from forkpoint.server.http.keys import add_key
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    add_key(sys.argv[1], f"{sys.argv[2]}{number}")
"""


def test_keys_that_processes_add_at_once_are_all_there(file: Path) -> None:
    adding = [
        subprocess.Popen([sys.executable, "-c", ADD, str(file), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in "abc"
    ]
    for process in adding:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in adding:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in adding:
        with process:
            assert process.wait() == 0
    assert sorted(key.name for key in list_keys(file)) == sorted(f"{name}{n}" for name in "abc" for n in range(20))
    assert sorted(path.name for path in file.parent.iterdir()) == ["keys.json", "keys.json.lock"]


@unix
def test_a_process_that_is_killed_before_its_file_takes_the_place_has_changed_nothing(file: Path) -> None:
    ann = add_key(file, "ann")
    before = file.read_bytes()
    killed = "import os, signal; os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n" + ADD
    done = subprocess.run([sys.executable, "-c", killed, str(file), "new"], input=b"go\n", check=False)
    assert done.returncode == -9
    assert file.read_bytes() == before
    (left,) = file.parent.glob(".keys.json-new-*")
    assert "new0" in left.read_text(), "it was killed when all was written"
    bob = add_key(file, "bob")  # nobody holds the lock, and what was left behind is gone
    assert list_keys(file) == (ann.key, bob.key)
    assert not list(file.parent.glob(".keys.json-new-*"))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = add_key(file, "ann")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadKeys, match="No space left"):
        add_key(file, "bob")
    assert list_keys(file) == (ann.key,)
    assert sorted(path.name for path in file.parent.iterdir()) == ["keys.json", "keys.json.lock"]


# The environment, and several sources.


def test_a_key_of_the_environment_is_accepted_for_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sixteen-letters!\n")
    key = Keyring([OneKey.from_environment("SERVER_KEY", "acme")]).check("Bearer sixteen-letters!")
    assert key == ApiKey("env:SERVER_KEY", "SERVER_KEY", "acme")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "not set"),
        ("", "empty"),
        (" \n", "empty"),
        ("fifteen-letters", "15 characters"),
        ("sixteen letters!", "blanks"),
        ("sixteen-letters-é", "ASCII"),
    ],
)
def test_a_variable_that_is_no_key_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, why: str
) -> None:
    monkeypatch.delenv("SERVER_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SERVER_KEY", value)
    with pytest.raises(BadKeys, check=BadKeys.bad_key_variable.made, match=why) as refused:
        OneKey.from_environment("SERVER_KEY")
    assert "SERVER_KEY" in str(refused.value)
    assert not value or not value.strip() or value not in str(refused.value)


def test_each_of_several_sources_lets_its_own_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sixteen-letters!")
    ann, bob = add_key(tmp_path / "one.json", "ann", "a"), add_key(tmp_path / "two.json", "bob", "b")
    sources: list[KeySource] = [
        Keys(tmp_path / "one.json"),
        OneKey.from_environment("SERVER_KEY", "c"),
        Keys(tmp_path / "two.json"),
    ]
    ring = Keyring(sources)
    tenants = [ring.check(f"Bearer {token}").tenant for token in (ann.token, bob.token, "sixteen-letters!")]
    assert tenants == ["a", "b", "c"]
    with pytest.raises(Unauthorized):
        Keyring([]).check(f"Bearer {ann.token}")


def test_the_default_file_is_among_the_users_settings_unless_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPOINT_KEYS", " ")
    assert default_keys_file().name == "keys.json"
    assert default_keys_file().parent.name == "forkpoint"
    monkeypatch.setenv("FORKPOINT_KEYS", str(tmp_path / "mine.json"))
    assert default_keys_file() == tmp_path / "mine.json"


def test_keys_load_no_web_framework() -> None:
    web = ("fastapi", "starlette", "uvicorn", "pydantic", "httpx", "openai", "anthropic")
    code = f"import sys, forkpoint.server.http.keys; print([name for name in {web} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
