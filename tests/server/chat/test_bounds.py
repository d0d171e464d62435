"""What anybody may send costs as much as it is long: nothing is compared pair by pair, or compiled unseen."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from forkpoint.agent.output import PATTERN, OutputSchema
from forkpoint.engine.placement import imported, paired
from forkpoint.engine.turns.plan import check_open
from forkpoint.errors import BadAgent, BadRequest, Invalid, Unpaired
from forkpoint.events import Text, ToolCall, ToolResult, UserMessage
from forkpoint.server.wires.chat.messages import read_list
from forkpoint.server.wires.chat.request import MOST_TOOLS, CompletionRequest, read_request
from forkpoint.wire.chat_messages import MOST_CALLS

MANY = 2_000


def asked(**fields: Any) -> CompletionRequest:
    said = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
    return read_request(json.dumps(said).encode(), strict=False)


class Compared:
    """How often two things were compared; two that are one and the same need not be."""

    def __init__(self) -> None:
        self.times = 0


@pytest.fixture
def compared() -> Compared:
    return Compared()


def ids(compared: Compared, count: int, name: str = "call") -> list[str]:
    """Ids of calls that count how often they are compared."""

    class Id(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.times += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    return [Id(f"{name} {number}") for number in range(count)]


def results(compared: Compared, calls: list[str]) -> list[ToolResult]:
    """Results that count it too."""

    class Result(ToolResult, frozen=True, tag=False):
        def __eq__(self, other: object) -> bool:
            compared.times += 1
            return self is other

        __hash__ = object.__hash__

    return [Result(call, "look", (Text("seen"),)) for call in calls]


# Tools.


def tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"tool_{number}"}} for number in range(count)]


def test_so_many_tools_are_taken_and_no_more_whatever_they_are() -> None:
    assert [tool.name for tool in asked(tools=tools(MOST_TOOLS)).tools] == [f"tool_{n}" for n in range(MOST_TOOLS)]
    for more in (tools(MOST_TOOLS + 1), tools(20_000), [*tools(1), *[{}] * MOST_TOOLS]):
        with pytest.raises(Invalid, match=f"there are {len(more):,}, and the limit is {MOST_TOOLS}") as caught:
            asked(tools=more)
        assert caught.value.param == "tools"


def test_a_name_that_two_tools_have_is_found_however_far_they_are_apart() -> None:
    with pytest.raises(Invalid) as caught:
        asked(tools=[*tools(300), *tools(1)])
    assert caught.value.param == "tools[300].function.name"


# Lists with thousands of calls.


def test_results_are_found_among_thousands_of_calls_without_comparing_them_one_by_one(compared: Compared) -> None:
    calls = [f"call {number}" for number in range(MANY)]
    before: list[Any] = [UserMessage((Text("go"),)), *(ToolCall(call, "look", "{}") for call in calls)]
    given = imported(before, results(compared, calls), "test")
    assert len(given) == 1 + 1 + 2 * MANY
    assert not any(isinstance(one, ToolResult) and one.status == "not_answered" for one in given)
    assert compared.times <= MANY


def test_the_one_result_of_a_call_that_is_not_there_is_found_among_thousands(compared: Compared) -> None:
    calls = [f"call {number}" for number in range(MANY)]
    before: list[Any] = [ToolCall(call, "look", "{}") for call in calls]
    with pytest.raises(Unpaired, check=Unpaired.call_not_open.made, match="stranger"):
        imported(before, results(compared, [*calls, "stranger"]), "test")
    assert compared.times <= MANY


def test_two_equal_results_are_not_taken_for_one() -> None:
    """The first is given, and the second has no call of its own."""
    call, one, two = ToolCall("x", "look", "{}"), ToolResult("x", "look", ()), ToolResult("x", "look", ())
    assert one == two
    with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
        imported([call], [one, two], "test")


def test_that_calls_are_open_is_looked_up_and_not_searched(compared: Compared) -> None:
    """Each id may be compared with the one that it is found as, and here and there with one beside it."""
    open = tuple(ids(compared, MANY))
    check_open("c", open, ids(compared, MANY)[::-1])
    assert compared.times <= 4 * MANY
    compared.times = 0
    with pytest.raises(Unpaired, check=Unpaired.call_not_open.made):
        check_open("c", open, ids(compared, MANY, "stranger"))
    assert compared.times <= 4 * MANY


def test_whoever_names_a_wrong_call_is_told_of_some_that_are_open_and_not_of_thousands() -> None:
    with pytest.raises(Unpaired, check=Unpaired.call_not_open.made, match="these are open: call 0, call 1, ") as caught:
        check_open("c", [f"call {number}" for number in range(MANY)], ["x" * 100_000])
    assert len(str(caught.value)) < 1_000


def called(first: int, count: int) -> list[dict[str, Any]]:
    """A message with calls, and their results."""
    numbers = range(first, first + count)
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": f"c{n}", "type": "function", "function": function} for n in numbers]
    results = ({"role": "tool", "tool_call_id": f"c{n}", "content": "r"} for n in numbers)
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def test_a_long_list_is_read_and_paired_in_its_order() -> None:
    messages = [{"role": "user", "content": "go"}, *called(0, 500), *called(500, 500), *called(1_000, MOST_CALLS)]
    listed = read_list(asked(messages=messages).messages)
    assert [one.call_id for one in listed.results] == [f"c{n}" for n in range(1_000, 1_000 + MOST_CALLS)]
    assert len(paired([*listed.before, *listed.results])) == 1 + 2 * (1_000 + MOST_CALLS)


def test_so_many_calls_may_stand_in_a_message_and_no_more() -> None:
    with pytest.raises(Invalid, match=f"there are {MOST_CALLS + 1} calls, and the limit is {MOST_CALLS}") as caught:
        asked(messages=[{"role": "user", "content": "go"}, *called(0, MOST_CALLS + 1)])
    assert caught.value.param == "messages[1].tool_calls"


# Bodies that cannot be read.


def test_half_a_surrogate_pair_is_looked_for_in_a_body_of_a_usual_size_only() -> None:
    """To name its place, the whole of it would have to be read once more, and slowly."""
    body = b'{"model":"m","x":[%s1],"y":"\\ud800"}'
    with pytest.raises(Invalid) as caught:
        read_request(body % (b"1," * 1_000), strict=False)
    assert caught.value.param == "y"
    with pytest.raises(BadRequest, match="not JSON"):
        read_request(body % (b"1," * 200_000), strict=False)


# Patterns of schemas.


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """All that Python's own engine was asked to read: it is the one that can be made to work without end."""
    found: list[object] = []
    compile = re._compile  # type: ignore[attr-defined]

    def spy(pattern: object, flags: int) -> Any:
        found.append(pattern)
        return compile(pattern, flags)

    monkeypatch.setattr(re, "_compile", spy)
    yield found
    monkeypatch.undo()


