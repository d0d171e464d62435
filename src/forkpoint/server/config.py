"""The table ``[server]`` of a server's file: where the server listens, who may call, how it logs, and its settings."""

import os
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from forkpoint.errors import BadArgument
from forkpoint.remote import is_server
from forkpoint.server.settings import SETTINGS, ConversationHeader, ServerSettings
from forkpoint.workspace.defaults import address_within
from forkpoint.workspace.models.tables import typed

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class ServerConfig(Struct, frozen=True, kw_only=True):
    """How a server is started, and the settings that it runs with."""

    host: _Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8008
    store: _Text | None = None  # None: FORKPOINT_STORE, or the default for everybody
    keys: _Text | None = None  # the file of callers' keys
    key_env: _Text | None = None  # the variable that holds a key for callers
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] | None = None  # None: text on a terminal, else JSON
    settings: ServerSettings = ServerSettings()


_START: dict[str, Any] = typing.get_type_hints(ServerConfig, include_extras=True)
del _START["settings"]

FIELDS: dict[str, Any] = _START | SETTINGS | {"conversation_headers": Annotated[tuple[str, ...], Meta(min_length=1)]}
"""The fields of ``[server]``, and what each must be."""


def read_server(
    table: dict[str, Any], folder: Path, problems: list[str], *, elsewhere: typing.Mapping[str, str]
) -> ServerConfig:
    """What the table says, as far as it can be used; the rest is added to the problems.

    Paths are relative to the file's folder. ``elsewhere`` says of fields that do not belong here where they do.
    """
    said = typed(table, FIELDS, "server", problems, elsewhere=elsewhere)
    if "conversation_headers" in said:
        said["conversation_headers"] = _headers(said["conversation_headers"], problems)
    if "trust" in said:
        said["trust"] = tuple(os.path.abspath(folder / Path(path).expanduser()) for path in said["trust"])
        problems += [f"server.trust: {path} is not a folder" for path in said["trust"] if not os.path.isdir(path)]
    for file in ("keys", "anchor_log"):
        if file in said:
            said[file] = str(folder / Path(said[file]).expanduser())
    if "store" in said:
        said["store"] = _store(said["store"], folder, problems)
    start = {name: said.pop(name) for name in _START if name in said}
    return ServerConfig(**start, settings=ServerSettings(**said))


def another_server(address: str) -> str:
    """Why a server cannot keep its conversations at this address, which is a server's too."""
    return f"{address} is another server; say where this one is to keep conversations: sqlite:///forkpoint.db"


def _headers(given: tuple[str, ...], problems: list[str]) -> tuple[ConversationHeader, ...]:
    where = "server.conversation_headers"
    found: dict[str, ConversationHeader] = {}
    for text in given:
        try:
            header = ConversationHeader.from_text(text)
        except BadArgument as error:
            problems.append(f"{where}: {error.argument}: {error.why}")
            continue
        if header.name.lower() in found:
            problems.append(f"{where}: {header.name} is there twice")
        found[header.name.lower()] = header
    return tuple(found.values())


def _store(address: str, folder: Path, problems: list[str]) -> str:
    if is_server(address):
        problems.append(f"server.store: {another_server(address)}")
    return address_within(folder, address)
