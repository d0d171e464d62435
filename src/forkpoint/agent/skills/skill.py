"""Skills: what a model is told once a conversation comes to it.

A skill is a text with a name, and with the words and the files that call for it. When a user's message has one of the
words, or names one of the files, or a tool has touched one, the skill is **activated**: its text becomes an event of
the path, so that it is in every prompt from there on, in forks too, whatever becomes of the file that it was read
from. That happens once on a path.

Everything here is a pure function of what was said; `skill_files` reads skills from disk.
Tests: tests/agent/test_skills.py.
"""

import posixpath
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forkpoint.errors import BadAgent
from forkpoint.events import SkillActivated, ToolCall
from forkpoint.llm.prompt.manifest import is_text

LARGEST = 256 * 1024
"""Bytes that a skill may have; and that all skills may have that are activated at one moment, but for the first."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_LONGEST_WORD = 100  # characters
_LONGEST_PATTERN = 256
_LONGEST_DESCRIPTION = 1024
_MOST = 100  # words or patterns of a skill
_LONGEST_TEXT = 200_000  # characters of a message that are looked at: half from its beginning, half from its end
_LONGEST_PATH = 1024
_MOST_PATHS = 1000
_MOST_COMPARED = 10_000_000  # parts of patterns with parts of paths, of all skills at one moment

_PATHS = {"path", "paths", "file", "files", "file_path", "filename", "folder", "directory", "source", "destination"}
_COMMANDS = {"command", "cmd"}


class Skill(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that a model is told when it comes to it.

    - ``words``: whole words, or several in a row, in a user's message, whatever their case.
    - ``files``: patterns of paths, as in ``*.sql`` (in any folder) or ``migrations/**`` (from the workspace on).
    - ``source``: where it was read from, as it is shown to people; None if it stands in code.

    One without words and files is called for by its name. Raises `BadAgent`.
    """

    name: str
    content: str
    description: str = ""
    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    source: str | None = None

    def __post_init__(self) -> None:
        for field in ("words", "files"):
            given: Any = getattr(self, field)
            if not isinstance(given, tuple):  # one text is one of them, and not its letters
                force_setattr(self, field, (given,) if isinstance(given, str) else tuple(given or ()))
        for why in complaints(self.name, self.content, self.description, self.words, self.files):
            raise BadAgent(f"its skill {str(self.name)[:80]!r} {why}")

    @property
    def triggers(self) -> tuple[str, ...]:
        """The words that call for it."""
        return self.words if self.words or self.files else (self.name,)

    def activated(self) -> SkillActivated:
        """The event that says it."""
        return SkillActivated(self.name, self.content, self.source)


def triggered(
    skills: Iterable[Skill],
    message_text: str = "",
    touched_files: Iterable[str] = (),
    already: Collection[str] = (),
    *,
    workspace: PurePath | None = None,
) -> tuple[Skill, ...]:
    """The skills that are called for, in the order they are given, without those that were activated ``already``.

    All together they are no larger than `LARGEST`, or it is one alone: a skill that has no room is left for the next
    time that it is called for.
    """
    said = _SaidText(message_text, touched_files, workspace)
    found: dict[str, Skill] = {}
    room = LARGEST
    for skill in skills:
        if skill.name in already or skill.name in found or said.why(skill) is None:
            continue
        size = len(skill.content.encode())
        if found and size > room:
            continue
        found[skill.name] = skill
        room -= size
    return tuple(found.values())


def explain(
    skills: Iterable[Skill],
    message_text: str = "",
    touched_files: Iterable[str] = (),
    *,
    workspace: PurePath | None = None,
) -> tuple[tuple[Skill, str | None], ...]:
    """Each skill with what calls for it, in words; None if nothing does."""
    said = _SaidText(message_text, touched_files, workspace)
    return tuple((skill, said.why(skill)) for skill in skills)


def skills_of(given: Iterable[Any]) -> tuple[Skill, ...]:
    """The skills of an agent. Raises `BadAgent`."""
    skills = tuple(given)
    if any(not isinstance(skill, Skill) for skill in skills):
        raise BadAgent("each of its skills must be of the class Skill")
    if twice := [skill.name for n, skill in enumerate(skills) if skill.name in {one.name for one in skills[:n]}]:
        raise BadAgent(f"two of its skills are called {twice[0]}")
    return skills


def touched_paths(calls: Iterable[ToolCall]) -> tuple[str, ...]:
    """The paths that calls of tools name: as the argument that is a path, or in a command."""
    return tuple(dict.fromkeys(path for call in calls for path in _paths_of(call)))[:_MOST_PATHS]


def named_paths(text: str) -> tuple[str, ...]:
    """What looks like a path in a text: it has a slash, or ends like a file."""
    return tuple(dict.fromkeys(word for word in _tokens(_bounded(text)) if _LIKE_A_PATH.search(word)))[:_MOST_PATHS]


def complaints(name: Any, content: Any, description: Any, words: Any, files: Any) -> Iterator[str]:
    """What is wrong with what a skill is made of, after "the skill": nothing of it may be, if it is to be used."""
    texts = [("name", name), ("content", content), ("description", description)]
    if wrong := [what for what, text in texts if not (isinstance(text, str) and is_text(text))]:
        yield f"has a {wrong[0]} that is not a text, in valid Unicode"
        return
    if not NAME.fullmatch(name):
        yield "has a name that is not 1 to 64 of the characters A-Z a-z 0-9 . _ -, beginning with a letter or a digit"
    if not content.strip():
        yield "says nothing"
    elif len(content.encode()) > LARGEST:
        yield f"has more than {LARGEST:,} bytes"
    if len(description) > _LONGEST_DESCRIPTION:
        yield f"has a description of more than {_LONGEST_DESCRIPTION:,} characters"
    for what, row, longest in (("words", words, _LONGEST_WORD), ("files", files, _LONGEST_PATTERN)):
        if len(row) > _MOST:
            yield f"has more than {_MOST} {what}"
        for one in row:
            if not (isinstance(one, str) and is_text(one) and one.strip()):
                yield f"has something among its {what} that is not a text"
            elif len(one) > longest:
                yield f"has one of its {what} with more than {longest} characters"
            elif what == "files" and (why := _bad_pattern(one)) is not None:
                yield f"has the pattern {one!r}, and {why}"


