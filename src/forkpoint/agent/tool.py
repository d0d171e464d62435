"""`@tool`: a typed Python function that a model can call.

::

    @tool
    def read_log(build: int, lines: int = 100) -> str:
        \"\"\"Reads the end of a build's log.

        Args:
            build: the build's number
            lines: how many lines
        \"\"\"

A tool is frozen data around its function: shared by any number of agents, and named by its import path where an agent
is stored, so that another process finds it again.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

from msgspec import Struct

from forkpoint.agent.arguments import Arguments, typed
from forkpoint.agent.context import ToolContext
from forkpoint.errors import BadTool
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.parameters import unfit_fields

OUTPUT_LIMIT = 100_000
"""Characters of a result that a model is shown, if a tool does not say otherwise."""


SecretNames: TypeAlias = tuple[str, ...] | Literal["shell"]
"""The secrets that a tool is given: these, or those that the agent's author has for commands."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Tool:
    """A function that a model can call, and how it may be called. Make one with `tool`."""

    function: Callable[..., Any]
    schema: ToolSchema
    arguments: Arguments
    context: str | None  # which of its parameters wants a `ToolContext`
    timeout: float | None
    output_limit: int
    repeatable: bool
    risky: bool
    secrets: SecretNames = ()

    @property
    def name(self) -> str:
        return self.schema.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def description(self) -> str:
        return self.schema.description

    @property
    def digest(self) -> str:
        """Tells whether its arguments are still those that a model was shown."""
        return self.arguments.digest

    @property
    def path(self) -> str | None:
        """Where another process finds it as it is: ``module:name``. None if it would not.

        At the path of a function stands the function itself, which knows nothing of a timeout or a risk that was
        said elsewhere; so only a tool that is decorated where it is defined, or that says nothing, has a path.
        """
        path = _path(self.function)
        found = _at(path) if path is not None else None
        plain = found == self.function and self._says_nothing
        return path if found is self or plain else None

    @property
    def _says_nothing(self) -> bool:
        own = (self.name, self.description, self.schema.strict, self.timeout)
        settings = (self.output_limit, self.repeatable, self.risky, self.secrets)
        default = (_name_of(self.function), self.arguments.description, False, None)
        return own == default and settings == (OUTPUT_LIMIT, False, False, ())

    @property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(typed(self.function))

    def bind(self, text: str, context: ToolContext) -> Callable[[], Any | Awaitable[Any]]:
        """The call that a model asks for, ready to be made. Raises `BadArguments`."""
        arguments = self.arguments.read(text)
        if self.context is not None:
            arguments[self.context] = context
        return functools.partial(self.function, **arguments)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    output_limit: int = OUTPUT_LIMIT,
    repeatable: bool = False,
    risky: bool = False,
    strict: bool = False,
    secrets: Iterable[str] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **settings: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """A function as a tool. ``@tool`` is enough; ``@tool(timeout=30, risky=True)`` says more.

    - ``timeout``: seconds after which the call is a failed one.
    - ``output_limit``: characters of its result that a model is shown.
    - ``repeatable``: running it twice does no harm, so a call whose end nobody knows may be run again.
    - ``risky``: an agent's approval policy may want to ask first.
    - ``strict``: the provider shall keep strictly to the schema.
    - ``secrets``: the names of those of the agent's secrets that it is given, as ``ctx.secrets``; ``"shell"`` stands
      for those that the agent's author has for commands, for a tool that runs whatever a model wants.
    """
    if function is not None:
        return _make(function, _Settings(**settings))
    return lambda function: _make(function, _Settings(**settings))


def as_tool(given: "Tool | Callable[..., Any]") -> Tool:
    """A tool, or a plain function made one."""
    return given if isinstance(given, Tool) else _make(given, _Settings())


def path_of(value: Any) -> str | None:
    """Where this very function or class is imported from: ``module:name``. None if it is nowhere to be imported."""
    path = _path(value)
    return path if path is not None and _at(path) == value else None


def _path(value: Any) -> str | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    return f"{module}:{name}" if module and name and "<" not in name else None


def _at(path: str) -> Any:
    """What stands at a path, in a module that is loaded; None if nothing does."""
    module, _, names = path.partition(":")
    try:
        return functools.reduce(getattr, names.split("."), sys.modules[module])
    except Exception:
        return None


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


class _Settings(Struct, frozen=True, kw_only=True):
    """What ``@tool(...)`` takes."""

    name: str | None = None
    description: str | None = None
    timeout: float | None = None
    output_limit: int = OUTPUT_LIMIT
    repeatable: bool = False
    risky: bool = False
    strict: bool = False
    secrets: Any = ()  # `_secrets` says what it may be


def _make(function: Callable[..., Any], given: _Settings) -> Tool:
    name = given.name if isinstance(given.name, str) and given.name else _name_of(function)
    for setting, why in unfit_fields(given):
        raise BadTool(name, f"its {setting} does not fit: {why}")
    if inspect.isgeneratorfunction(typed(function)) or inspect.isasyncgenfunction(typed(function)):
        raise BadTool(name, "it yields, and nobody would go through what it yields; return a list")
    if given.timeout is not None and not given.timeout > 0:
        raise BadTool(name, "its timeout must be more than 0")
    if given.output_limit < 1:
        raise BadTool(name, "its output limit must be 1 or more")
    context = _context_of(function)
    names = _secrets(name, given.secrets)
    if names and context is None:
        raise BadTool(name, "it has secrets, and no argument of the class ToolContext to get them from")
    arguments = Arguments(name, function, skip=frozenset({context} if context else ()))
    said = arguments.description if given.description is None else given.description
    schema = ToolSchema(name, said, arguments.schema, given.strict)
    return Tool(
        function, schema, arguments, context, given.timeout, given.output_limit, given.repeatable, given.risky, names
    )


def _secrets(tool: str, given: Any) -> SecretNames:
    if given == "shell":
        return "shell"
    names = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if names is None or not all(isinstance(name, str) for name in names):
        raise BadTool(tool, "its secrets must be a list of their names")
    return tuple(sorted(set(names)))


def _context_of(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that wants a `ToolContext`, if there is one."""
    try:
        hints = typing.get_type_hints(typed(function))
    except Exception:
        return None  # said with its reason when the arguments are read
    return next((name for name, kind in hints.items() if kind is ToolContext and name != "return"), None)
