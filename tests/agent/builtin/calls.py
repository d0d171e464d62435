"""Calls of tools as the loop makes them: one after the other, with the state that each leaves to the next."""

import json
from pathlib import Path
from typing import Any

from forkpoint.agent import Tool, ToolContext, run_call
from forkpoint.events import NewEvent, Text, ToolCall, ToolResult
from forkpoint.history.state import EMPTY, State
from forkpoint.history.wholeness import check_whole


class Calls:
    def __init__(self, workspace: Path | None) -> None:
        self.workspace = workspace
        self.state: State = EMPTY
        self.progress: list[str] = []
        self.last: ToolResult

    async def __call__(self, tool: Tool, **arguments: Any) -> str:
        """What the model is told; a failed call begins with FAILED."""
        context = ToolContext("call-1", workspace=self.workspace, state=self.state, progress=self.progress.append)
        self.last = await run_call(tool, ToolCall("call-1", tool.name, json.dumps(arguments)), context)
        check_whole(NewEvent(self.last))
        if not self.last.error and context.state.change is not None:
            self.state = self.state.then(context.state.change)
        told = "".join(part.text for part in self.last.parts if isinstance(part, Text))
        return f"FAILED {told}" if self.last.error else told

    def kept(self) -> Any:
        """What the shell has put into the state."""
        return json.loads(self.state.get("shell") or "null")
