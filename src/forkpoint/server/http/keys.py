"""Bearer keys: who may call a server, for which tenant, and what they may do there.

A key is ``fp_ID_SECRET``. It is shown once, when it is made, and kept nowhere: the file has its SHA-256. That is enough
here. A slow hash protects passwords, which people choose and others can guess; 256 random bits nobody guesses.

`Keyring` is what a server asks. It looks into any number of sources: files (`Keys`), single keys from the environment
(`OneKey`), and the store (`stored_keys`).
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.clock import Clock, system_clock
from forkpoint.errors import AlreadyExists, BadArgument, BadKeys, BadName, Forbidden, NotFound, Unauthorized
from forkpoint.server.settings import History
from forkpoint.store import DEFAULT_TENANT, check_name
from forkpoint.system.durable_file import replace_file
from forkpoint.system.file_lock import FileLock

Role: TypeAlias = Literal["read", "use", "operate"]
"""What a key may do. *read* sees and verifies. *use* also runs, forks, rewinds and approves. *operate* also deletes."""

ROLES: tuple[Role, ...] = get_args(Role)
"""The roles, in order: each may do whatever those before it may."""

VERSION = 1
"""The version of the file that is written."""

SHORTEST = 16
"""How many characters a key of the environment has at least."""

_PREFIX = "fp_"
_ID = re.compile(r"[a-z2-9]{8}")
_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # none that is taken for another
_HASH = re.compile(r"[0-9a-f]{64}")
_HISTORIES: dict[str | None, History | None] = {None: None, **{one: one for one in get_args(History)}}
_SENDABLE = re.compile(r"[!-~]+")
_LARGEST = 16 * 1024 * 1024  # bytes of a file, some 70,000 keys
_FRESH = 1_000_000  # microseconds that a file is believed without another look
_PATIENCE = 10.0  # seconds that a change waits for another

_log = logging.getLogger("forkpoint")


class ApiKey(Struct, frozen=True):
    """What is known of a key: all but its secret."""

    id: str
    name: str
    tenant: str
    created: int | None = None  # None: nobody knows
    history: History | None = None  # what the lists in its chat completions say, where nothing else says it
    role: Role = "operate"  # of a key from the environment, and of a key that was made before there were roles

    def check_role(self, needed: Role) -> None:
        """Raises `Forbidden` unless the key may do what needs this role."""
        if ROLES.index(self.role) < ROLES.index(needed):
            raise Forbidden(self.name, self.role, needed)


class NewKey(Struct, frozen=True):
    """A key that was just made, with the text that its owner sends. It is not to be had again."""

    key: ApiKey
    token: str

    def __repr__(self) -> str:
        return f"NewKey(key={self.key!r}, token=...)"


class KeyEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key as it stands in the file. What came later has a default and is left out: most files stay as they were."""

    id: str
    name: str
    tenant: str
    hash: str  # SHA-256 of the whole key, in hex
    created: int
    history: str | None = None  # a `History`, which `_flaw` sees to: msgspec's own words would repeat what stands there
    role: str | None = (
        None  # a `Role`, likewise; None: the key was made before there were roles, and could do everything
    )


Change: TypeAlias = Callable[[KeyEntry], KeyEntry | None]
"""What is made of a key that is kept: another entry, or None to remove it."""


# Who is calling.


class KeySource(Protocol):
    """Where keys come from."""

    def find(self, token: str) -> ApiKey | None:
        """The key that is this text, if there is one. How long it takes does not depend on what is right in it."""
        ...


