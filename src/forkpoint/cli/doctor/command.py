"""``forkpoint doctor`` and ``verify``: whether everything here is as it should be. Tests: tests/cli/test_doctor.py."""

import os
import platform
import shlex
import sqlite3
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from msgspec.structs import asdict
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from forkpoint.agent.skills.files import together
from forkpoint.cli import figures
from forkpoint.cli.cells import Cell
from forkpoint.cli.commands.care.anchor import anchors_in, newest_in
from forkpoint.cli.commands.care.exports import is_export, verify_file
from forkpoint.cli.commands.skills import places
from forkpoint.cli.commands.trust import instructions_here
from forkpoint.cli.common import Store, opened
from forkpoint.cli.doctor.model_checks import Check, State, asked_model, default_model, named_models
from forkpoint.cli.doctor.reach import is_address, reached
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import Json, clean, console, display, grid, print_json, tell
from forkpoint.cli.questions.pin_view import PinView
from forkpoint.conversation import Anchor, Conversations, Verification
from forkpoint.conversation.look import Look, is_there, look
from forkpoint.errors import BadSetting, ExtraMissing, ForkpointError, NotFound
from forkpoint.llm.local.weights import SMOLLM2, status
from forkpoint.system import extras
from forkpoint.version import __version__
from forkpoint.workspace import settings_at, standing
from forkpoint.workspace.defaults import settings_file
from forkpoint.workspace.pins.pins import digest_of
from forkpoint.workspace.retention import VARIABLES
from forkpoint.workspace.templates import templates_of

_VARIABLES = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "FORKPOINT_STORE",
    "FORKPOINT_API_KEY",
    "FORKPOINT_MODEL",
    "FORKPOINT_TITLE_MODEL",
    "FORKPOINT_CACHE",
    *VARIABLES.values(),
)
_SETTINGS = {"store", "model", "models", "title_model", "projects", "templates"}
_TABLES = ("models", "projects", "templates")
_STYLES = {"good": ("✓", "green"), "absent": ("·", "dim"), "bad": ("✗", "red")}


