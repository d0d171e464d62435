"""`Secret`: where a value is to be had that nobody may read: an environment variable, a file, or a command's output.

An agent holds the reference alone, and so does everything that is stored. `resolve` gets the values when a tool is
about to run, for the secrets that the tool names. They are never shown, never written, and masked in whatever comes
back (`masking_values`). Tests: tests/agent/test_secrets.py.
"""

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import anyio.to_thread
import msgspec
from msgspec import Struct

from forkpoint.agent.secrets.masking import SHORTEST, Masking
from forkpoint.errors import BadAgent, NoSecret
from forkpoint.events import JsonText
from forkpoint.llm.prompt.manifest import is_text
from forkpoint.system.process import run_command

LARGEST = 64 * 1024
"""Bytes that a value may have."""

TIMEOUT = 30.0
"""Seconds in which a command must have said it."""


class Secret(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a secret is: one of an environment variable, a file, or a command that prints it.

    The file's path is absolute, or begins with ``~``, since an agent is used from any folder. The command is a program
    and its arguments, without a shell; it starts in the home folder, whatever folder is worked in. Of what a file has
    or a command prints the last line break is left out; other line breaks are part of the value.

    With ``shell`` it is for commands too: each that the built-in ``shell`` runs has it as a variable, and so whatever
    a model wants to run can read it. Without, only tools that name it are given it.
    """

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    shell: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("env", "file", "command") if getattr(self, name) is not None]
        if len(given) != 1:
            raise BadAgent("a secret is exactly one of env, file and command")
        if self.env is not None and not (_is_plain(self.env) and self.env.strip() and "=" not in self.env):
            raise BadAgent("the env of a secret must be the name of an environment variable")
        if self.file is not None and not (_is_plain(self.file) and (self.file[:1] == "~" or os.path.isabs(self.file))):
            raise BadAgent("the file of a secret must be an absolute path, or one that begins with ~")
        command: Any = self.command
        if command is not None:
            words = tuple(command) if isinstance(command, list | tuple) else ()
            if not words or not all(map(_is_plain, words)) or not words[0].strip():
                raise BadAgent("the command of a secret must be a list of texts: a program and its arguments")
            msgspec.structs.force_setattr(self, "command", words)
        if not isinstance(self.shell, bool):
            raise BadAgent("the shell of a secret must be True or False")

    def __str__(self) -> str:
        if self.env is not None:
            return f"the environment variable {self.env}"
        return f"the file {self.file}" if self.file is not None else f"the command {shlex.join(self.command or ())}"

    def to_json(self) -> JsonText:
        """Its document: the reference, and never the value."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "Secret":
        """The secret of a document. Raises `BadAgent`."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadAgent(f"a secret of its document cannot be read ({error})") from None


class Secrets(Mapping[str, Secret]):
    """An agent's secrets by name, in the order of their names. Frozen, as the agent is."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, Secret] = MappingProxyType({})) -> None:
        self._secrets = dict(sorted(secrets.items()))

    @property
    def for_commands(self) -> tuple[str, ...]:
        """The names of those that commands have as variables."""
        return tuple(name for name, secret in self._secrets.items() if secret.shell)

    def __getitem__(self, name: str) -> Secret:
        return self._secrets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets)

    def __len__(self) -> int:
        return len(self._secrets)

    def __hash__(self) -> int:
        return hash(tuple(self._secrets.items()))

    def __repr__(self) -> str:
        return f"Secrets({self._secrets!r})"


def secrets_of(given: Any) -> Secrets:
    """An agent's secrets by name, in the order of their names. Raises `BadAgent`."""
    if not isinstance(given, Mapping):
        raise BadAgent("its secrets must be a mapping of names to Secret")
    for name, secret in given.items():
        if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
            raise BadAgent(f"{str(name)[:200]!r} cannot be the name of a secret: it takes letters, digits and _")
        if not isinstance(secret, Secret):
            raise BadAgent(f"its secret {name} must be of the class Secret, which says where the value is")
    return Secrets(given)