HOSTILE = "(?i)" + "[!-\U0010ffff]" * 10


@pytest.mark.parametrize(
    "patterns",
    [
        [HOSTILE],  # it has a flag, which these patterns do not have
        [HOSTILE + "x" * PATTERN],
        ["((a{1,99}){1,99}){1,99}"],
        [f"{n}[a-z]+" for n in range(100)],
        ["(a"],
    ],
    ids=["flag", "long", "repeated", "many", "broken"],
)
@pytest.mark.parametrize("named", [False, True], ids=["pattern", "patternProperties"])
def test_a_pattern_that_is_refused_was_never_compiled_by_an_engine_that_goes_back_and_tries_again(
    compiled: list[object], patterns: list[str], named: bool
) -> None:
    parts = [{"patternProperties": {pattern: True}} if named else {"pattern": pattern} for pattern in patterns]
    with pytest.raises(BadAgent):
        OutputSchema("Form", msgspec.json.encode({"anyOf": parts}).decode())
    assert not {*compiled} & {*patterns}


def test_nor_is_one_that_is_taken_also_when_an_answer_is_checked(compiled: list[object]) -> None:
    patterns = {"^(q+)+$", "^(z+)+$"}
    schema = {
        "properties": {"x": {"pattern": "^(q+)+$"}},
        "patternProperties": {"^(z+)+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    form = OutputSchema("Form", msgspec.json.encode(schema).decode())
    assert form.decode('{"x":"qq","zz":1}') == {"x": "qq", "zz": 1}
    for wrong in ('{"x":"a"}', '{"zz":"a"}', '{"y":1}'):
        with pytest.raises(ValueError, match="at `"):
            form.decode(wrong)
    assert not {*compiled} & patterns
    re.compile("a spy that hears nothing proves nothing")
    assert "a spy that hears nothing proves nothing" in compiled


def test_a_schema_in_a_request_is_refused_by_its_place(compiled: list[object]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": HOSTILE}}}
    with pytest.raises(Invalid) as caught:
        asked(response_format=form)
    assert caught.value.param == "response_format.json_schema.schema"
    assert HOSTILE not in compiled
