"""What a settings file says of a project, changed in its text: comments, order and spacing stay.
Tests: tests/workspace/test_trust.py."""

import json
from collections.abc import Sequence
from typing import Any

from forkpoint.workspace.config import Unreadable, parsed

_NAMES = ("trust", "pinned")


def with_trust(text: str, root: str, trust: str | None, pinned: Sequence[str] = ()) -> str:
    """The text with another decision about a project; the same text if it says so already.

    ``pinned`` are all digests that are approved of it. Without any, it says nothing of them.
    Raises `Unreadable` if the text is not understood, or if no edit of it says exactly this and all else as before.
    """
    if not _is_text(root):
        raise Unreadable("the name of the folder is not UTF-8, which a file in TOML cannot hold")
    before = parsed(text)
    said = {} if trust is None else {"trust": trust} | ({"pinned": list(pinned)} if pinned else {})
    wanted = _wanted(before, root, said)
    if wanted == _plain(before, root):
        return text
    # A new entry goes to the end: a table that is put among others would part one of them from its comment.
    for edit in (_with_last_table, _edited):
        if (new := edit(text, root, said, before)) is not None and _says(new, wanted, root):
            return new
    raise Unreadable("it is written in a way that cannot be edited")


def _wanted(before: dict[str, Any], root: str, said: dict[str, Any]) -> dict[str, Any]:
    """What the file is to say."""
    projects = before.get("projects", {})
    if not isinstance(projects, dict):
        raise Unreadable("`projects` in it is not a table")
    entry = projects.get(root, {})
    if not isinstance(entry, dict):
        raise Unreadable(f"`projects.{_quoted(root)}` in it is not a table")
    new = {name: value for name, value in entry.items() if name not in _NAMES} | said
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


def _with_last_table(text: str, root: str, said: dict[str, Any], before: dict[str, Any]) -> str | None:
    """The project's table put at the end of the file, or changed there if that is where it was put."""
    line = "\r\n" if "\r\n" in text else "\n"
    entry = before.get("projects", {}).get(root)
    if isinstance(entry, dict) and text.endswith(table := _table(root, entry, line)):
        text = text.removesuffix(table)
        return text + _table(root, said, line) if said else text.removesuffix(line)
    if not said:
        return None
    if text and not text.endswith("\n"):
        text += line
    return text + (line if text else "") + _table(root, said, line)


def _table(root: str, said: dict[str, Any], line: str) -> str:
    lines = [f"[projects.{_quoted(root)}]"]
    if "trust" in said:
        lines.append(f'trust = "{said["trust"]}"')
    if digests := said.get("pinned"):
        lines += ["pinned = [", *(f'    "{one}",' for one in digests), "]"]
    return "".join(one + line for one in lines)


def _quoted(root: str) -> str:
    return json.dumps(root, ensure_ascii=False).replace("\x7f", "\\u007f")


def _edited(text: str, root: str, said: dict[str, Any], before: dict[str, Any]) -> str | None:
    """The table edited where it is; None if that cannot be done."""
    import tomlkit
    from tomlkit.items import InlineTable

    try:
        document = tomlkit.parse(text)
        projects: Any = document["projects"]
        if root not in projects:
            projects[root] = tomlkit.inline_table() if isinstance(projects, InlineTable) else tomlkit.table()
        entry = projects[root]
        if not said and not set(entry) - set(_NAMES) and "#" not in entry.as_string():
            del projects[root]  # but not with a comment: it may be about the next table
            return tomlkit.dumps(document)
        if "trust" in said:
            entry["trust"] = said["trust"]
        elif "trust" in entry:
            del entry["trust"]
        if "pinned" not in said:
            if "pinned" in entry:
                del entry["pinned"]
        elif "pinned" not in entry:
            entry["pinned"] = tomlkit.item(said["pinned"]).multiline(not isinstance(entry, InlineTable))
        else:
            digests = entry["pinned"]
            for place in reversed(range(len(digests))):
                if digests[place] not in said["pinned"]:
                    del digests[place]
            for digest in said["pinned"]:
                if digest not in digests:
                    digests.append(digest)
        return tomlkit.dumps(document)
    except Exception:  # what it raises on odd documents differs by version; whoever asked then says that it cannot be
        return None
