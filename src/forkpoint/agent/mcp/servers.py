"""`McpServer`: how an MCP server is started or reached. Frozen data: it holds no connection and no secret."""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from forkpoint.agent.secrets.masking import SHORTEST, Masking
from forkpoint.errors import BadAgent, McpFailed
from forkpoint.events import JsonText
from forkpoint.llm.documents import read_document
from forkpoint.workspace.pins.pins import PinnedCommand

TIMEOUT = 60.0
"""Seconds for a server to start, and for each of its calls, if it does not say otherwise."""

BASICS = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    *("APPDATA", "COMSPEC", "LOCALAPPDATA", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERPROFILE"),
)
"""What a server's process has of our environment. Whatever else it needs, its ``env`` names."""

_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")  # no two underscores: they stand between server and tool
_NAME_LENGTH = 32
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WORKSPACE = "workspace"
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class McpServer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An MCP server: a program to start, or an address.

    ::

        McpServer("github", command=["github-mcp-server", "stdio"], env={"GITHUB_TOKEN": "${GITHUB_TOKEN}"})
        McpServer("search", url="https://search.example/mcp", headers={"Authorization": "Bearer ${SEARCH_KEY}"})

    - ``name``: what its tools' names begin with.
    - ``command``: the program and its arguments; it is talked to over its standard input and output.
    - ``url``: the address of one that is talked to over HTTP.
    - ``env``, ``headers``: what the program's environment, or each request, has besides the basics. ``${NAME}`` there,
      and in the url, stands for the agent's secret of that name, or else for our environment's variable. Anything else
      is stored as it stands.
    - ``cwd``: the folder that the program starts in; ours, if none is said. ``${workspace}`` there and in the command
      is the conversation's folder, and then each folder has a process of its own.
    - ``tools``: which of its tools are wanted, by its own names for them; None is all.
    - ``timeout``: seconds for it to start, and for each call.
    - ``hints``: whether to believe what it says of its tools: that one only reads, that one may be repeated. If not,
      all are risky, and none is run twice.
    """

    name: str
    command: Sequence[str] = ()
    url: str | None = None
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    cwd: str | None = None
    tools: Sequence[str] | None = None
    timeout: float = TIMEOUT
    hints: bool = False

    def __post_init__(self) -> None:
        self._check()
        force_setattr(self, "command", tuple(self.command))
        for name in ("env", "headers"):  # sorted, so that equal ones have one document, and nobody else's to change
            force_setattr(self, name, dict(sorted(getattr(self, name).items())))
        force_setattr(self, "timeout", float(self.timeout))
        if self.tools is not None:
            force_setattr(self, "tools", tuple(sorted(set(self.tools))))

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def _references(self) -> tuple[str, ...]:
        """The names of the secrets that it is to be given."""
        texts = (*self.env.values(), *self.headers.values(), self.url or "")
        return tuple(sorted({name for text in texts for name in _REFERENCE.findall(text)} - {_WORKSPACE}))

    def to_json(self) -> JsonText:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "McpServer":
        """Raises `BadSetting` if the text is not a server document, `BadAgent` if its values are invalid."""
        return read_document(cls, text, of="an agent", what="An MCP server")

    def _check(self) -> None:
        name: Any = self.name
        if not (isinstance(name, str) and len(name) <= _NAME_LENGTH and _NAME.fullmatch(name)):
            raise BadAgent(
                f"{name!r} cannot be the name of an MCP server; letters, digits, hyphens and single underscores can, "
                f"{_NAME_LENGTH} at most"
            )
        for what, wrong in _wrong_with(self):
            if wrong:
                raise BadAgent(f"its MCP server {name!r}: {what}")


def rooted(server: McpServer, root: Path, *, cwd: str | None = None) -> McpServer:
    """A server as a file names it: a program with a relative path (``./server.py``), or a relative folder, is meant
    from where the file is. ``cwd`` is where it starts if it says nothing."""
    if not server.command:
        return server
    program, *arguments = server.command
    if "/" in program and not program.startswith("${"):
        program = str(root / program)
    if server.cwd is not None:
        cwd = server.cwd if server.cwd.startswith("${") else str(root / server.cwd)
    return replace(server, command=(program, *arguments), cwd=cwd)


class Start(Struct, frozen=True):
    """A server with everything filled in. It is never stored, nor shown."""

    name: str
    command: tuple[str, ...]
    cwd: str | None
    env: tuple[tuple[str, str], ...]
    url: str | None
    headers: tuple[tuple[str, str], ...]
    timeout: float
    secrets: tuple[str, ...]
    pinned: PinnedCommand | None = None  # of a project's server: what was approved of it

    def __repr__(self) -> str:
        return f"<start of {self.name}>"

    @property
    def key(self) -> "Start":
        """What tells its connection from others: all but how long somebody is willing to wait.

        What is pinned is part of it: a server that was started from other files is another server.
        """
        return replace(self, timeout=0.0)

    @property
    def masking(self) -> Masking:
        """What hides the values of its secrets in whatever it says."""
        return _masking(self.secrets)


def start_of(
    server: McpServer,
    *,
    workspace: Path | None = None,
    secrets: Mapping[str, str] | None = None,
    pinned: PinnedCommand | None = None,
) -> Start:
    """What is needed to start or reach a server here and now. Raises `McpFailed` for what is missing."""
    given = {} if secrets is None else secrets
    used: set[str] = set()

    def value(name: str) -> str:
        if name == _WORKSPACE:
            if workspace is None:
                raise McpFailed(server.name, "needs ${workspace}, and the conversation works in no folder")
            return str(workspace)
        found = given.get(name) or os.environ.get(name)
        if not found:
            raise McpFailed(server.name, f"needs ${{{name}}}, and neither a secret nor a variable is called {name}")
        if len(found.strip()) >= SHORTEST:  # a shorter one keeps no secret, and would be found in every second word
            used.add(found)
        return found

    return Start(
        server.name,
        tuple(_filled(text, value, only=_WORKSPACE) for text in server.command),
        None if server.cwd is None else _filled(server.cwd, value, only=_WORKSPACE),
        tuple((name, _filled(text, value)) for name, text in server.env.items()),
        None if server.url is None else _filled(server.url, value),
        tuple((name, _filled(text, value)) for name, text in server.headers.items()),
        server.timeout,
        tuple(sorted(used)),
        pinned,
    )


_masking = functools.lru_cache(maxsize=64)(Masking)


def _filled(text: str, value: Callable[[str], str], *, only: str | None = None) -> str:
    """A text with its references replaced. In a command there are no secrets: every process can read it."""
    return _REFERENCE.sub(lambda found: value(found[1]) if only in {None, found[1]} else found[0], text)


def _wrong_with(server: McpServer) -> list[tuple[str, bool]]:
    command: Any = server.command
    url: Any = server.url
    limit: Any = server.timeout
    tools: Any = server.tools
    is_command = isinstance(command, list | tuple) and all(map(_is_plain, command)) and (not command or command[0])
    return [
        ("its command must be a list of texts, the program first", not is_command),
        ("it needs a command or a url, and not both", bool(command) == (url is not None)),
        ("its url must begin with http:// or https://, and have no password in it", not _is_address(url)),
        ("its env must have texts by names", not _are_texts(server.env, lambda name: "=" not in name)),
        ("an env is for a command", bool(server.env) and url is not None),
        ("its headers must have texts by names, each in one line", not _are_headers(server.headers)),
        ("headers are for a url", bool(server.headers) and url is None),
        ("its cwd must be a text, and is for a command", not _is_folder(server.cwd, url)),
        ("its tools must be a list of names", not (tools is None or _are_names(tools))),
        ("its timeout must be a number of seconds, more than 0", not _is_seconds(limit)),
        ("its hints must be True or False", not isinstance(server.hints, bool)),
    ]


def _is_plain(text: Any) -> bool:
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_address(url: Any) -> bool:
    if url is None:
        return True
    try:
        found = urlsplit(url) if _is_plain(url) else None
        return (
            found is not None and found.scheme in {"http", "https"} and bool(found.hostname) and "@" not in found.netloc
        )
    except ValueError:
        return False


def _is_folder(cwd: Any, url: str | None) -> bool:
    return cwd is None or (_is_plain(cwd) and bool(cwd) and url is None)


def _are_texts(given: Any, is_name: Callable[[str], Any]) -> bool:
    return isinstance(given, Mapping) and all(
        _is_plain(name) and name and is_name(name) and _is_plain(text) for name, text in given.items()
    )


def _are_headers(given: Any) -> bool:
    return _are_texts(given, _HEADER.fullmatch) and not any(set(text) & {"\r", "\n"} for text in given.values())


def _are_names(given: Any) -> bool:
    return isinstance(given, list | tuple | set | frozenset) and bool(given) and all(map(_is_plain, given))


def _is_seconds(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < float("inf")
