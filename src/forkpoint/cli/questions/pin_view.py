"""What a project would run, as a person sees it before deciding: every command, every pinned file, and what changed.

All of it is shown to the character: no blank is left out, and what cannot be seen is made visible.
Tests: tests/cli/test_trust.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from forkpoint.cli.output import console, one_line
from forkpoint.cli.questions.whole_view import print_above
from forkpoint.conversation.call_view import ViewLine
from forkpoint.conversation.screen_text import visible, visible_line
from forkpoint.workspace.pins.pin_records import PinRecord, differences, prose_changed, prose_of, recall, what_changed
from forkpoint.workspace.pins.pins import NOTHING, Pinned, is_approved_here, pinned_at
from forkpoint.workspace.trust import TrustStand

_TABLES = ("hooks", "mcp")


class PinView:
    """How what is pinned of a folder's project stands to what was approved. Raises `BadSetting`."""

    def __init__(self, folder: str, found: TrustStand, config: Path) -> None:
        self.pinned: Pinned = pinned_at(folder)
        self._approved = found.pinned
        self._was_trusted = found.trust == "trusted"
        self._before: PinRecord | None = recall(self.pinned.root, found.pinned, config)
        self.is_approved = found.trust == "trusted" and is_approved_here(self.pinned.digest, found.pinned)

    @property
    def digest(self) -> str:
        return self.pinned.digest

    @property
    def is_empty(self) -> bool:
        return self.digest == NOTHING

    @property
    def changed(self) -> str | None:
        """What changed since it was approved; None if it is approved."""
        return None if self.is_approved else what_changed(self._before, self.pinned)

    @property
    def prose(self) -> tuple[str, ...]:
        """What the project tells agents that changed since it was approved."""
        return prose_changed(self._before, self.pinned) if self._was_trusted else ()

    @property
    def summary(self) -> str:
        """One line."""
        if self.is_approved:
            return "nothing" if self.is_empty else f"{self.digest}, approved"
        return f"{self.digest}, not approved: {one_line(self.changed or '')}"

    def lines(self) -> Iterator[str]:
        """All of it: the commands with their files, the settings, and the change if something else was approved."""
        if self.is_empty:
            yield "It runs nothing."
        for name, tables in self.pinned.settings:
            yield from _settings(name, msgspec.json.decode(tables), self.pinned)
        if told := prose_of(self.pinned):
            yield f"It tells agents: {one_line(', '.join(told))}"
        if self.prose:
            yield f"Of what it tells agents, this changed: {one_line(', '.join(self.prose))}"
        if self._was_trusted and not self.is_approved:
            yield "What changed since you approved it:"
            yield from (f"  {visible(line)}" for line in differences(self._before, self.pinned))
        yield f"Pinned: {self.digest}"

    def above(self, question: str) -> None:
        """Prints all of it on standard error, directly above a question."""
        print_above(console(stderr=True), [ViewLine(line) for line in self.lines()], question)

    def document(self) -> dict[str, Any]:
        """The same, for programs."""
        return {
            "digest": self.digest,
            "approved": self.is_approved,
            "changed": self.changed,
            "prose_changed": list(self.prose),
            "settings": {name: msgspec.json.decode(value) for name, value in self.pinned.settings},
            "files": [{"name": one.name, "digest": one.digest} for one in self.pinned.files],
        }


def _settings(name: str, value: Any, pinned: Pinned) -> Iterator[str]:
    """A setting. Each hook and each server has a line for its command, one for what else it says, and its files."""
    if name == "models":
        for model, table in value.items():
            yield visible_line(f"It names a model {model}: {msgspec.json.encode(table).decode()}")
        return
    if name not in _TABLES:
        yield f"It sets {name} = {visible_line(str(value))}"
        return
    kind = "hook" if name == "hooks" else "mcp"
    commands = [one for one in pinned.commands if one.kind == kind]
    for table, command in zip(value, commands, strict=True):
        what = f"hook at {table.get('moment')}" if kind == "hook" else f"MCP server {table.get('name')}"
        runs = table.get("command") or table.get("url")
        said = runs if isinstance(runs, str) else msgspec.json.encode(runs).decode()
        yield visible_line(f"It runs a {what}: {said}" if "url" not in table else f"It uses the {what}: {said}")
        known = ("moment", "name", "command", "url")
        if rest := {key: other for key, other in table.items() if key not in known}:
            yield f"  with {visible_line(msgspec.json.encode(rest).decode())}"
        for file in command.files:
            yield f"  {visible_line(file.name)}  {file.digest}"
