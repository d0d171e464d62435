"""``forkpoint anchor``: a line to keep elsewhere. And the files of such lines, for ``forkpoint verify``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from forkpoint.cli import figures
from forkpoint.cli.common import Store
from forkpoint.cli.options import option
from forkpoint.cli.output import Json, tell
from forkpoint.conversation import Anchor, Conversations, read_anchors
from forkpoint.conversation.look import is_there, look
from forkpoint.errors import BadArgument, NotFound
from forkpoint.system.durable_file import append_line


def anchor(
    output: Annotated[str | None, option("--output -o FILE", "Add the line to this file. Default: print it.")] = None,
    all_tenants: Annotated[
        bool, option("--all-tenants", "Cover the whole store, for whoever operates it. Not at a server's address.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Print a line to keep elsewhere, which shows later whether history was rewritten.

    All that was recorded is put under a seal, and the line names that seal: less than 500 bytes of JSON, however much
    there is. Keep it where nobody who can write to the store can change it. `forkpoint verify --anchor FILE` then finds
    out if somebody has rewritten what the line covers, even with all digests made anew.

    \b
    Examples:
      forkpoint anchor -o /mnt/witness/anchors.jsonl
      forkpoint anchor | ssh witness 'cat >> anchors.jsonl'
    """
    if not is_there(store):  # an anchor of a store that was made just now would help nobody
        raise NotFound("store", look(store).address)
    with Conversations(store) as conversations:
        made = conversations.anchor(all_tenants=all_tenants)
    if output is not None:
        try:
            append_line(Path(output).expanduser(), made.to_json().encode())
        except OSError as error:
            raise typer.BadParameter(f"{output}: {error.strerror or error}", param_hint="--output") from None
    if output is None or json:
        print(made.to_json(), flush=True)
    if not json:
        whose = "the whole store" if made.tenant is None else f"tenant {made.tenant}"
        covers = f"Seal {made.number} of {whose} covers {figures.counted(made.count, 'record')}"
        tell(f"{covers}. {'Keep this line elsewhere.' if output is None else f'The line was added to {output}.'}")


def anchors_in(file: str, flag: str) -> tuple[Anchor, ...]:
    """The anchors in a file; ``-`` is standard input."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).expanduser().read_text(encoding="utf-8")
        return read_anchors(text)
    except BadArgument as error:
        raise typer.BadParameter(f"{file}: {error.argument}: {error.why}", param_hint=flag) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read ({error})", param_hint=flag) from None


def newest_in(file: str, flag: str) -> Anchor:
    """The newest anchor in a file."""
    return max(anchors_in(file, flag), key=lambda anchor: (anchor.time, anchor.number))