class Resolved(Mapping[str, str]):
    """Values by the names of their secrets. It is never shown, and never written: no encoder takes it.

    ``secrets["TOKEN"]`` is the value itself, for whoever has to send it.
    """

    __slots__ = ("_masking", "_values")

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self._masking = Masking(self._values.values())

    @property
    def masking(self) -> Masking:
        """What hides these values in texts."""
        return self._masking

    def __getitem__(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values) or "none"
            raise KeyError(f"the tool does not name the secret {name}; those that it names: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def __repr__(self) -> str:
        return f"Resolved({', '.join(self._values)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("values of secrets are never written; resolve them again where they are used")

    def __copy__(self) -> "Resolved":
        return self

    def __deepcopy__(self, memo: object) -> "Resolved":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resolved) and other._values == self._values

    def __hash__(self) -> int:
        return id(self)  # nothing of the values is to be guessed from it


async def resolve(
    names: Iterable[str], secrets: Mapping[str, Secret], *, env: Mapping[str, str] | None = None
) -> Resolved:
    """The values of these secrets, as they are now. Raises `NoSecret`, which never says anything of a value.

    ``env`` is where variables are looked for and what commands get; None is ours.
    """
    values: dict[str, str] = {}
    for name in names:
        if (secret := secrets.get(name)) is None:
            raise NoSecret(name, "this agent", "it has no secret of that name")
        values[name] = await _value(name, secret, env)
    return Resolved(values)


def not_at_hand(secrets: Mapping[str, Secret]) -> Iterator[str]:
    """What is wrong with references to variables and files, as far as it is seen at once. No value is looked at."""
    for name, secret in secrets.items():
        if secret.env is not None and secret.env not in os.environ:
            yield f"{name}: {secret} is not set"
        if secret.file is not None and not os.path.isfile(os.path.expanduser(secret.file)):
            yield f"{name}: {secret} is not there"


async def masking_of(secrets: Mapping[str, Secret], *, env: Mapping[str, str] | None = None) -> Masking:
    """What hides the values that are at hand: those of variables and of files. No command is run for it."""
    values: list[str] = []
    for name, secret in secrets.items():
        if secret.command is None:
            with suppress(NoSecret):  # said when somebody needs it
                values.append(await _value(name, secret, env))
    return Masking(values)


async def _value(name: str, secret: Secret, env: Mapping[str, str] | None) -> str:
    def fail(why: str) -> NoSecret:
        return NoSecret(name, str(secret), why)

    if secret.env is not None:
        value = (os.environ if env is None else env).get(secret.env)
        if value is None:
            raise fail("it is not set")
    elif secret.file is not None:
        found = await anyio.to_thread.run_sync(_read, secret.file, fail)
        value = _decoded(found, fail)
    else:
        value = _decoded(await _said(secret.command or (), env, fail), fail)
    if not is_text(value):
        raise fail("it is not valid UTF-8")
    if "\0" in value:
        raise fail("it has a NUL character")
    if len(value.strip()) < SHORTEST:  # masked everywhere it would make texts unreadable, and it keeps no secret
        raise fail(f"it is empty, or shorter than {SHORTEST} characters")
    return value


def _read(path: str, fail: Callable[[str], NoSecret]) -> bytes:
    try:
        place = os.path.expanduser(path)
        if not stat.S_ISREG(os.stat(place).st_mode):  # a pipe would be waited for
            raise fail("it is not a file")
        with open(place, "rb") as file:
            return _within(file.read(LARGEST + 1), fail)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise fail(why) from None


async def _said(command: Sequence[str], env: Mapping[str, str] | None, fail: Callable[[str], NoSecret]) -> bytes:
    try:
        ended = await run_command(command, env=env, cwd=_home(), seconds=TIMEOUT, limit=LARGEST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise fail(f"it could not be started ({why})") from None
    if ended.exit_code is None:
        raise fail(f"it did not end within {TIMEOUT:g} s")
    if ended.exit_code != 0:  # what it said about that may have the value in it
        raise fail(f"it ended with exit code {ended.exit_code}")
    return _within(ended.stdout, fail)


def _home() -> Path | None:
    """Where commands run: what is in a project must not change what they do."""
    home = Path(os.path.expanduser("~"))
    return home if home.is_dir() else None


def _within(value: bytes, fail: Callable[[str], NoSecret]) -> bytes:
    if len(value) > LARGEST:
        raise fail(f"it has more than {LARGEST:,} bytes")
    return value


def _decoded(value: bytes, fail: Callable[[str], NoSecret]) -> str:
    try:
        return value.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise fail("it is not valid UTF-8") from None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and is_text(value) and "\0" not in value
