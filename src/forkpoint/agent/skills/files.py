"""Skills and instructions that stand in files, read within bounds.

A skill is a file ``NAME.md``, or ``NAME/SKILL.md``, whose front matter has some of these lines, and no others that mean
anything:

.. code-block:: markdown

    ---
    name: migrations
    description: How we change the database.
    words: [migration, schema change]
    files:
      - migrations/**
      - "*.sql"
    ---
    Write each change twice: forwards and backwards.

What cannot be used is told and left out; nothing is raised, and nothing is read of what is too large.
Tests: tests/agent/test_skills.py.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any

from msgspec import Struct

from forkpoint.agent.skills.front_matter import BadHeader, front_matter
from forkpoint.agent.skills.skill import LARGEST, Skill, complaints

INSTRUCTIONS = "AGENTS.md"
LARGEST_INSTRUCTIONS = 128 * 1024
"""Bytes that all instructions of a project may have together."""

_MOST_SKILLS = 500  # of a folder
_MOST_ENTRIES = 5000  # of a folder that are looked at

_FIELDS = ("name", "description", "words", "files")


class BadSkill(Struct, frozen=True):
    """Something that could not be used as it stands in a file, or not all of it."""

    source: str
    why: str

    def __str__(self) -> str:
        return f"{self.source}: {self.why}"


class Found(Struct, frozen=True):
    """The skills that were found, in order, each name once; and what could not be used."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[BadSkill, ...] = ()


class ProjectText(Struct, frozen=True):
    """What a project tells whoever works there, the files that say so, and what could not be used."""

    text: str = ""
    sources: tuple[str, ...] = ()
    problems: tuple[BadSkill, ...] = ()


def skills_in(folder: Path, within: Path | None = None) -> Found:
    """The skills of a folder, by their names. One that is not there has none.

    With ``within`` no link leads out of that folder: what a project names is in the project.
    """
    skills: list[Skill] = []
    problems: list[BadSkill] = []
    try:
        entries = _entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return Found()
    except (OSError, ValueError) as error:
        return Found((), (BadSkill(_shown(folder), f"it cannot be read ({_reason(error)})"),))
    if len(entries) > _MOST_ENTRIES:
        return Found((), (BadSkill(_shown(folder), f"it has more than {_MOST_ENTRIES:,} entries, and none is read"),))
    files = [found for entry in entries if (found := _skill_file(folder / entry)) is not None]
    for name, path in files[:_MOST_SKILLS]:
        try:
            skill, unknown = skill_of(_text_of(path, within), name, _shown(path))
        except FileNotFoundError:
            if os.path.lexists(path):  # otherwise it is a folder without a skill, or gone since
                problems.append(BadSkill(_shown(path), "it is a link to what is not there"))
        except BadHeader as error:
            problems.append(BadSkill(_shown(path), str(error)))
        else:
            skills.append(skill)
            problems += [BadSkill(_shown(path), why) for why in unknown]
    if len(files) > _MOST_SKILLS:
        problems.append(
            BadSkill(_shown(folder), f"it has more than {_MOST_SKILLS} skills, and only the first are read")
        )
    return together(Found(tuple(sorted(skills, key=lambda one: one.name)), tuple(problems)))


def together(*found: Found) -> Found:
    """The skills of several places. Of two with one name the first is used, and the other is told as a problem."""
    skills: dict[str, Skill] = {}
    problems: list[BadSkill] = []
    for one in found:
        problems += one.problems
        for skill in one.skills:
            first = skills.setdefault(skill.name, skill)
            if first is not skill:
                why = f"its skill {skill.name} is not used, since {first.source or 'the agent'} has one of that name"
                problems.append(BadSkill(skill.source or "the agent", why))
    return Found(tuple(skills.values()), tuple(problems))


