"""Patterns of paths: ``*.py``, ``src/**/test_*.py``, ``*.{c,h}``.

A pattern without a slash is one of names, in any folder. Each part of a path is matched by itself, so that no pattern
takes long, however many stars it has. Tests: tests/agent/builtin/test_searching.py.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from forkpoint.agent.builtin.failure import ToolFailed

_ALTERNATIVES = 64
_LONGEST = 1000
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """Says of a path whether it fits. Raises `ToolFailed` for a pattern that is too large."""
    if pattern is None:
        return lambda _: True
    patterns = [_parts(one) for one in _alternatives(pattern)]
    return lambda path: any(_fits(path.split("/"), parts) for parts in patterns)


def _alternatives(pattern: str) -> list[str]:
    done: list[str] = []
    left = [pattern]
    while left:
        one = left.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            left += [one[: braces.start()] + choice + one[braces.end() :] for choice in braces[1].split(",")]
        if len(one) > _LONGEST or len(left) + len(done) > _ALTERNATIVES:
            raise ToolFailed(f"The pattern {pattern[:100]!r} is too large.")
    return done


def _parts(pattern: str) -> list[str]:
    if "/" not in pattern:
        return ["**", pattern]
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    return [*parts, "**"] if pattern.endswith("/") else parts


def _fits(names: list[str], parts: list[str]) -> bool:
    """Whether all names are matched by all parts: at each name, every part is tried that can be next."""
    at = _skipping({0}, parts)
    for name in names:
        after = {
            here if parts[here] == "**" else here + 1
            for here in at
            if here < len(parts) and (parts[here] == "**" or fnmatchcase(name, parts[here]))
        }
        at = _skipping(after, parts)
    return len(parts) in at


def _skipping(at: set[int], parts: list[str]) -> set[int]:
    """The same, and behind each ``**``, which may stand for nothing."""
    found = set(at)
    for here in sorted(at):
        while here < len(parts) and parts[here] == "**":
            here += 1
            found.add(here)
    return found
