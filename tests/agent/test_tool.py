"""Whatever can be called with names can be a tool: frozen data around it, and found again by its path."""

import dataclasses
import functools
import importlib
import inspect
import json
import math
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from tests.agent import importable
from tests.agent.importable import Desk

from forkpoint.agent import Agent, Tool, ToolContext, tool
from forkpoint.agent.arguments import BadArguments
from forkpoint.agent.tool import OUTPUT_LIMIT, as_tool, path_of
from forkpoint.errors import BadTool


def parameters(made: Tool) -> dict[str, Any]:
    """The type of each argument that a model is told of."""
    found = json.loads(made.schema.parameters)["properties"]
    return {name: schema.get("type") for name, schema in found.items()}


def call(made: Tool, **arguments: Any) -> Any:
    return made.bind(json.dumps(arguments), ToolContext("call-1"))()


def join(a: int, b: str = "z") -> str:
    """Joins them."""
    return f"{a}{b}"


async def join_later(a: int, b: str = "z") -> str:
    """Joins them later."""
    return f"{a}{b}"


# Settings.


def test_a_bare_decorator_makes_a_tool_of_the_function_s_name_and_docstring() -> None:
    made = tool(join)
    assert (made.name, made.description) == ("join", "Joins them.")
    assert (made.timeout, made.output_limit, made.repeatable, made.risky) == (None, OUTPUT_LIMIT, False, False)
    assert made.schema.strict is False
    assert parameters(made) == {"a": "integer", "b": "string"}
    assert repr(made) == "<tool join>"


def test_each_setting_has_its_effect() -> None:
    made = tool(
        name="other", description="Other.", timeout=3, output_limit=9, repeatable=True, risky=True, strict=True
    )(join)
    assert (made.name, made.description, made.schema.strict) == ("other", "Other.", True)
    assert (made.timeout, made.output_limit, made.repeatable, made.risky) == (3, 9, True, True)
    assert made.digest == tool(join).digest, "its arguments are the same"


def test_a_description_may_be_empty_on_purpose() -> None:
    assert tool(description="")(join).description == ""


def test_a_tool_is_still_its_function() -> None:
    assert tool(join)(1, b="y") == "1y"
    assert tool(join).function is join


def test_as_tool_takes_a_tool_as_it_is_and_makes_one_of_a_function() -> None:
    made = tool(join)
    assert as_tool(made) is made
    assert as_tool(join).schema == made.schema


def test_no_field_of_a_tool_can_be_assigned() -> None:
    made = tool(join)
    for field in dataclasses.fields(made):
        with pytest.raises(AttributeError):
            setattr(made, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        made.other = 1  # type: ignore[attr-defined]
    assert len({made, made}) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": math.nan},
        {"output_limit": 0},
        {"output_limit": -5},
        {"name": "has space"},
        {"name": "x" * 65},
        {"name": "größe"},
        {"description": "\ud800"},
    ],
    ids=ascii,
)
def test_settings_that_cannot_be_kept_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadTool):
        tool(**settings)(join)


@pytest.mark.parametrize("given", [3, "join", None, [], tool(join)], ids=str)
def test_what_is_no_function_is_refused_or_is_a_tool_already(given: Any) -> None:
    try:
        made = as_tool(given)
    except BadTool:
        return
    assert made is given


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="tmeout"):
        tool(tmeout=3)(join)  # type: ignore[call-overload]


# Callables of all kinds.


class Counter:
    """Counts."""

    a: str  # not what the call takes
    start: int = 0

    def __call__(self, a: int) -> int:
        """Counts on."""
        return self.start + a


class Later:
    async def __call__(self, a: int) -> int:
        return a


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"traced {function(*args, **kwargs)}"

    return wrapper


@traced
def watched(a: int) -> int:
    """Is watched."""
    return a


def test_a_bound_method_is_a_tool_without_its_self() -> None:
    made = tool(Desk("table").drawer)
    assert parameters(made) == {"number": "integer"}
    assert call(made, number=3) == "table 3"


def test_a_classmethod_and_a_staticmethod_are_tools() -> None:
    assert parameters(tool(Desk.kind)) == {"upper": "boolean"}
    assert call(tool(Desk.kind)) == "Desk"
    assert parameters(tool(Desk.lamp)) == {"on": "boolean"}
    assert call(tool(Desk.lamp), on=True) == "True"


def test_a_decorated_function_keeps_its_types_and_its_decorator() -> None:
    made = tool(watched)
    assert (made.name, made.description, parameters(made)) == ("watched", "Is watched.", {"a": "integer"})
    assert call(made, a=1) == "traced 1"


def test_a_lambda_is_a_tool_once_it_has_a_name() -> None:
    with pytest.raises(BadTool, match="name"):
        tool(lambda x: x)
    assert call(tool(name="same")(lambda x: x), x=[1]) == [1]


def test_a_partial_function_is_a_tool_without_what_is_given_already() -> None:
    made = tool(name="joined")(functools.partial(join, 1))
    assert parameters(made) == {"b": "string"}
    assert made.description == "Joins them.", "not the docstring of functools.partial"
    assert call(made, b="y") == "1y"
    assert call(made) == "1z"


def test_a_partial_function_s_keywords_are_defaults() -> None:
    made = tool(name="joined")(functools.partial(join, b="q"))
    assert call(made, a=1) == "1q"
    assert call(made, a=1, b="r") == "1r"


