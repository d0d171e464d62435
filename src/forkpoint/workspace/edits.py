"""What a settings file says of a project, changed in its text: comments, order and spacing stay.
Tests: tests/workspace/test_trust.py."""

import json
from typing import Any

from forkpoint.workspace.config import Unreadable, parsed


def with_trust(text: str, root: str, trust: str | None) -> str:
    """The text with another decision about a project; the same text if it says so already.

    Raises `Unreadable` if the text is not understood, or if no edit of it says exactly this and all else as before.
    """
    if not _is_text(root):
        raise Unreadable("the name of the folder is not UTF-8, which a file in TOML cannot hold")
    before = parsed(text)
    wanted = _wanted(before, root, trust)
    if wanted == _plain(before, root):
        return text
    # A new entry goes to the end: a table that is put among others would part one of them from its comment.
    for edit in (_with_last_table, _edited):
        if (new := edit(text, root, trust)) is not None and _says(new, wanted, root):
            return new
    raise Unreadable("it is written in a way that cannot be edited")


def _wanted(before: dict[str, Any], root: str, trust: str | None) -> dict[str, Any]:
    """What the file is to say."""
    projects = before.get("projects", {})
    if not isinstance(projects, dict):
        raise Unreadable("`projects` in it is not a table")
    entry = projects.get(root, {})
    if not isinstance(entry, dict):
        raise Unreadable(f"`projects.{_quoted(root)}` in it is not a table")
    new = {name: value for name, value in entry.items() if name != "trust"} | (
        {} if trust is None else {"trust": trust}
    )
    return _plain(before | {"projects": projects | {root: new}}, root)


def _plain(document: dict[str, Any], root: str) -> dict[str, Any]:
    """The same without empty tables for the project, which say nothing."""
    projects = document.get("projects")
    if isinstance(projects, dict):
        projects = {name: entry for name, entry in projects.items() if name != root or entry != {}}
        document = document | {"projects": projects}
    return {name: value for name, value in document.items() if name != "projects" or value != {}}


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _says(text: str, wanted: dict[str, Any], root: str) -> bool:
    try:
        return _plain(parsed(text), root) == wanted
    except Unreadable:
        return False


def _with_last_table(text: str, root: str, trust: str | None) -> str | None:
    """The project's table put at the end of the file, or taken from there if that is where it was put."""
    line = "\r\n" if "\r\n" in text else "\n"
    if trust is None:
        for said in ("trusted", "untrusted"):
            if text.endswith(table := _table(root, said, line)):
                return text.removesuffix(table).removesuffix(line)
        return None
    if text and not text.endswith("\n"):
        text += line
    return text + (line if text else "") + _table(root, trust, line)


def _table(root: str, trust: str, line: str) -> str:
    return f'[projects.{_quoted(root)}]{line}trust = "{trust}"{line}'


def _quoted(root: str) -> str:
    return json.dumps(root, ensure_ascii=False).replace("\x7f", "\\u007f")


def _edited(text: str, root: str, trust: str | None) -> str | None:
    """The table edited where it is; None if that cannot be done."""
    import tomlkit
    from tomlkit.items import InlineTable

    try:
        document = tomlkit.parse(text)
        projects: Any = document["projects"]
        if root not in projects:
            projects[root] = tomlkit.inline_table() if isinstance(projects, InlineTable) else tomlkit.table()
        entry = projects[root]
        if trust is not None:
            entry["trust"] = trust
        elif set(entry) == {"trust"} and "#" not in entry.as_string():  # a comment may be about the next table
            del projects[root]
        else:
            del entry["trust"]
        return tomlkit.dumps(document)
    except Exception:  # what it raises on odd documents differs by version; whoever asked then says that it cannot be
        return None
