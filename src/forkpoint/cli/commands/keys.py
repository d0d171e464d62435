"""``forkpoint keys``: who may call a server."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from forkpoint.cli.cells import ago
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, aside, display, grid, print_json, tell
from forkpoint.server.http.keys import ApiKey, Role, add_key, change_role, default_keys_file, list_keys, revoke_key

File: TypeAlias = Annotated[
    Path | None,
    option("--file FILE", "The file of keys. Default: FORKPOINT_KEYS, else keys.json in your folder for settings."),
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
    json: Json = False,
) -> None:
    """Make a key, and print it.

    It is shown this once: the file holds only its hash. A server that is running accepts it within a second.

    \b
    Examples:
      forkpoint keys add ann
      forkpoint keys add dashboard --role read
      forkpoint keys add ci --tenant builds --file /etc/forkpoint/keys.json
      forkpoint keys add open-webui --history full
      export FORKPOINT_API_KEY=$(forkpoint keys add laptop)
    """
    path = file or default_keys_file()
    made = add_key(path, name, tenant, role=role, history=history)
    if json:
        print_json(_document(made.key) | {"key": made.token, "file": str(path)})
        return
    print(made.token, flush=True)
    about = f"{made.key.name}, role {made.key.role}"
    tell(f"Key {made.key.id} ({about}) for tenant {made.key.tenant} is in {path}. It is not shown again.")


def list_(file: File = None, json: Json = False) -> None:
    """Show the keys that there are, without their secrets.

    \b
    Example:
      forkpoint keys list
    """
    path = file or default_keys_file()
    found = list_keys(path)
    if json:
        print_json({"items": [_document(key) for key in found], "file": str(path)})
        return
    if not found:
        aside(f"No keys in {path}.")
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
    json: Json = False,
) -> None:
    """Give a key another role. A server that is running knows it within a second.

    The key itself stays as it is: its client need not be told.

    \b
    Examples:
      forkpoint keys role ci read
      forkpoint keys role k3v9x2mq operate
    """
    path = file or default_keys_file()
    changed = change_role(path, key, role)
    if json:
        print_json({"changed": _document(changed), "file": str(path)})
    else:
        print(f"Key {changed.id} ({changed.name}) of tenant {changed.tenant} has the role {changed.role} now.")


def revoke(
    key: Annotated[str, argument("KEY", "Its id or its name, or the key itself.")],
    file: File = None,
    json: Json = False,
) -> None:
    """Remove a key. A server that is running refuses it within a second.

    Conversations stay as they are: they belong to the tenant.

    \b
    Examples:
      forkpoint keys revoke ann
      forkpoint keys revoke k3v9x2mq
    """
    path = file or default_keys_file()
    revoked = revoke_key(path, key)
    if json:
        print_json({"revoked": _document(revoked), "file": str(path)})
    else:
        print(f"Revoked {revoked.id} ({revoked.name}) of tenant {revoked.tenant}.")


def _document(key: ApiKey) -> dict[str, str | int | None]:
    document = {"id": key.id, "name": key.name, "tenant": key.tenant, "role": key.role, "created": key.created}
    return document | ({} if key.history is None else {"history": key.history})
