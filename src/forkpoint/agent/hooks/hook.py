"""`Hook`: a command or a function that is asked, or told, at certain moments of a turn. Frozen data, as agents are.

::

    Hook("before_tool", command=["./guard.sh"], tools="shell|write_*", on_error="block")
    Hook("turn_end", function=tests_pass)

It may block with a reason, or add context that the model is told. What it may do at which moment, and what it is given,
stands in docs/hooks.md; `hook_running` runs it. Every run is recorded, and one that is in a turn's journal is not run
again when the turn is resumed. Tests: tests/agent/test_hooks.py.
"""

import functools
import importlib
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from forkpoint.agent.tool import path_of
from forkpoint.errors import BadAgent
from forkpoint.events import (
    ApprovalGiven,
    AssistantMessage,
    Event,
    HookRun,
    JsonText,
    Part,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
)
from forkpoint.llm.prompt.manifest import is_text
from forkpoint.workspace.pins.pins import PinnedCommand

Moment: TypeAlias = Literal["turn_start", "user_message", "before_tool", "after_tool", "turn_end"]
"""When a hook runs."""

OnError: TypeAlias = Literal["ignore", "block"]
"""What a hook that fails does: it is recorded and the turn goes on, or it blocks."""

TIMEOUT = 30.0
"""Seconds that a hook may take, if it does not say otherwise."""

LONGEST = 3600.0
"""Seconds that a hook may ask for: more is an error in somebody's arithmetic."""

NAME = 200
"""Characters of a name that is made of a command."""

_OF_TOOLS = ("before_tool", "after_tool")


@dataclass(frozen=True)
class Block:
    """What a function returns that does not agree. The reason is shown to the model, or to whoever runs the turn."""

    reason: str


class HookContext(Struct, frozen=True):
    """What a hook gets to see. A function gets this; a command gets its `document` on stdin.

    - ``conversation``: its id; None for an answer of which nothing is kept.
    - ``turn``: the turn's id, the same when it is resumed.
    - ``agent``, ``sub_agent``: the agent's name, and where it stands in its team (``/root/explorer``), if anywhere.
    - ``messages``: what the user said, at all moments of a turn.
    - ``call_id``, ``tool``, ``arguments``: the call, with the text that the model wrote; at ``before_tool`` and
      ``after_tool``.
    - ``result``: what the call came to; at ``after_tool``.
    - ``answer``: what the model said; at ``turn_end``.
    """

    moment: Moment
    conversation: str | None = None
    turn: str = ""
    workspace: str | None = None
    agent: str | None = None
    sub_agent: str | None = None
    messages: tuple[UserMessage, ...] = ()
    call_id: str | None = None
    tool: str | None = None
    arguments: str | None = None
    result: ToolResult | None = None
    answer: str | None = None

    @property
    def message(self) -> str:
        """What the user said, in words."""
        return "\n".join(_words(message.parts) for message in self.messages)

    @property
    def decoded(self) -> Any:
        """The arguments as a JSON value; the text itself if it is not JSON."""
        try:
            return None if self.arguments is None else msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self.arguments

    def document(self) -> bytes:
        """The same as JSON. What does not belong to the moment is not there."""
        said: dict[str, Any] = {"moment": self.moment, "conversation": self.conversation, "turn": self.turn}
        said |= {"workspace": self.workspace, "agent": self.agent, "sub_agent": self.sub_agent}
        said["message"] = self.message
        if self.tool is not None:
            said |= {"call_id": self.call_id, "tool": self.tool, "arguments": self.decoded}
        if self.result is not None:
            said["result"] = {"status": self.result.status, "text": _words(self.result.parts)}
        if self.answer is not None:
            said["answer"] = self.answer
        return msgspec.json.encode(said) + b"\n"


HookFunction: TypeAlias = Callable[[HookContext], Any]
"""A hook in Python, plain or async: it returns None, a text that is context, or a `Block`."""


