"""What was approved of projects, kept so that a change can be shown: a file for each digest and project.

The files are beside the user's settings, in ``pinned``, for their owner alone. They decide nothing: the digests in the
settings do. So keeping them is best effort, and where a record is missing, all content is shown as new.
"""

import difflib
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from forkpoint.errors import BadSetting
from forkpoint.events import JsonText
from forkpoint.system.durable_file import replace_file
from forkpoint.workspace.folders import origin_of, printable
from forkpoint.workspace.pins.pins import NOTHING, Pinned, content_of
from forkpoint.workspace.project import settings_at
from forkpoint.workspace.roots import checkout_and_root

_MOST = 200  # records
_LARGEST_FILE = 512 * 1024  # bytes of a file whose content is kept, or shown
_LARGEST = 16 * 1024 * 1024  # bytes of a record
_MOST_PROSE = 1000  # files


class KeptFile(Struct, frozen=True):
    """A file as it was approved. ``text`` is None if it was too large, or is not text."""

    name: str
    digest: str
    text: str | None = None


class PinRecord(Struct, frozen=True):
    """What was approved of a project. ``prose`` has the digests of its texts for agents, by name."""

    root: str
    settings: tuple[tuple[str, JsonText], ...] = ()
    files: tuple[KeptFile, ...] = ()
    prose: dict[str, str] = {}


def record_of(pinned: Pinned) -> PinRecord:
    """What is there now, as it would be kept."""
    files = tuple(KeptFile(one.name, one.digest, _text(content_of(one, _LARGEST_FILE))) for one in pinned.files)
    return PinRecord(printable(pinned.root), pinned.settings, files, prose_of(pinned))


def remember(pinned: Pinned, config: Path) -> None:
    """Keeps what was approved beside the user's settings. Raises nothing if that fails."""
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        folder = config.parent / "pinned"
        folder.mkdir(mode=0o700, exist_ok=True)
        content = msgspec.json.encode(record_of(pinned))
        if len(content) <= _LARGEST:
            replace_file(_place(folder, pinned.root, pinned.digest), content)
        _make_room(folder)


def recall(root: str, digests: Sequence[str], config: Path) -> PinRecord | None:
    """The newest record among the approved digests of a project, or None."""
    for digest in (*reversed(digests), NOTHING):
        place = _place(config.parent / "pinned", root, digest)
        with suppress(OSError, msgspec.DecodeError, UnicodeError), place.open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST + 1), type=PinRecord)
    return None


def what_changed(before: PinRecord | None, pinned: Pinned) -> str:
    """What differs from the approved content, on one line."""
    if before is None:
        names = [name for name, _ in pinned.settings] + [file.name for file in pinned.files]
        return f"nothing of this was approved yet: {printable(', '.join(names)) or 'nothing'}"
    old, new = dict(before.settings), dict(pinned.settings)
    said = [f"`{name}` in its settings" for name in sorted(old | new) if old.get(name) != new.get(name)]
    had = {(one.name, one.digest) for one in before.files}
    has = {(one.name, one.digest) for one in pinned.files}
    said += [printable(name) for name in sorted({name for name, _ in had ^ has})]
    return f"{', '.join(said) or 'its content'} changed"


def differences(before: PinRecord | None, pinned: Pinned) -> Iterator[str]:
    """The lines that show the change, as ``diff -u`` does. Without a record all content is new."""
    now = record_of(pinned)
    old = PinRecord("") if before is None else before
    for name in sorted(dict(old.settings) | dict(now.settings)):
        lines = [_pretty(dict(one.settings).get(name)) for one in (old, now)]
        yield from _differences(f".forkpoint/config.toml: {name}", *lines)
    for name in sorted({file.name for one in (old, now) for file in one.files}):
        lines = [[line for file in one.files if file.name == name for line in _shown(file)] for one in (old, now)]
        yield from _differences(printable(name), *lines)


def prose_changed(before: PinRecord | None, pinned: Pinned) -> tuple[str, ...]:
    """The names of the project's texts for agents that changed since it was last approved."""
    if before is None:
        return ()
    now = prose_of(pinned)
    return tuple(name for name in sorted(before.prose | now) if before.prose.get(name) != now.get(name))


def prose_of(pinned: Pinned) -> dict[str, str]:
    """The digests of a project's texts for agents, by name: instructions, ``AGENTS.md`` and skills."""
    found: dict[str, str] = {}
    with suppress(BadSetting):
        if (told := settings_at(Path(pinned.root)).instructions) is not None:
            found["instructions"] = _digest(told.encode())
    here = origin_of(pinned.folder)
    checkout = checkout_and_root(here)[0]
    between = [folder for folder in (here, *here.parents) if folder.is_relative_to(checkout)]
    paths = [folder / "AGENTS.md" for folder in between]
    for place in dict.fromkeys((checkout, Path(pinned.root))):
        with suppress(OSError):
            paths += sorted((place / ".forkpoint" / "skills").rglob("*"))[:_MOST_PROSE]
    for path in paths:
        with suppress(OSError, ValueError):
            if path.is_file() and path.stat().st_size <= _LARGEST_FILE:
                place = next((one for one in (checkout, Path(pinned.root)) if path.is_relative_to(one)), checkout)
                found[printable(path.relative_to(place))] = _digest(path.read_bytes())
    return found


def _place(folder: Path, root: str, digest: str) -> Path:
    project = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return folder / f"{digest.removeprefix('sha256:')}-{project}.json"


def _make_room(folder: Path) -> None:
    """Deletes the oldest records beyond the limit."""
    records = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in records[:-_MOST]:
        path.unlink(missing_ok=True)


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None or b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _shown(file: KeptFile) -> list[str]:
    if file.text is None:
        kept = "is not there" if file.digest == "missing" else f"(no text, or a large one: {file.digest})"
        return [f"{printable(file.name)} {kept}"]
    return file.text.split("\n")  # so that no kind of line end is left out of the comparison


def _pretty(value: JsonText | None) -> list[str]:
    return [] if value is None else msgspec.json.format(value.encode(), indent=2).decode().splitlines()


def _differences(name: str, old: list[str], new: list[str]) -> Iterator[str]:
    before = f"{name} (approved)" if old else "(nothing)"
    now = f"{name} (now)" if new else "(nothing)"
    yield from difflib.unified_diff(old, new, before, now, lineterm="")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