class _SaidText:
    """What was said and touched, made ready to be compared."""

    def __init__(self, text: str, touched: Iterable[str], workspace: PurePath | None) -> None:
        self._text = _plain(" ".join(_bounded(text).split()))
        self._runs = frozenset(_RUN.findall(self._text))
        self._names = frozenset(_tokens(_bounded(text)))
        paths = (_relative(path, workspace) for path in (*named_paths(text), *_some(touched)))
        self._paths = [path for path in dict.fromkeys(paths) if path]
        self._left = _MOST_COMPARED

    def why(self, skill: Skill) -> str | None:
        """What calls for a skill, in words; None if nothing does."""
        for word in skill.triggers:
            if self._has(word):
                return f"the word {word!r}"
        for pattern in skill.files:
            for path in self._paths:
                if self._fits(pattern, path):
                    return f"the file {path} ({pattern})"
            if pattern in self._names:  # a name such as Dockerfile looks like no path, unless somebody waits for it
                return f"the file {pattern}"
        return None

    def _has(self, word: str) -> bool:
        """Whether a word is there, and no letter touches it. Scripts without spaces have no such edges."""
        plain, runs = _word(word)
        before, after = not _is_wide(plain[0]), not _is_wide(plain[-1])
        if before and after and not self._runs.issuperset(runs):
            return False  # hardly any word is there, and this is much faster than to look for it
        text, at = self._text, self._text.find(plain)
        while at >= 0:
            end = at + len(plain)
            if not (before and _is_letter(text[at - 1 : at])) and not (after and _is_letter(text[end : end + 1])):
                return True
            at = text.find(plain, at + 1)
        return False

    def _fits(self, pattern: str, path: str) -> bool:
        """Whether a path is meant: by its last name, or by all of it if the pattern has a slash."""
        if "/" not in pattern:
            return fnmatchcase(path.rpartition("/")[2], pattern)
        if self._left <= 0:
            return False
        parts = path.split("/")
        wanted = (f"{pattern}**" if pattern.endswith("/") else pattern).lstrip("/").split("/")
        self._left -= len(wanted) * len(parts)
        return self._left > 0 and _all_fit(wanted, parts)


# Words.


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


_RUN = re.compile(r"\w+")


@lru_cache(4096)
def _word(word: str) -> tuple[str, tuple[str, ...]]:
    """A word as it stands in a plain text, and the letters in a row that it consists of."""
    plain = _plain(" ".join(word.split()))
    return plain, tuple(_RUN.findall(plain))


def _is_letter(one: str) -> bool:
    return bool(_RUN.match(one))


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in {"W", "F"}


def _bounded(text: str) -> str:
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]}\n{text[-half:]}"


# Paths.

_BETWEEN = re.compile(r"[\s\"'`<>|]+|\]\(")
_LINE = re.compile(r"(:\d+)+(-\d+)?$")  # as in main.py:12:3
_LIKE_A_PATH = re.compile(r"[/\\]|\w\.\w{1,10}$|^\.\w")


def _tokens(text: str) -> Iterator[str]:
    """The words of a text as they would be paths: without what stands around one in a sentence."""
    for word in _BETWEEN.split(text):
        path = _LINE.sub("", word.lstrip("([{@*").rstrip(")]}.,;:!?*"))
        if path and "://" not in path and len(path) <= _LONGEST_PATH:
            yield path


def _some(paths: Iterable[str]) -> list[str]:
    return [path for path, _ in zip(paths, range(_MOST_PATHS), strict=False) if len(path) <= _LONGEST_PATH]


def _relative(path: str, workspace: PurePath | None) -> str:
    """A path from the workspace on, with slashes; empty for the workspace itself."""
    plain = posixpath.normpath(path.replace("\\", "/"))
    if workspace is not None:
        root = workspace.as_posix().rstrip("/")
        if plain == root or plain.startswith(f"{root}/"):
            plain = plain[len(root) + 1 :]
    return "" if plain == "." else plain


def _all_fit(wanted: Sequence[str], parts: Sequence[str]) -> bool:
    """Part by part, ``**`` being any number of them. The time it takes grows with the product of both, and no more."""
    here = {0}  # how many of the parts may be behind us
    for one in wanted:
        if one == "**":
            here = set(range(min(here), len(parts) + 1))
        else:
            here = {n + 1 for n in here if n < len(parts) and fnmatchcase(parts[n], one)}
        if not here:
            return False
    return len(parts) in here


def _bad_pattern(pattern: str) -> str | None:
    if "{" in pattern or "}" in pattern:
        return "braces mean nothing here: write one pattern for each"
    if "\\" in pattern:
        return "folders are told apart by /"
    parts = pattern.strip("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "it has an empty part, a . or a .. in it"
    if any("**" in part and part != "**" for part in parts):
        return "** must stand alone between slashes"
    return None


def _paths_of(call: ToolCall) -> Iterator[str]:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, str):
                continue
            if name in _COMMANDS:
                yield from named_paths(one)
            elif name in _PATHS and one.strip() and len(one) <= _LONGEST_PATH:
                yield one
