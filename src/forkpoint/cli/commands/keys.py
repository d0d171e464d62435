"""``forkpoint keys``: who may call a server."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from forkpoint.cli.cells import ago
from forkpoint.cli.commands.config import store_for_servers
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, aside, display, grid, print_json, tell
from forkpoint.server.http.keys import ApiKey, Role, default_keys_file
from forkpoint.server.shelf import KeyPlace, KeysInFile, KeysInStore

File: TypeAlias = Annotated[
    Path | None,
    option("--file FILE", "The file of keys. Default: FORKPOINT_KEYS, else keys.json in your folder for settings."),
]

Store: TypeAlias = Annotated[
    str | None,
    option(
        "--store ADDRESS",
        "Keep keys in the store that servers have, instead of a file: every server on it accepts them.",
    ),
]


def add(
    name: Annotated[str, argument("NAME", "Whose key it is, or what it is for.")],
    tenant: Annotated[str, option("--tenant TENANT", "Whose conversations it opens, and no others.")] = "default",
    role: Annotated[
        Role,
        option(
            "--role ROLE",
            "What it may do. read: see and verify. use: also run, fork, rewind, approve. operate: also delete.",
        ),
    ] = "use",
    history: Annotated[
        Literal["latest", "full"] | None,
        option(
            "--history WHICH",
            "What counts of the messages in its chat completions: the latest alone, or the full list. Default: latest.",
        ),
    ] = None,
    file: File = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Make a key, and print it.

    It is shown this once: the file, or the store, holds only its hash. A server that is running accepts it within a
    second or two.

    \b
    Examples:
      forkpoint keys add ann
      forkpoint keys add dashboard --role read
      forkpoint keys add ci --tenant builds --file /etc/forkpoint/keys.json
      forkpoint keys add ann --store postgresql://db/forkpoint
      forkpoint keys add open-webui --history full
      export FORKPOINT_API_KEY=$(forkpoint keys add laptop)
    """
    place = _place(file, store)
    made = place.add(name, tenant, role=role, history=history)
    if json:
        print_json(_document(made.key) | {"key": made.token, **place.document})
        return
    print(made.token, flush=True)
    about = f"{made.key.name}, role {made.key.role}"
    tell(f"Key {made.key.id} ({about}) for tenant {made.key.tenant} is in {place.name}. It is not shown again.")


def list_(file: File = None, store: Store = None, json: Json = False) -> None:
    """Show the keys that there are, without their secrets.

    \b
    Example:
      forkpoint keys list
    """
    place = _place(file, store)
    found = place.list()
    if json:
        print_json({"items": [_document(key) for key in found], **place.document})
        return
    if not found:
        aside(f"No keys in {place.name}.")
        return
    table = grid(header=True)
    said = any(key.history is not None for key in found)
    for column in ("id", "name", "tenant", "role", *(["history"] if said else []), "created"):
        table.add_column(column, no_wrap=column in ("id", "role", "history", "created"), overflow="fold")
    for key in found:
        made = "" if key.created is None else ago(key.created)
        table.add_row(key.id, key.name, key.tenant, key.role, *([key.history or ""] if said else []), made)
    display(table)


def role(
    key: Annotated[str, argument("KEY", "Its id or its name, or the key itself.")],
    role: Annotated[Role, argument("ROLE", "read, use or operate.")],
    file: File = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Give a key another role. A server that is running knows it within a second.

    The key itself stays as it is: its client need not be told.

    \b
    Examples:
      forkpoint keys role ci read
      forkpoint keys role k3v9x2mq operate
    """
    place = _place(file, store)
    changed = place.change_role(key, role)
    if json:
        print_json({"changed": _document(changed), **place.document})
    else:
        print(f"Key {changed.id} ({changed.name}) of tenant {changed.tenant} has the role {changed.role} now.")


def revoke(
    key: Annotated[str, argument("KEY", "Its id or its name, or the key itself.")],
    file: File = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove a key. A server that is running refuses it within a second.

    Conversations stay as they are: they belong to the tenant.

    \b
    Examples:
      forkpoint keys revoke ann
      forkpoint keys revoke k3v9x2mq
    """
    place = _place(file, store)
    revoked = place.revoke(key)
    if json:
        print_json({"revoked": _document(revoked), **place.document})
    else:
        print(f"Revoked {revoked.id} ({revoked.name}) of tenant {revoked.tenant}.")


def _place(file: Path | None, store: str | None) -> KeyPlace:
    """Where the keys are kept that a command is about."""
    if store is None:
        return KeysInFile(file or default_keys_file())
    if file is not None:
        raise typer.BadParameter("keys are in a file or in a store; leave out --file or --store", param_hint="--store")
    return KeysInStore(store_for_servers(store))


def _document(key: ApiKey) -> dict[str, str | int | None]:
    document = {"id": key.id, "name": key.name, "tenant": key.tenant, "role": key.role, "created": key.created}
    return document | ({} if key.history is None else {"history": key.history})