def doctor(
    reach: Annotated[str | None, option("--reach URL", "Try to connect to this address. Nothing is sent.")] = None,
    model: Annotated[str | None, option("--model NAME", "Check this model, and try to connect to where it is.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check settings, store, keys and models.

    It looks, and changes nothing. Keys are never shown, only whether they are there. A store that is not there yet is
    no problem: it is made when it is first used. The exit status is 1 if something that is set up does not work.

    \b
    Examples:
      forkpoint doctor
      forkpoint doctor --model anthropic/claude-sonnet-5
      forkpoint doctor --reach http://localhost:8080/v1
    """
    if reach is not None and not is_address(reach):
        raise typer.BadParameter("it is not an address like https://host:port/path", param_hint="--reach")
    findings = list(_examined(store, reach, model))
    good = all(finding.state != "bad" for finding in findings)
    if json:
        print_json({"ok": good, "findings": findings})
    else:
        table = grid()
        table.add_column("state", no_wrap=True)
        table.add_column("what", no_wrap=True)
        table.add_column("found", overflow="fold")
        for finding in findings:
            mark, style = _STYLES[finding.state]
            plain = "" if finding.state == "good" else style
            table.add_row(Cell(mark, finding.state, style), finding.what, clean(finding.said), style=plain)
        display(table)
    if not good:
        raise typer.Exit(1)


def verify(
    conversation: Annotated[
        str | None,
        argument(
            "CONVERSATION",
            "Its name, its id, or the start of its id; or a file that `export` has written. Default: all that is in "
            "the store.",
        ),
    ] = None,
    head_digest: Annotated[
        str | None, option("--head-digest HEX", "A digest that `show` printed earlier, kept elsewhere.")
    ] = None,
    anchor: Annotated[
        str | None,
        option("--anchor FILE", "What `anchor` printed earlier, one line or many, kept elsewhere. - is stdin."),
    ] = None,
    since: Annotated[
        str | None, option("--since FILE", "Look only at what is newer than the newest anchor in this file.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check that everything is as it was written.

    Every event and every record is checked, every digest and every figure, and the file itself. With --anchor or
    --head-digest it is also checked that nobody has rewritten all of it since. --since is quick, for it looks
    at what is new, and neither at older payloads nor at the file itself. The exit status is 1 if there is a flaw. An
    export is checked without a store.

    \b
    Examples:
      forkpoint verify
      forkpoint verify build-1234
      forkpoint verify --anchor /mnt/witness/anchors.jsonl
      forkpoint verify build-1234.jsonl
    """
    if conversation is not None and is_export(conversation):
        return verify_file(conversation, json=json)
    for flag, file in (("--anchor", anchor), ("--since", since)):
        if file is not None and conversation is not None:
            raise typer.BadParameter("an anchor covers the whole store: leave CONVERSATION out", param_hint=flag)
    if head_digest is not None:
        _check_hex(head_digest)
    if conversation is None:
        kept = () if anchor is None else anchors_in(anchor, "--anchor")
        found = _verify_all(store, head_digest, kept, None if since is None else newest_in(since, "--since"))
    else:
        with opened(conversation, store) as this, _progress_bar("Verifying") as progress:
            found = this.verify(head_digest=head_digest, progress=progress)
    if json:
        print_json({"ok": found.ok} | asdict(found))
    else:
        for flaw in found.flaws:
            print(f"{clean(flaw.where)}: {clean(flaw.what)}")
        erased = f" ({found.erased:,} of them erased)" if found.erased else ""
        checked = f"{figures.counted(found.events, 'event')}{erased} and {figures.counted(found.records, 'record')}"
        of = figures.counted(found.conversations, "conversation")
        sealed = f", {figures.counted(found.seals, 'seal')}" if found.seals else ""
        end = "as it was written" if found.ok else figures.counted(len(found.flaws), "flaw")
        if found.since is not None:
            tell(f"Only what was recorded after seal {found.since} was looked at, and no older payload.")
        for remark in found.remarks:
            tell(f"Note: {clean(remark)}.")
        console(stderr=not found.ok).print(f"{checked} of {of}{sealed}: {end}", style="green" if found.ok else "red")
    if not found.ok:
        raise typer.Exit(1)
    return None


def _verify_all(
    store: str | None, head_digest: str | None, anchors: Sequence[Anchor], since: Anchor | None
) -> Verification:
    if not is_there(store):  # an empty store would be fine, but a wrong address is more likely
        raise NotFound("store", look(store).address)
    with Conversations(store) as conversations, _progress_bar("Verifying") as progress:
        return conversations.verify(head_digest=head_digest, anchors=anchors, since=since, progress=progress)


@contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """What tells how much is done, and of how much: as a bar on stderr, gone at the end. None without a screen."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _check_hex(text: str) -> None:
    try:
        bytes.fromhex(text)
    except ValueError:
        raise typer.BadParameter("it is not a digest in hexadecimal", param_hint="--head-digest") from None


# What the doctor looks at.


def _examined(store: str | None, reach: str | None, model: str | None) -> Iterator[Check]:
    yield _program()
    settings = _settings()
    yield settings
    readable = settings.state != "bad"
    if readable or store is not None or os.environ.get("FORKPOINT_STORE", "").strip():
        yield _found("store", lambda: _store(store))
    if readable or os.environ.get("FORKPOINT_MODEL", "").strip():
        yield _found("default model", default_model)
    if readable:
        yield _found("trust", _trust)
        yield _found("skills", _skills)
        yield from named_models()
    yield from _variables()
    yield _found("local model", _local)
    yield _found("server", lambda: _extra("server", "A server"))
    yield _found("MCP", lambda: _extra("mcp", "An MCP server"))
    yield _found("PostgreSQL", lambda: _extra("postgres", "A store in PostgreSQL"))
    if model is not None:
        yield _found("model", lambda: asked_model(model))
    if reach is not None:
        yield _found("reach", lambda: ("good", reached(reach)))


def _found(what: str, check: Callable[[], tuple[State, str]]) -> Check:
    """The result of a check. If the check raises an error, the error is the finding."""
    try:
        state, said = check()
    except ForkpointError as error:
        state, said = "bad", error.message("Command line")
    return Check(what, state, said)


def _program() -> Check:
    said = f"{__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return Check("forkpoint", "good", said)


def _settings() -> Check:
    path = settings_file()
    try:
        named = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Check("settings", "absent", f"{path} is not there")
    except (OSError, ValueError) as error:
        return Check("settings", "bad", f"{path} cannot be read ({error})")
    if unknown := named.keys() - _SETTINGS:
        return Check("settings", "bad", f"{path} sets what is not known: {', '.join(sorted(unknown))}")
    tables = {name: named.pop(name) for name in _TABLES if name in named}
    if wrong := [name for name, value in named.items() if not isinstance(value, str)]:
        return Check("settings", "bad", f"{path}: {', '.join(wrong)} must be a text")
    if (flaw := _flaw_of(tables.get("projects", {}))) is not None:
        return Check("settings", "bad", f"{path}: {flaw}")
    if tables.get("templates") is not None:
        try:
            templates_of(None)
        except BadSetting as error:
            return Check("settings", "bad", error.message("Command line"))
    names = [*named, *(name for name, value in tables.items() if value)]
    return Check("settings", "good", f"{path} sets {', '.join(sorted(names)) or 'nothing'}")


def _flaw_of(projects: Any) -> str | None:
    """What is wrong with the table of projects; None if it is fine."""
    if not isinstance(projects, dict):
        return "projects must be a table"
    for root, entry in projects.items():
        if not isinstance(entry, dict) or entry.keys() - {"trust", "pinned"}:
            return f'projects."{root}" must be a table with trust, and perhaps pinned, in it'
        if entry.get("trust", "trusted") not in ("trusted", "untrusted"):
            return f'projects."{root}": trust must be "trusted" or "untrusted"'
        digests = entry.get("pinned", [])
        if not isinstance(digests, list) or not all(isinstance(one, str) and digest_of(one) for one in digests):
            return f'projects."{root}": pinned must be a list of digests, as sha256:...'
    return None


def _trust() -> tuple[State, str]:
    found = standing(".", settings_file())
    if found.trust == "undecided":
        return "absent", f"{found.root} is undecided, and nothing of it is read: forkpoint trust"
    if found.trust == "untrusted":
        above = "" if found.decided_for == found.root else f", since {found.decided_for} is"
        return "good", f"{found.root} is untrusted{above}"
    settings = settings_at(Path(found.root))
    names = [name for name in settings.__struct_fields__ if getattr(settings, name) is not None]
    said = f"{found.root} is trusted, and sets {', '.join(names) or 'nothing'}"
    view = PinView(".", found, settings_file())
    if not view.is_approved:
        return "bad", f"{said}; what it runs is not approved ({view.changed}): forkpoint trust"
    if not view.is_empty:
        said += "; what it runs is approved"
    if view.prose:
        said += f"; changed since you trusted it: {', '.join(view.prose)}"
    told = instructions_here(".")
    if told.sources:
        said += f"; agents are told {', '.join(told.sources)}"
    if told.problems:
        return "bad", "; ".join([said, *map(str, told.problems)])
    return "good", said


def _skills() -> tuple[State, str]:
    found = places()
    skills = together(*found).skills
    used = {skill.source for place in found for skill in place.skills}
    unusable = [problem for place in found for problem in place.problems if problem.source not in used]
    said = f"{figures.counted(len(skills), 'skill')}: {', '.join(skill.name for skill in skills)}" if skills else "none"
    if unusable:
        return "bad", "; ".join([said, *map(str, unusable)])
    return "good" if skills else "absent", said


def _store(store: str | None) -> tuple[State, str]:
    found = look(store)
    where = f"{found.address} ({found.source or '--store'})"
    if found.server is not None:
        key = "takes the key of FORKPOINT_API_KEY" if found.key else "needs no key"
        return "good", f"{where}, a server of version {found.server}, is ready and {key}"
    if found.address == "memory:":
        return "good", f"{where}, forgotten when the program ends"
    if found.postgres is not None:
        return _database(found, where)
    if not found.there:
        return "absent", f"{where} is not there yet; it is made when it is first used"
    holds = f"{figures.counted(found.conversations or 0, 'conversation')}, {figures.size(found.bytes or 0)}"
    format = f"format {found.format}"
    if found.format != found.newest_format:
        format += f", migrated to {found.newest_format} when it is next opened"
    said = f"{where}, {holds}, {format}"
    if found.anchored is not None:
        said += f", last anchor {figures.moment(found.anchored)}"
    if not found.is_checked:
        said += "; too large to check every page here: forkpoint verify"
    if found.readers is not None:
        path = unquote(found.address.removeprefix("sqlite:///").partition("?")[0])
        said += f"; {found.readers} can read it: chmod 600 {shlex.quote(path)}"
    if not found.conversations:
        said += "; if it should have some: a file that was copied without its -wal looks like this"
    if found.pending:
        said += "; something that was deleted is not gone from the disk yet: forkpoint collect"
    return "good", said


def _database(found: Look, where: str) -> tuple[State, str]:
    """A store in PostgreSQL, and which settings of its server break a promise."""
    said = f"{where}, PostgreSQL {found.postgres}, "
    if found.format is None:
        said += "has no tables of a store yet; they are made when it is first used"
    else:
        said += f"{figures.counted(found.conversations or 0, 'conversation')}, {figures.size(found.bytes or 0)}, "
        said += f"format {found.format}"
        if found.format < found.newest_format:
            said += f", migrated to {found.newest_format} when it is next opened"
    said = "; ".join([said, *found.flaws, *found.advice])
    return ("bad" if found.flaws else "absent" if found.format is None else "good"), said


def _variables() -> Iterator[Check]:
    """Which variables are set. Their values are never shown: some are keys."""
    others = sorted(name for name in os.environ if name.startswith("FORKPOINT_") and name not in _VARIABLES)
    for name in (*_VARIABLES, *others):
        there = bool(os.environ.get(name, "").strip())
        yield Check(name, "good" if there else "absent", "set" if there else "not set")


def _local() -> tuple[State, str]:
    found = status()
    if not found.extra:
        return "absent", "llama.cpp is not installed: pip install 'forkpoint[local]'"
    if found.problem is not None:
        return "bad", found.problem
    if found.weights is None:
        return "absent", f"the weights of {SMOLLM2.model} are not here: forkpoint local fetch"
    if not found.checksum:
        return "bad", f"{found.weights} is not what it should be: forkpoint local fetch --force"
    return "good", f"{SMOLLM2.model}, xllamacpp {found.extra_version}, weights from the {found.source}"


def _extra(extra: str, what: str) -> tuple[State, str]:
    """An optional part. It counts as usable only if it can be loaded."""
    try:
        extras.load(extra, what)
    except ExtraMissing:
        return "absent", f"not installed: pip install 'forkpoint[{extra}]'"
    return "good", f"installed: {', '.join(extras.MODULES[extra])}"
