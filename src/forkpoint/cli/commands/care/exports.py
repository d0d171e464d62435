"""``forkpoint export`` and ``import``: conversations as a file, and a file as conversations."""

import sys
import time
from collections.abc import Callable
from typing import IO, Annotated

import typer
from msgspec.structs import asdict

from forkpoint.cli import figures
from forkpoint.cli.common import Store, only_one, opened, tags_from
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, print_json
from forkpoint.conversation import Conversations, ExportReport, ImportReport
from forkpoint.conversation.look import is_there, look
from forkpoint.errors import NotFound
from forkpoint.history.exports.check import ExportCheck
from forkpoint.history.exports.lines import LONGEST_LINE
from forkpoint.wire.documents import import_document

_BEGINNING = b'{"line":"'  # of every line: the first ones may be missing


def export(
    conversation: Annotated[str | None, argument("CONVERSATION", "Its name, its id, or the start of its id.")] = None,
    family: Annotated[
        str | None, option("--family CONVERSATION", "This conversation with all its family: forks, sub-agents, sides.")
    ] = None,
    tag: Annotated[
        list[str] | None, option("--tag KEY=VALUE", "All conversations with this tag. Repeatable: with all of them.")
    ] = None,
    all: Annotated[bool, option("--all", "All conversations of the store.")] = False,
    output: Annotated[
        str | None, option("-o --output FILE", "Write there. Default: standard output, unless that is a screen.")
    ] = None,
    format: Annotated[
        str, option("--format FORMAT", "forkpoint, which `forkpoint import` reads, or md, for people.")
    ] = "forkpoint",
    store: Store = None,
    json: Json = False,
) -> None:
    """Write conversations into a file.

    A file of the format forkpoint has everything: events, failed tries, costs, records and digests. It can be checked
    without a store (forkpoint verify FILE) and imported into another one. Each conversation in it gets a record that
    says who exported it.

    \b
    Examples:
      forkpoint export build-1234 -o build-1234.jsonl
      forkpoint export --family build-1234 -o family.jsonl
      forkpoint export build-1234 --format md -o build-1234.md
    """
    only_one({"CONVERSATION": conversation, "--family": family, "--tag": tag or None, "--all": all}, needed=True)
    if output is None and (json or (sys.stdout.isatty() and format != "md")):
        raise typer.BadParameter("say into which file", param_hint="-o")
    show = _progress("written")
    to = sys.stdout.buffer if output is None else output
    if named := conversation or family:
        with opened(named, store) as this:
            report = this.export(to, family=family is not None, format=format, progress=show)
    else:
        report = _export_many(store, tags_from(tag) if tag else None, to, format, show)
    sys.stdout.flush()
    if not report.recorded:
        print("the store can only be read, so it has no record of this export", file=sys.stderr)
    if json:
        print_json(asdict(report) | {"file": output})
    elif output is not None:
        digest = "" if report.digest is None else f", its last digest is {report.digest}"
        print(f"{clean(output)}: {figures.size(report.bytes)}{digest}")


def import_(
    file: Annotated[str, argument("FILE", "A file that `forkpoint export` has written; - is standard input.")],
    rename: Annotated[bool, option("--rename", "Give a conversation another name if its own is taken.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Bring the conversations of an export into a store.

    Everything is checked first. Each family of conversations comes whole or not at all, with its ids, costs and
    digests, and the same file again changes nothing. A conversation that is here already goes on if the file has more
    of it.

    \b
    Examples:
      forkpoint import build-1234.jsonl
      forkpoint import family.jsonl --store http://localhost:8008
    """
    with Conversations(store) as conversations, _source(file) as source:
        done = conversations.import_(source, rename=rename, progress=_progress("read"))
    if json:
        print_json(import_document(done))
    else:
        for line in _told(done):
            print(line)


def verify_file(path: str, *, json: bool) -> None:
    """Checks an export without a store. The exit status is 1 if there is a flaw."""
    check, show = ExportCheck(), _progress("checked")
    with open(path, "rb") as file:
        while raw := file.readline(LONGEST_LINE):
            check.take(raw)
            show(check.bytes)
    check.finish()
    if json:
        counts = {"families": len(check.parts), "conversations": check.conversations, "events": check.events}
        print_json({"ok": not check.flaws, **counts, "erased": check.erased, "flaws": check.flaws})
    else:
        for flaw in check.flaws:
            print(f"line {flaw.line}: {clean(flaw.what)}")
        checked = f"{figures.counted(check.events, 'event')} of {figures.counted(check.conversations, 'conversation')}"
        end = figures.counted(len(check.flaws), "flaw") if check.flaws else "as it was written"
        print(f"{checked}: {end}", file=sys.stderr if check.flaws else sys.stdout)
    if check.flaws:
        raise typer.Exit(1)


def is_export(path: str) -> bool:
    """Whether there is a file with this name that begins as a line of an export does, though it may be damaged."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except (OSError, ValueError):
        return False


def _export_many(
    store: str | None, tags: dict[str, str] | None, to: str | IO[bytes], format: str, show: Callable[[int], None]
) -> ExportReport:
    if not is_there(store):
        raise NotFound("store", look(store).address)
    with Conversations(store) as conversations:
        return conversations.export(to, tags=tags, format=format, progress=show)


def _source(file: str) -> IO[bytes]:
    if file == "-":
        return sys.stdin.buffer
    try:
        return open(file, "rb")
    except OSError as error:
        raise typer.BadParameter(f"it cannot be read ({error.strerror or error})", param_hint="FILE") from None


def _told(done: ImportReport) -> list[str]:
    if not done.changed:
        return [f"{figures.counted(done.same, 'conversation')} in it, and all of it was here already"]
    told = [f"{figures.counted(len(done.new), 'new conversation')}, {figures.counted(done.events, 'new event')}"]
    if done.grown:
        told.append(f"{figures.counted(len(done.grown), 'conversation')} went on")
    if done.erased:
        told.append(
            f"the content of {figures.counted(done.erased, 'event')} was erased, as it was where the file is from"
        )
    if done.same:
        told.append(f"{figures.counted(done.same, 'conversation')} was here already")
    return told + [f"{id} is now called {clean(name)}, since its name was taken" for id, name in done.renamed.items()]


def _progress(what: str) -> Callable[[int], None]:
    """Says on a screen how far long work has come; nothing of it stays there."""
    began = last = time.monotonic()

    def show(size: int) -> None:
        nonlocal last
        now = time.monotonic()
        if sys.stderr.isatty() and now - began > 1 and now - last > 0.2:
            last = now
            sys.stderr.write(f"\r{figures.size(size)} {what}\x1b[K\r")
            sys.stderr.flush()

    return show