class Keyring:
    """Says who is calling. Whoever has no key of its sources is refused, also if these have none at all."""

    def __init__(self, sources: Iterable[KeySource]) -> None:
        self.sources = tuple(sources)

    def check(self, authorization: str | None) -> ApiKey:
        """The key that a call came with, from its header ``Authorization``. Raises `Unauthorized`.

        Nothing of the header is in the error: also what is no key here may be somebody's secret.
        """
        if authorization is None:
            raise Unauthorized("none was sent")
        scheme, _, token = authorization.strip(" \t").partition(" ")
        token = token.strip(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("the header `Authorization` does not have the form `Bearer KEY`")
        found = [source.find(token) for source in self.sources]  # all are asked, whoever has it
        for key in found:
            if key is not None:
                return key
        raise Unauthorized("the one that was sent is not known here, or was revoked")


class OneKey:
    """A key that is not in a file. Only its hash is held."""

    def __init__(self, token: str, key: ApiKey) -> None:
        self._digest = _digest(token)
        self._key = key

    @classmethod
    def from_environment(cls, variable: str, tenant: str = DEFAULT_TENANT) -> "OneKey":
        """The key that an environment variable holds. Raises `BadKeys` if it is not a key.

        A variable that was named and is empty is an error: a server must not stand open because a secret is missing.
        """
        check_name("tenant", tenant)
        value = os.environ.get(variable)
        if value is None:
            raise BadKeys.bad_key_variable(variable, "it is not set")
        token = value.strip()  # a file's last newline, most often, and no client could send it
        if not token:
            raise BadKeys.bad_key_variable(variable, "it is empty")
        if not _SENDABLE.fullmatch(token):
            raise BadKeys.bad_key_variable(
                variable, "it holds blanks or characters that are not ASCII, which no client can send"
            )
        if len(token) < SHORTEST:
            raise BadKeys.bad_key_variable(
                variable, f"it has {len(token)} characters, and fewer than {SHORTEST} can be guessed"
            )
        return cls(token, ApiKey(f"env:{variable}", variable, tenant))

    def find(self, token: str) -> ApiKey | None:
        return self._key if hmac.compare_digest(_digest(token), self._digest) else None

    def __repr__(self) -> str:
        return f"OneKey({self._key!r})"


class Keys:
    """The keys of a file, as it is now: one that is added or revoked is so here within a second.

    A file that has gone or cannot be read any more changes nothing, and a warning says so once: whoever edits a file
    must not lock everybody out, or let anybody in.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = system_clock) -> None:
        """Opens a file. Raises `BadKeys` if it is not there or cannot be used."""
        self._path = Path(path)
        self._clock = clock
        self._looked = clock()
        self._bytes = _bytes_of(self._path)
        self._table = KeyTable(parse_keys(self._path, self._bytes))
        self._warned = False

    @property
    def count(self) -> int:
        """How many there are. (There is no ``len``: a file without keys must not be taken for no file.)"""
        self._refresh()
        return len(self._table)

    def find(self, token: str) -> ApiKey | None:
        self._refresh()
        return self._table.find(token)

    def __repr__(self) -> str:
        return f"Keys({str(self._path)!r})"

    def _refresh(self) -> None:
        now = self._clock()
        if 0 <= now - self._looked < _FRESH:  # below zero: the clock was set back
            return
        self._looked = now
        try:
            # The bytes are compared, not the file's time: two changes may come within one tick of a disk's clock.
            if (found := _bytes_of(self._path)) != self._bytes:
                self._table = KeyTable(parse_keys(self._path, found))
                self._bytes = found
        except BadKeys as error:
            if not self._warned:
                _log.warning("The keys stay as they were when they were last read. %s", error)
            self._warned = True
        else:
            self._warned = False


# The file, as the program changes it.


def default_keys_file() -> Path:
    """The file that is meant if none is given: FORKPOINT_KEYS, else ``keys.json`` in the user's folder for settings."""
    from forkpoint.workspace.defaults import settings_file

    named = os.environ.get("FORKPOINT_KEYS", "").strip()
    return Path(named) if named else settings_file().with_name("keys.json")


def list_keys(path: str | os.PathLike[str]) -> tuple[ApiKey, ...]:
    """The keys in a file, in the order in which they were made. A file that is not there has none."""
    return tuple(key_of(entry) for entry in _entries(Path(path)))


def add_key(
    path: str | os.PathLike[str],
    name: str,
    tenant: str = DEFAULT_TENANT,
    *,
    role: Role = "use",
    history: History | None = None,
    clock: Clock = system_clock,
) -> NewKey:
    """Makes a key, and the file if need be. Raises `AlreadyExists` if the name is taken."""
    check_new_key(name, tenant, role, history)
    with _changing(Path(path)) as real:
        entries = _entries(real)
        made, token = new_entry(entries, name, tenant, role, history, clock())
        _write(real, (*entries, made))
    return NewKey(key_of(made), token)


def check_new_key(name: str, tenant: str, role: Role, history: History | None) -> None:
    """Raises what is wrong with a key that somebody wants to make."""
    _check_is_role("add_key()", role)
    if name.startswith(_PREFIX):
        raise BadArgument("add_key()", "this name", "it begins as a key does, and a key is not to be written down here")
    check_name("name of a key", name)
    check_name("tenant", tenant)
    if history not in _HISTORIES:
        raise BadArgument("add_key()", f"history={history!r}", "it is neither latest nor full")


def new_entry(
    entries: Sequence[KeyEntry], name: str, tenant: str, role: Role, history: History | None, now: int
) -> tuple[KeyEntry, str]:
    """A key beside others: as it is kept, and the text that its owner sends. Raises `AlreadyExists`."""
    taken = {entry.id for entry in entries} | {entry.name for entry in entries}  # either is how a key is called
    if name in taken:
        raise AlreadyExists("key", name)
    id = _new_id(taken | {name})
    token = f"{_PREFIX}{id}_{secrets.token_urlsafe(32)}"
    return KeyEntry(id, name, tenant, _digest(token).hex(), now, history, role), token


def revoke_key(path: str | os.PathLike[str], given: str) -> ApiKey:
    """Takes a key out of a file, by its id, its name, or the whole key. Raises `NotFound`."""
    return _change(path, given, lambda _: None)


def change_role(path: str | os.PathLike[str], given: str, role: Role) -> ApiKey:
    """Gives a key another role, by its id, its name, or the whole key. The key stays as it is. Raises `NotFound`."""
    return _change(path, given, change_to_role(role))


def _change(path: str | os.PathLike[str], given: str, change: Change) -> ApiKey:
    """Replaces the entry of a key by what ``change`` makes of it, and removes the entry if that is None.

    Returns the key as it is now, or as it was if it was removed. Raises `NotFound`.
    """
    if not (there := _entries(Path(path))):  # nor is a file or a folder made for nothing
        changed_entries(there, given, change, str(path))
    with _changing(Path(path)) as real:
        kept, key = changed_entries(_entries(real), given, change, str(path))
        _write(real, kept)
    return key


def changed_entries(
    entries: Sequence[KeyEntry], given: str, change: Change, place: str
) -> tuple[tuple[KeyEntry, ...], ApiKey]:
    """The entries with a key as ``change`` makes it, and that key. ``given`` is its id, its name, or the whole key.

    Raises `NotFound`, which says that ``place`` does not have it.
    """
    wanted = given
    if given.startswith(_PREFIX):  # a key that has leaked is at hand as a whole; nothing shows more of it than its id
        wanted = given[len(_PREFIX) :][:8]
    for entry in entries:
        if wanted == entry.id or given == entry.name:
            changed = change(entry)
            kept = (changed if one is entry else one for one in entries)
            return tuple(one for one in kept if one is not None), key_of(changed or entry)
    raise NotFound.no_such_key(wanted, place)


def change_to_role(role: Role) -> Change:
    """The change that gives a key this role. Raises `BadArgument` if there is no such role."""
    _check_is_role("change_role()", role)
    return lambda entry: replace(entry, role=role)


def _check_is_role(call: str, role: str) -> None:
    if role not in ROLES:
        raise BadArgument(call, f"role={role!r}", f"it must be one of {', '.join(ROLES)}")


# Reading.


class _KeysDocument(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    keys: tuple[KeyEntry, ...]


class _KeysVersion(Struct, frozen=True):
    version: int


_NOBODY: tuple[ApiKey | None, bytes] = (None, secrets.token_bytes(32))


class KeyTable:
    """Keys at hand, to be found by their texts."""

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._keys: dict[str, tuple[ApiKey | None, bytes]] = {
            entry.id: (key_of(entry), bytes.fromhex(entry.hash)) for entry in entries
        }

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, token: str) -> ApiKey | None:
        """The key that is this text, or None."""
        key, digest = self._keys.get(token[len(_PREFIX) :][:8], _NOBODY)
        same = hmac.compare_digest(_digest(token), digest)  # with nobody's too: time does not tell which ids exist
        return key if same else None


def _entries(path: Path) -> tuple[KeyEntry, ...]:
    """What a file holds. One that is not there holds nothing; one that cannot be looked at is an error."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unreadable(path, error) from None
    return parse_keys(path, _bytes_of(path))


def _bytes_of(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise BadKeys(str(path), "it is not a file")
        with path.open("rb") as file:
            found = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise BadKeys(str(path), "it is not there") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(found) > _LARGEST:
        raise BadKeys(str(path), f"it has more than {_LARGEST:,} bytes")
    return found


def _unreadable(path: Path, error: OSError) -> BadKeys:
    return BadKeys(str(path), f"it cannot be read ({error.strerror})")


def parse_keys(path: str | Path, found: bytes) -> tuple[KeyEntry, ...]:
    """The entries of a file. Raises `BadKeys`, with no value from the file in it: it may be a secret."""
    try:
        version = msgspec.json.decode(found, type=_KeysVersion).version
        if version != VERSION:
            raise BadKeys(str(path), f"it has version {version}, and this Forkpoint knows only {VERSION}")
        entries = msgspec.json.decode(found, type=_KeysDocument).keys
    except UnicodeDecodeError:
        raise BadKeys(str(path), "it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadKeys(str(path), f"it does not hold what it should ({error})") from None
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        if (why := _flaw(entry, seen)) is not None:
            raise BadKeys(str(path), f"key {number} of {len(entries)} in it {why}")
        seen |= {entry.id, entry.name}
    return entries


def _flaw(entry: KeyEntry, seen: set[str]) -> str | None:
    """Why an entry cannot be used, if so."""
    if not _ID.fullmatch(entry.id):
        return "has an id that is none"
    if not _HASH.fullmatch(entry.hash):
        return "has a hash that is not a SHA-256 in 64 hex digits"
    try:
        check_name("name", entry.name)
        check_name("tenant", entry.tenant)
    except BadName as error:
        return f"has a {error.what} with other characters than A-Z a-z 0-9 . _ : -, or not 1 to 128"
    if entry.history not in _HISTORIES:
        return "has a history that is neither latest nor full"
    if entry.role is not None and entry.role not in ROLES:
        return f"has a role other than {', '.join(ROLES)}"
    if entry.id in seen or entry.name in seen or entry.id == entry.name:
        return "has an id or a name that another key has too"
    return None


def key_of(entry: KeyEntry) -> ApiKey:
    role = cast("Role", entry.role or "operate")  # `_flaw` has looked at it
    return ApiKey(entry.id, entry.name, entry.tenant, entry.created, _HISTORIES[entry.history], role)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _new_id(taken: set[str]) -> str:
    while (id := "".join(secrets.choice(_ID_LETTERS) for _ in range(8))) in taken:
        pass
    return id


# Writing.


@contextmanager
def _changing(path: Path) -> Iterator[Path]:
    """One change at a time, over all processes. Gives the file itself where the path is a link to it."""
    try:
        real = Path(os.path.realpath(path))
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = real.with_name(f"{real.name}.lock")
        beside.touch(mode=0o600)
        lock = FileLock(beside)
        try:
            if not lock.acquire_within(_PATIENCE):
                raise BadKeys(str(path), f"another program has been changing it for {_PATIENCE:.0f} s")
            yield real
        finally:
            lock.close()
    except OSError as error:
        raise BadKeys(str(path), f"it cannot be written ({error.strerror})") from None


def write_keys(entries: tuple[KeyEntry, ...]) -> bytes:
    """Keys as a file has them."""
    return msgspec.json.format(msgspec.json.encode(_KeysDocument(VERSION, entries)), indent=2) + b"\n"


def _write(path: Path, entries: tuple[KeyEntry, ...]) -> None:
    """Writes the file anew. The group that may read it keeps that right: a server may run as another user than the one
    who adds keys."""
    replace_file(path, write_keys(entries), mode=lambda before: 0o600 | before & stat.S_IRGRP)