def skill_of(text: str, name: str, source: str | None = None) -> tuple[Skill, tuple[str, ...]]:
    """The skill that a Markdown text is, called ``name`` unless it says otherwise; and what in it has no effect.

    Raises `BadHeader` if it is not a skill.
    """
    fields, content = front_matter(text, _FIELDS)
    made: dict[str, Any] = {"name": name, "content": content.strip()}
    for key in ("name", "description"):
        given = fields.get(key) or made.get(key, "")
        if not isinstance(given, str):
            raise BadHeader(f"its {key} is a list, and must be a text")
        made[key] = given
    for key in ("words", "files"):
        given = fields.get(key, [])
        made[key] = (given,) if isinstance(given, str) else tuple(given)
    for why in complaints(made["name"], made["content"], made["description"], made["words"], made["files"]):
        raise BadHeader(f"the skill {why}")
    unknown = (key for key in fields if key not in _FIELDS)
    effect = "has no effect; what is known is " + ", ".join(_FIELDS)
    return Skill(**made, source=source), tuple(f"`{key[:80]}` in its front matter {effect}" for key in unknown)


def instructions_in(top: Path, workspace: Path) -> ProjectText:
    """What ``AGENTS.md`` says in a project's folder and in those below it, down to the workspace, in that order.

    All of a file is used or nothing. A link is followed if it does not lead out of the project.
    """
    top, workspace = Path(os.path.realpath(top)), Path(os.path.realpath(workspace))
    folders = [folder for folder in (workspace, *workspace.parents) if folder.is_relative_to(top)]
    parts: list[str] = []
    sources: list[str] = []
    problems: list[BadSkill] = []
    room = LARGEST_INSTRUCTIONS
    for folder in reversed(folders):
        path = folder / INSTRUCTIONS
        try:
            text = _text_of(path, top).strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except BadHeader as error:
            problems.append(BadSkill(_shown(path), str(error)))
            continue
        if not text:
            continue
        size = len(text.encode())
        if size > room:
            why = f"it has no room left: all {INSTRUCTIONS} of a project may have {LARGEST_INSTRUCTIONS:,} bytes"
            problems.append(BadSkill(_shown(path), why))
            continue
        room -= size
        # The path is one within the project: a prompt must not change with the place that it was checked out to.
        parts.append(f"Instructions in {_shown(path.relative_to(top))}:\n\n{text}")
        sources.append(_shown(path))
    return ProjectText("\n\n".join(parts), tuple(sources), tuple(problems))


def _entries(folder: Path) -> list[str]:
    """The names in a folder, sorted; one more than may be if there are more."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > _MOST_ENTRIES:
                break
    return sorted(names)


def _skill_file(path: Path) -> tuple[str, Path] | None:
    """What a skill in this place is called, and its file; None if this can be none."""
    if path.name.startswith(".") or path.name.lower() == "readme.md":
        return None
    if path.suffix.lower() == ".md":
        return path.stem, path
    return (path.name, path / "SKILL.md") if path.is_dir() else None


def _text_of(path: Path, within: Path | None) -> str:
    """The text of a file, with plain line ends. Raises `BadHeader`, or what says that it is not there."""
    try:
        real = os.path.realpath(path, strict=True)
        if within is not None and not Path(real).is_relative_to(os.path.realpath(within)):
            raise BadHeader(f"it is a link that leads out of {within}")
        # What is not a file must not be waited for, and is known only once it is open: it may be another by then.
        handle = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise BadHeader("it is not a file")
            if found.st_size > LARGEST:
                raise BadHeader(f"it has {found.st_size:,} bytes, and may have {LARGEST:,}")
            content = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EISDIR:
            raise BadHeader("it is not a file") from None
        raise BadHeader(f"it cannot be read ({_reason(error)})") from None
    if len(content) > LARGEST:
        raise BadHeader(f"it has more than {LARGEST:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadHeader("it is not UTF-8") from None
    if "\0" in text:
        raise BadHeader("it is not a text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _shown(path: Path) -> str:
    """A path as a text: names of files can have bytes that no text has."""
    return path.as_posix().encode(errors="backslashreplace").decode()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