def test_an_object_that_can_be_called_is_a_tool_of_what_its_call_takes() -> None:
    made = tool(name="count")(Counter())
    assert parameters(made) == {"a": "integer"}, "the types are those of __call__, not of the class"
    assert call(made, a=2) == 2


def test_an_object_with_only_a_call_is_a_tool() -> None:
    made = tool(name="later")(Later())
    assert parameters(made) == {"a": "integer"}
    assert made._is_async


@pytest.mark.parametrize(
    ("function", "expected"),
    [(join, False), (join_later, True), (Desk().drawer, False), (traced(join_later), False)],
    ids=["sync", "async", "method", "wrapped"],
)
def test_a_tool_knows_whether_its_function_is_async(function: Any, expected: bool) -> None:
    assert tool(name="t")(function)._is_async is expected


def test_a_partial_async_function_is_async() -> None:
    assert tool(name="t")(functools.partial(join_later, 1))._is_async


# The context.


def test_the_context_is_no_argument_that_a_model_could_write() -> None:
    def first(ctx: ToolContext, a: int) -> str:
        return f"{ctx.call_id} {a}"

    made = tool(first)
    assert made.context == "ctx"
    assert parameters(made) == {"a": "integer"}
    assert call(made, a=1) == "call-1 1"
    with pytest.raises(BadArguments, match="ctx"):
        call(made, a=1, ctx="forged")


def test_the_context_may_stand_anywhere_and_have_any_name() -> None:
    def last(a: int, where: ToolContext) -> str:
        return f"{where.call_id} {a}"

    def by_name(a: int, *, c: ToolContext) -> str:
        return f"{c.call_id} {a}"

    def noted(a: int, c: Annotated[ToolContext, "not for the model"]) -> str:
        return f"{c.call_id} {a}"

    for function in (last, by_name, noted):
        assert parameters(tool(function)) == {"a": "integer"}
        assert call(tool(function), a=1) == "call-1 1"


def test_a_parameter_is_the_context_by_its_type_and_never_by_its_name() -> None:
    def function(context: str, ctx: int) -> str:
        return f"{context} {ctx}"

    assert tool(function).context is None
    assert call(tool(function), context="a", ctx=1) == "a 1"


def test_a_context_in_annotations_that_are_texts_is_found() -> None:
    assert tool(importable.with_context).context == "ctx"


def positional(ctx: ToolContext, /, a: int) -> str:
    return f"{ctx.call_id} {a}"


def optional(a: int, ctx: ToolContext | None = None) -> str:
    return f"{ctx.call_id if ctx else None} {a}"


def several(a: int, *ctx: ToolContext) -> str:
    return f"{ctx} {a}"


def named(a: int, **ctx: ToolContext) -> str:
    return f"{ctx} {a}"


@pytest.mark.parametrize("function", [positional, optional, several, named], ids=lambda function: function.__name__)
def test_a_context_in_an_odd_place_is_given_or_refused_when_the_tool_is_made(function: Any) -> None:
    try:
        made = tool(function)
    except BadTool:
        return
    assert call(made, a=1) == "call-1 1"


def test_a_context_of_a_method_and_of_a_call_is_found() -> None:
    class Phone:
        def ring(self, ctx: ToolContext, a: int) -> str:
            return f"{ctx.call_id} {a}"

        def __call__(self, ctx: ToolContext, a: int) -> str:
            return f"{ctx.call_id} {a}"

    assert call(tool(Phone().ring), a=1) == "call-1 1"
    assert call(tool(name="phone")(Phone()), a=1) == "call-1 1"


def test_two_contexts_are_refused() -> None:
    def function(one: ToolContext, other: ToolContext) -> None:
        pass

    with pytest.raises(BadTool):
        tool(function)


# Paths.


def test_a_path_names_the_module_and_what_stands_in_it() -> None:
    assert tool(importable.plain).path == "tests.agent.importable:plain"
    assert importable.decorated.path == "tests.agent.importable:decorated"
    assert tool(Desk.lamp).path == "tests.agent.importable:Desk.lamp"
    assert path_of(Desk) == "tests.agent.importable:Desk"


def test_what_stands_within_a_function_has_no_path() -> None:
    def within() -> None:
        pass

    assert tool(within).path is None
    assert path_of(lambda: None) is None
    assert path_of(functools.partial(join, 1)) is None
    assert path_of(Counter()) is None


def at(path: str) -> Any:
    module, _, names = path.partition(":")
    return functools.reduce(getattr, names.split("."), importlib.import_module(module))


@pytest.mark.parametrize(
    "value",
    [importable.plain, Desk, Desk.lamp, Desk.kind, Desk().drawer, Desk("table").asks, dict[str, int], list[Desk]],
    ids=["function", "class", "static", "classmethod", "method", "policy", "dict", "list"],
)
def test_a_path_leads_to_the_very_thing_or_there_is_none(value: Any) -> None:
    path = path_of(value)
    assert path is None or at(path) == value, f"{path} leads to something else"


def test_one_tool_serves_any_number_of_agents() -> None:
    made = tool(join)
    one, other = (Agent("scripted/echo", tools=[made], instructions=text) for text in "ab")
    assert one.tools[0] is other.tools[0] is made


def test_a_function_that_yields_is_refused_since_nobody_would_run_it() -> None:
    def numbers(n: int) -> Any:
        yield from range(n)

    async def later(n: int) -> Any:
        yield n

    for function in (numbers, later):
        assert inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        with pytest.raises(BadTool):
            tool(function)
