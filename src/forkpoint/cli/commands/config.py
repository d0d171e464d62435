"""``forkpoint config``: the file with agents and settings that servers find in their store."""

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, aside, print_json, tell
from forkpoint.conversation.look import is_remote
from forkpoint.conversation.place import as_url
from forkpoint.errors import BadConfig
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.agents.file import read_text
from forkpoint.server.shelf import put_config, read_config, shown

Store: TypeAlias = Annotated[
    str | None,
    option("--store ADDRESS", "The store: a file (talks.db) or a database. Default: FORKPOINT_STORE, as for serve."),
]


def put(
    file: Annotated[Path, argument("FILE", "TOML or JSON, as for serve --config. - reads standard input.")],
    no_check: Annotated[
        bool, option("--no-check", "Do not try whether a server could use it on this machine.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Put a server's file into a store.

    It is for all servers on the store that have no --config, and a server reads it when it starts. Paths in it are
    relative to the folder in which the server is started. It is checked first as a server would on this machine, with
    its folders and its environment; --no-check leaves that out.

    \b
    Examples:
      forkpoint config put server.toml --store talks.db
      forkpoint config put server.toml --store postgresql://db/forkpoint --no-check
    """
    address = store_for_servers(store)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadConfig(f"{file}: it cannot be read ({error.strerror})") from None
    except ValueError:
        raise BadConfig(f"{file}: it is not a text in UTF-8") from None
    if not no_check:
        found = read_text(text, str(file))
        if found.named:
            Catalog.from_file(found)
        found.check()
    replaced = put_config(address, text)
    if json:
        print_json({"store": shown(address), "replaced": replaced})
    else:
        tell(f"It is in the store at {shown(address)} now. Servers there read it when they start.")


def show(store: Store = None, json: Json = False) -> None:
    """Print the file that a store has for its servers.

    \b
    Example:
      forkpoint config show --store talks.db
    """
    address = store_for_servers(store)
    found = read_config(address)
    if json:
        print_json({"store": shown(address), "config": None if found is None else found.text})
    elif found is None:
        aside(f"The store at {shown(address)} has no file for servers.")
    else:
        print(found.text, end="" if found.text.endswith("\n") else "\n", flush=True)


def remove(store: Store = None, json: Json = False) -> None:
    """Take the file for servers out of a store. Servers that are running keep what they have read.

    \b
    Example:
      forkpoint config remove --store talks.db
    """
    address = store_for_servers(store)
    removed = put_config(address, None)
    if json:
        print_json({"store": shown(address), "removed": removed})
    else:
        tell(f"It is gone from the store at {shown(address)}." if removed else "There was none.")


def store_for_servers(given: str | None) -> str:
    """The address of a store that servers can have: not that of another server."""
    address = as_url(given)
    if is_remote(address):
        why = f"{address} is a server; name the store that it has"
        raise typer.BadParameter(why, param_hint="--store / FORKPOINT_STORE")
    return address
