"""Front matter: what stands between two lines of dashes at the top of a Markdown file.

It is a small part of YAML, and that part exactly: ``key: value`` and lists of texts, plain or in quotes. Whatever could
mean something else in YAML is refused with its line, and never guessed. Tests: tests/agent/test_skills.py.
"""

import re
from collections.abc import Collection, Iterable, Iterator

_MOST_LINES = 500
_KEY = re.compile(r"([A-Za-z_][\w-]*)[ \t]*:(?:[ \t]+(.*))?")


class BadHeader(Exception):
    """A file cannot be used; its text says why."""


def front_matter(text: str, known: Collection[str]) -> tuple[dict[str, str | list[str]], str]:
    """What stands between the two lines of dashes, and the text after them.

    A key that is not ``known`` may have any value, and comes with none. Raises `BadHeader`.
    """
    if not text.startswith("---\n") and text.rstrip() != "---":
        return {}, text
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines[1 : _MOST_LINES + 2], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise BadHeader(f"its front matter does not end: there is no second line of --- within {_MOST_LINES} lines")
    return _fields(lines[1:end], known), "\n".join(lines[end + 1 :])


def _fields(lines: Iterable[str], known: Collection[str]) -> dict[str, str | list[str]]:
    fields: dict[str, str | list[str]] = {}
    open: str | None = None  # the key whose list may follow
    for number, line in enumerate(lines, 2):
        plain = line.strip()
        if not plain or plain.startswith("#"):
            continue
        where = f"line {number} of its front matter"
        is_item = plain == "-" or plain.startswith("- ")
        if open is not None and open not in known and (is_item or line[0] in " \t"):
            continue  # what has no effect may look as it likes
        if is_item and open is not None:
            items = fields[open]
            assert isinstance(items, list)
            items.append(_value(plain[1:].strip(), where))
            continue
        matched = _KEY.fullmatch(line.rstrip())
        if matched is None:
            raise BadHeader(f"{where} is neither `key: value` nor an item of a list")
        key, given = matched[1], (matched[2] or "").strip()
        if key in fields:
            raise BadHeader(f"{where} sets {key} again")
        if key not in known:
            fields[key], open = "", key
        elif not given or given.startswith("#"):
            fields[key], open = [], key
        else:
            fields[key], open = _row(given, where) if given.startswith("[") else _value(given, where), None
    return fields


def _row(given: str, where: str) -> list[str]:
    """A list on one line."""
    if not given.endswith("]"):
        raise BadHeader(f"{where} has a list that does not end on it")
    return [_value(item, where) for item in _items(given[1:-1], where)]


def _items(text: str, where: str) -> Iterator[str]:
    """What stands between commas, quotes aside."""
    item, quote = "", ""
    for letter in text:
        if letter == "," and not quote:
            if not item.strip():
                raise BadHeader(f"{where} has an empty item")
            yield item.strip()
            item = ""
            continue
        if letter in "\"'" and (letter == quote or (not quote and not item.strip())):
            quote = "" if quote else letter
        item += letter
    if quote:
        raise BadHeader(f"{where} has a quote that does not end")
    if item.strip():
        yield item.strip()


def _value(given: str, where: str) -> str:
    """A plain or quoted text. Whatever means something else in YAML is refused, and not guessed."""
    if given[:1] in {'"', "'"}:
        if len(given) < 2 or given[-1] != given[0] or given[0] in given[1:-1] or "\\" in given:
            raise BadHeader(f"{where} has a quoted text with something after it, or with quotes or \\ in it")
        return given[1:-1]
    if not given:
        raise BadHeader(f"{where} has an empty item")
    if given[0] in "[]{}>|&*!%@`" or given.startswith(("- ", "? ")):
        raise BadHeader(f"{where} begins with {given[0]}; put the text in quotes, on one line")
    if ": " in given or " #" in given or given.endswith(":"):
        raise BadHeader(f"{where} has a colon or a # that may mean something else; put the text in quotes")
    return given
