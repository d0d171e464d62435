"""What a tool gets to see and to do while it runs."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forkpoint.agent.secrets.masking import Masking
from forkpoint.agent.secrets.secret import Resolved
from forkpoint.errors import NotWhole
from forkpoint.events import AnyBody, JsonText, StateChange
from forkpoint.history.state import EMPTY, State
from forkpoint.history.wholeness import read_json

if TYPE_CHECKING:
    from forkpoint.agent.team.tools import Agents, Team
    from forkpoint.workspace.pins.pins import PinnedCommand


SHELL = "shell"
"""The key of the agent's state that has the folder and the variables of its shell."""


class EndsTurn(Exception):
    """A call could not be started, for a reason that ends its turn: it is not for the model to go on from there."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class AgentState(MutableMapping[str, Any]):
    """The agent's state as one call sees it: what it sets is staged, and becomes true with the turn's commit.

    Values are JSON. It is used as a dict is: a list or a dict that was read or set may be changed in place, and counts
    as it is when the call ends (`settle`). When the call has ended without the tool, as a thread that was left behind,
    setting anything raises.
    """

    def __init__(self, state: State = EMPTY) -> None:
        self._before = dict(state.values)
        self._set: dict[str, JsonText] = {}
        self._removed: set[str] = set()
        self._read: set[str] = set()
        self._shared: dict[str, tuple[Any, JsonText]] = {}  # values that the tool may change in place, and as they were
        self._plain: set[str] = set()  # whose shared values are what their JSON says, so that they are read as they are
        self._ended = False
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        if key in self._removed or (key not in self._set and key not in self._before):
            raise KeyError(key)
        with self._lock:
            if key in self._shared and key in self._plain:
                return self._shared[key][0]
            self._take(key)
            value = msgspec.json.decode(self._set.get(key) or self._before[key])
            if not self._ended:
                self._share(key, value)
            return value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of the state is a text, not {type(key).__name__}")
        text = _text(key, value)
        with self._lock:
            self._check_running()
            self._set[key] = text
            self._removed.discard(key)
            self._share(key, value)

    def __delitem__(self, key: str) -> None:
        self[key]
        with self._lock:
            self._check_running()
            self._set.pop(key, None)
            self._shared.pop(key, None)
            if key in self._before:
                self._removed.add(key)

    def __iter__(self) -> Iterator[str]:
        self._read |= self._before.keys()
        yield from sorted((self._before.keys() | self._set.keys()) - self._removed)

    def __len__(self) -> int:
        self._read |= self._before.keys()
        return len((self._before.keys() | self._set.keys()) - self._removed)

    @property
    def change(self) -> StateChange | None:
        """What was changed, as an event; None if nothing was. Raises what `settle` raises while the call runs."""
        self.settle()
        kept = {key: value for key, value in self._set.items() if not self._was(key, value)}
        if not kept and not self._removed:
            return None
        return StateChange(tuple(sorted(kept.items())), tuple(sorted(self._removed)))

    def outdated(self, before: State, now: State) -> str | None:
        """A key that was read here and has another value by now; None if all that was read still holds."""
        return next((key for key in sorted(self._read) if before.get(key) != now.get(key)), None)

    def settle(self) -> None:
        """Takes values that were changed in place as they are now. Raises `NotWhole` for one that JSON cannot say."""
        with self._lock:
            for key in sorted(self._shared):
                self._take(key)

    def end(self) -> None:
        """From here on nothing can be set: whoever still tries is too late for the turn."""
        with self._lock:
            self._ended = True
            self._shared.clear()

    def _share(self, key: str, value: Any) -> None:
        """Notes a value that the tool has in its hands. It may be changed in place, unless it is a plain one."""
        self._shared.pop(key, None)
        self._plain.discard(key)
        if not isinstance(value, str | int | float | None):
            self._shared[key] = value, (text := _text(key, value))
            if msgspec.json.decode(text) == value:  # a tuple, say, would be read as a list by the next call
                self._plain.add(key)

    def _take(self, key: str) -> None:
        """The value of a key is as the tool has it now. A value that was not changed in place stays as it was set."""
        if key not in self._shared:
            return
        value, before = self._shared[key]
        text = _text(key, value)
        if text != before:
            self._shared[key] = value, text
            self._set[key] = text

    def _check_running(self) -> None:
        if self._ended:
            raise RuntimeError("the call has ended, so its state cannot be changed any more")

    def _was(self, key: str, value: JsonText) -> bool:
        """Whether a key had this value before, however it was spelled."""
        before = self._before.get(key)
        return before is not None and msgspec.json.encode(msgspec.json.decode(before)).decode() == value


def _text(key: str, value: Any) -> JsonText:
    """A value of the state as JSON. Raises `NotWhole` if it has no such form."""
    try:
        key.encode()
        text = msgspec.json.encode(value).decode()
        read_json(text)
        if not _is_finite(msgspec.to_builtins(value)):
            raise ValueError("a number is not finite")
    except (TypeError, ValueError, RecursionError, OverflowError, RuntimeError) as error:
        # RuntimeError: a thread that the tool has left behind changes it at this moment
        raise NotWhole("state_change", f"the value of {key!r} has no JSON form ({error})") from None
    return text


def _is_finite(value: Any) -> bool:
    """Whether all numbers in a value are. JSON has no others, and would say null in their place."""
    left = [value]
    while left:
        match left.pop():
            case float() as number if not math.isfinite(number):
                return False
            case list() | tuple() as items:
                left += items
            case dict() as items:
                left += items.values()
            case _:
                pass
    return True


class ToolContext:
    """The first argument of a tool that asks for it.

    - ``call_id``: names this call within its turn, as the model did; the same when the turn is resumed elsewhere.
    - ``key``: names this call in the whole world, and is the same when it is resumed: an idempotency key for what a
      tool does outside. (Some models count their calls anew in each answer.)
    - ``workspace``: the folder that the conversation works in, if it has one.
    - ``state``: the agent's state; what is set here, or changed in place, is staged with the turn.
    - ``cancelled``: whether somebody has asked the turn to stop. A tool that works long looks at it now and then.
    - ``progress(text)``: tells whoever watches how far it is. Nothing of it is kept.
    - ``agents``: the conversation's sub-agents, to spawn, to message, to wait for (`forkpoint.agent.team.tools`).
    - ``secrets``: the values of the secrets that the tool names, by name.
    - ``masking``: hides the values of secrets. What a tool returns, raises, tells or sets in the state goes through it
      anyway; a tool that writes a log or a file of its own can use it: ``ctx.masking.text(line)``.
    """

    def __init__(
        self,
        call_id: str,
        *,
        key: str | None = None,
        workspace: Path | None = None,
        state: State = EMPTY,
        progress: Callable[[str], None] | None = None,
        team: "Team | None" = None,
        secrets: Resolved = Resolved(),
        masking: Masking | None = None,
    ) -> None:
        self.call_id = call_id
        self.key = call_id if key is None else key
        self.workspace = workspace
        self.state = AgentState(state)
        self.tell = progress
        self.secrets = secrets
        self.masking = secrets.masking if masking is None else masking
        self.events: list[AnyBody] = []  # what goes into the turn with the call's result
        self.is_ended = False
        self.pinned: Mapping[str, PinnedCommand] = {}  # of the project's MCP servers, by their names
        self._team = team
        self._agents: Agents | None = None
        self._cancelled = threading.Event()

    @property
    def agents(self) -> "Agents":
        """The sub-agents of this conversation."""
        from forkpoint.agent.team.tools import Agents, Caller

        if self._agents is None:
            caller = Caller(self.call_id, self.key, self.events.append, self.progress)
            self._agents = Agents(self._team, caller, lambda: self.is_ended, self.masking.text)
        return self._agents

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Asks the tool to stop. What it sets in the state or tells from now on is too late."""
        self._cancelled.set()
        self.end()

    def end(self) -> None:
        """The call has its result: a thread that was left behind can set and tell nothing any more."""
        self.is_ended = True
        self.state.end()

    def progress(self, text: str) -> None:
        """Tells whoever watches how far the tool is."""
        if self.tell is not None and not self.is_ended:
            self.tell(text)