class StoredHook(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A hook as it stands in a document. One whose function has no path can only come from an agent that is given."""

    moment: Moment
    name: str | None = None
    command: str | tuple[str, ...] | None = None
    function: str | None = None
    tools: str = "*"
    timeout: float = TIMEOUT
    on_error: OnError = "ignore"


@dataclass(frozen=True, init=False)
class Hook:
    """What runs at a moment of a turn.

    - ``moment``: ``turn_start``, ``user_message``, ``before_tool``, ``after_tool`` or ``turn_end``.
    - ``command``: a program and its arguments, or a text for the shell. It runs in the workspace.
    - ``function``: instead of a command, a function of a `HookContext`, plain or async, or its path ``module:name``.
    - ``tools``: of which tools, for the two moments of tools: ``shell``, ``write_*``, ``shell|edit_file``.
    - ``timeout``: seconds after which it has failed.
    - ``on_error``: what one that fails does: ``ignore``, or ``block``.
    - ``name``: how its runs are recorded.
    - ``pinned``: of a project's hook, the files that its command names, which must be the same whenever it runs. It is
      not part of its document.
    """

    moment: Moment
    command: str | tuple[str, ...] | None
    function: HookFunction | str | None
    tools: str
    timeout: float
    on_error: OnError
    name: str
    pinned: PinnedCommand | None = field(default=None, compare=False, repr=False)

    def __init__(
        self,
        moment: Moment,
        *,
        command: str | Sequence[str] | None = None,
        function: HookFunction | str | None = None,
        tools: str = "*",
        timeout: float = TIMEOUT,
        on_error: OnError = "ignore",
        name: str | None = None,
    ) -> None:
        what = f"its hook {name}" if isinstance(name, str) else f"its hook of {moment!r}"
        if moment not in get_args(Moment):
            raise BadAgent(f"{what} has no moment that there is; the moments are {', '.join(get_args(Moment))}")
        if (command is None) == (function is None):
            raise BadAgent(f"{what} must have a command or a function, and not both")
        for attribute, value in (
            ("moment", moment),
            ("command", None if command is None else _command(what, command)),
            ("function", None if function is None else _function(what, function)),
            ("tools", _tools(what, moment, tools)),
            ("timeout", _timeout(what, timeout)),
            ("on_error", on_error),
        ):
            object.__setattr__(self, attribute, value)
        if on_error not in get_args(OnError):
            raise BadAgent(f"what {what} does on an error is {on_error!r}, and must be ignore or block")
        called: Any = name
        if called is not None and not (isinstance(called, str) and is_text(called) and called.strip()):
            raise BadAgent("the name of a hook must be a text, in valid Unicode")
        object.__setattr__(self, "name", name or self._command_line[:NAME] or self.path or _called(self.function))

    @property
    def _command_line(self) -> str:
        """Its command as one would type it; empty if it is a function."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command or ())

    @property
    def path(self) -> str | None:
        """Where its function is imported from; None if it is nowhere, or if this is a command."""
        return self.function if isinstance(self.function, str) else path_of(self.function)

    def _is_for(self, context: HookContext) -> bool:
        """Whether it runs at this moment, for this tool."""
        if self.moment != context.moment:
            return False
        return context.tool is None or any(fnmatchcase(context.tool, one) for one in self.tools.split("|"))

    def with_pin(self, pinned: PinnedCommand) -> "Hook":
        """The same hook, whose files are looked at again whenever it runs."""
        made = copy(self)
        object.__setattr__(made, "pinned", pinned)
        return made

    def find(self) -> HookFunction:
        """Its function, imported if it is a path. Raises whatever importing raises."""
        assert self.function is not None
        if not isinstance(self.function, str):
            return self.function
        module, _, names = self.function.partition(":")
        found: Any = functools.reduce(getattr, names.split("."), importlib.import_module(module))
        if not callable(found):
            raise TypeError(f"at {self.function} is no function")
        return found  # type: ignore[no-any-return]

    def stored(self) -> StoredHook:
        """The same as it stands in a document."""
        plain = self._command_line[:NAME] or self.path
        name = None if self.name == plain else self.name
        return StoredHook(self.moment, name, self.command, self.path, self.tools, self.timeout, self.on_error)

    def to_json(self) -> JsonText:
        """Its document. A function stands there by its path. Raises `BadAgent` if it has none."""
        if self.function is not None and self.path is None:
            raise BadAgent(f"its hook {self.name} is a function that cannot be imported; define it in a module")
        return msgspec.json.encode(self.stored()).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "Hook":
        """The hook of a document. Raises `BadAgent`."""
        try:
            return from_stored(msgspec.json.decode(text, type=StoredHook))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadAgent(f"a hook of its document cannot be read ({error})") from None


def from_stored(stored: StoredHook, function: HookFunction | None = None) -> Hook:
    """The hook of a document; ``function`` is its function, if that was found. Raises `BadAgent`."""
    return Hook(
        stored.moment,
        command=stored.command,
        function=function or stored.function,
        tools=stored.tools,
        timeout=stored.timeout,
        on_error=stored.on_error,
        name=stored.name,
    )


def hooks_of(given: Iterable[Any]) -> tuple[Hook, ...]:
    """Hooks in their order, each once: an agent and whom it inherits from may have the same. Raises `BadAgent`."""
    if isinstance(given, Hook | str | Mapping):
        raise BadAgent("its hooks must be a list of the class Hook")
    hooks = tuple(given)
    if any(not isinstance(hook, Hook) for hook in hooks):
        raise BadAgent("each of its hooks must be of the class Hook")
    found: dict[Hook, Hook] = {}
    for hook in hooks:
        if hook not in found or found[hook].pinned is None:  # of two equal hooks, the pinned one
            found[hook] = hook
    return tuple(found.values())


def project_hooks(said: Any, root: Path) -> tuple[Hook, ...]:
    """The hooks of a project's settings, ``[[hooks]]`` in TOML: commands alone. Raises `BadAgent`.

    A function would be whatever this process happens to import by that name, and nothing of the project. A program with
    a relative path, as in ``["./guard.sh"]``, is that of the project's root, wherever in the project one works.
    """
    try:
        stored = msgspec.convert(said, tuple[StoredHook, ...])
    except msgspec.ValidationError as error:
        raise BadAgent(f"its hooks cannot be read ({error})") from None
    if named := next((one for one in stored if one.function is not None), None):
        raise BadAgent(f"the hook {named.function} of a project is a function, and must be a command")
    return hooks_of(rooted_hook(from_stored(one), root) for one in stored)


def rooted_hook(hook: Hook, root: Path) -> Hook:
    """The same with its program, if that has a relative path, in a folder, wherever it is run."""
    if not isinstance(hook.command, tuple) or "/" not in hook.command[0]:
        return hook
    program, *arguments = hook.command
    fields = {name: getattr(hook, name) for name in ("tools", "timeout", "on_error", "name")}
    return Hook(hook.moment, command=[str(root / program), *arguments], **fields)


def ran_before(steps: Sequence[StagedEvent | Event], moment: Moment, call_id: str | None = None) -> tuple[HookRun, ...]:
    """The runs that a turn's steps have of a moment already: of the newest call of that id, of its newest answer.

    A call that was approved with other arguments is another call to a hook. Steps that were copied from another turn,
    as a sub-agent's are, were not run for this one.
    """
    runs: list[HookRun] = []
    for step in reversed(steps):
        match step.body:
            case HookRun() as run if (run.moment, run.call_id) == (moment, call_id) and step.envelope.origin is None:
                runs.append(run)
            case ToolCall(call_id=id) if id == call_id:
                break  # some models use an id again in a later answer
            case ApprovalGiven(call_id=id, arguments=str()) if id == call_id:
                break
            case AssistantMessage() if moment == "turn_end":
                break
            case _:
                pass
    return tuple(reversed(runs))


def left_to_run(hooks: Iterable[Hook], context: HookContext, before: Iterable[HookRun]) -> tuple[Hook, ...]:
    """The hooks of a moment that are not among those that ran before; none if one of those has blocked."""
    before = tuple(before)
    if any(run.blocked for run in before):
        return ()
    counts = Counter(run.hook for run in before)
    left: list[Hook] = []
    for hook in hooks:
        if not hook._is_for(context):
            continue
        if counts[hook.name]:
            counts[hook.name] -= 1
        else:
            left.append(hook)
    return tuple(left)


def _command(what: str, given: Any) -> str | tuple[str, ...]:
    words = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not words or not all(isinstance(word, str) and is_text(word) and "\0" not in word for word in words):
        raise BadAgent(f"the command of {what} must be a list of texts, or a text for the shell")
    if not words[0].strip():
        raise BadAgent(f"the command of {what} is blank")
    return given if isinstance(given, str) else words


def _function(what: str, given: Any) -> Any:
    if isinstance(given, str):
        module, colon, names = given.partition(":")
        if not (colon and all(part.isidentifier() for part in (*module.split("."), *names.split(".")))):
            raise BadAgent(f"the function of {what} is {given[:200]!r}, and must be a path such as package.module:name")
    elif not callable(given):
        raise BadAgent(f"the function of {what} must be a function, or the path of one")
    return given


def _tools(what: str, moment: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip() or not is_text(given):
        raise BadAgent(f"the tools of {what} must be a pattern such as shell or write_*")
    if given != "*" and moment not in _OF_TOOLS:
        raise BadAgent(f"{what} has tools, and at {moment} there is none; leave them out")
    return "|".join(part.strip() for part in given.split("|"))


def _timeout(what: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST or math.isnan(given):
        raise BadAgent(f"the timeout of {what} must be more than 0, and at most {LONGEST:g} s")
    return float(given)


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _words(parts: Iterable[Part]) -> str:
    return "\n".join(part.text if isinstance(part, Text) else f"[{part.media_type}]" for part in parts)
