"""An agent is frozen data: shared by everybody, the same however its tools are ordered, refused if it cannot work."""

import copy
import dataclasses
import itertools
import json
import math
import re
from typing import Any

import msgspec
import pytest
from tests.agent import importable
from tests.agent.importable import Address, Household, Options, Person, Tree

from forkpoint.agent import Agent, Limits, Tool, tool
from forkpoint.agent.stored.document import bind
from forkpoint.errors import BadAgent, BadModel, BadSetting, BadTool, ForkpointError
from forkpoint.events import ToolCall
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import ToolSchema

ECHO = "scripted/echo"
SECRET = "sk-never-to-be-seen-4711"


def first(a: int) -> int:
    return a


def second(b: str = "") -> str:
    return b


@tool(risky=True)
def third() -> None: ...


# Data.


def test_a_model_s_name_is_enough() -> None:
    agent = Agent(ECHO)
    assert agent.llm == LLM(ECHO)
    assert (agent.instructions, agent.tools, agent.output, agent.approval, agent.name) == ("", (), None, "never", None)
    assert agent.limits == Limits(steps=100, tokens=None, dollars=None, seconds=None)
    assert json.loads(agent.to_json()) in ({"llm": {"model": ECHO}}, {"llm": {"model": ECHO}, "limits": {}})


def test_no_field_can_be_assigned_or_deleted() -> None:
    agent = Agent(ECHO, tools=[first])
    for field in dataclasses.fields(agent):
        with pytest.raises(AttributeError):
            setattr(agent, field.name, getattr(agent, field.name))
        with pytest.raises(AttributeError):
            delattr(agent, field.name)
    for name in ("manifest", "other"):
        with pytest.raises(AttributeError):
            setattr(agent, name, None)
    with pytest.raises(AttributeError):
        agent.limits.steps = 5  # type: ignore[misc]


def test_what_it_was_made_of_can_change_and_it_does_not() -> None:
    tools: list[Any] = [first]
    agent = Agent(ECHO, tools=tools)
    before = agent.to_json(), agent.manifest.hash
    tools.append(second)
    assert [made.name for made in agent.tools] == ["first"]
    assert (agent.to_json(), agent.manifest.hash) == before


def test_tools_may_come_from_anything_that_can_be_gone_through() -> None:
    several: list[Any] = [[first, second], (first, second), iter([first, second]), {first: 1, second: 2}]
    for tools in several:
        assert [made.name for made in Agent(ECHO, tools=tools).tools] == ["first", "second"]


def test_equal_agents_are_equal_and_hash_alike() -> None:
    made = tool(first)
    one, same = (Agent(ECHO, tools=[made, third], output=Person, name="a") for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    _ = one.manifest.hash
    assert one == same
    others = [
        Agent(ECHO, tools=[made, third], output=Person, name="b"),
        Agent(ECHO, tools=[made], output=Person, name="a"),
        Agent(ECHO, tools=[made, third], output=Tree, name="a"),
        Agent(ECHO, tools=[made, third], output=Person, name="a", approval="always"),
        Agent(ECHO, tools=[made, third], output=Person, name="a", limits=Limits(steps=1)),
        Agent("scripted/other", tools=[made, third], output=Person, name="a"),
    ]
    assert all(other != one for other in others)
    assert len({one, same, *others}) == 1 + len(others)


def test_a_copy_is_equal_and_replace_makes_another() -> None:
    agent = Agent(ECHO, tools=[third], instructions="a")
    assert copy.copy(agent) == agent
    other = dataclasses.replace(agent, instructions="b")
    assert (other.instructions, other.tools, agent.instructions) == ("b", agent.tools, "a")
    assert other.manifest.hash != agent.manifest.hash, "nothing that was worked out for the first is kept"


def test_the_order_of_tools_is_nobody_s_business() -> None:
    made = [tool(first), tool(second), third]
    agents = [Agent(ECHO, tools=order) for order in itertools.permutations(made)]
    assert len({agent.manifest.hash for agent in agents}) == 1
    assert len({agent.to_json() for agent in agents}) == 1
    assert len(set(agents)) == 1


def test_what_a_model_does_not_see_does_not_change_its_manifest() -> None:
    plain, careful = tool(first), tool(timeout=5, risky=True, repeatable=True, output_limit=5)(first)
    agents = [
        Agent(ECHO, tools=[plain]),
        Agent(ECHO, tools=[careful], limits=Limits(steps=1), approval="always", name="n"),
    ]
    assert len({agent.manifest.hash for agent in agents}) == 1


def test_a_tool_is_found_by_its_name() -> None:
    agent = Agent(ECHO, tools=[first, third])
    assert agent.tool("third") is third
    assert agent.tool("nothing") is None
    assert agent.tool("") is None


# Tools of the client.

BROWSE, ASK = ToolSchema("browse", "Opens a page."), ToolSchema("ask", strict=True)


def test_a_client_s_tools_stand_in_the_manifest_among_the_others() -> None:
    agent = Agent(ECHO, tools=[first, third], client_tools=(one for one in (BROWSE, ASK)))
    assert [tool.name for tool in agent.manifest.tools] == ["ask", "browse", "first", "third"]
    assert agent.manifest.tools[1] == BROWSE
    assert agent.client_tools == (ASK, BROWSE)
    assert agent == agent.replace(client_tools=[ASK, BROWSE])
    assert hash(agent) == hash(agent.replace(client_tools=[ASK, BROWSE]))
    assert agent != agent.replace(client_tools=[ASK])


def test_a_client_s_tool_is_known_and_is_not_here_to_be_run() -> None:
    agent = Agent(ECHO, tools=[first], client_tools=[BROWSE])
    assert agent.is_client_tool("browse")
    assert not agent.is_client_tool("first")
    assert not agent.is_client_tool("nothing")
    assert agent.tool("browse") is None


@pytest.mark.parametrize("approval", ["always", "risky", lambda call, tool: True], ids=["always", "risky", "function"])
def test_no_policy_asks_for_a_client_s_tool(approval: Any) -> None:
    agent = Agent(ECHO, tools=[third], client_tools=[BROWSE], approval=approval)
    assert agent.asks_before(ToolCall("a", "browse", "{}")) is None
    assert agent.asks_before(ToolCall("a", "third", "{}"))


@pytest.mark.parametrize("twice", [[BROWSE, BROWSE], [ToolSchema("first")]], ids=["the client's", "of both kinds"])
def test_a_name_that_stands_twice_is_refused(twice: Any) -> None:
    with pytest.raises(BadTool, match="two tools"):
        Agent(ECHO, tools=[first], client_tools=twice)


@pytest.mark.parametrize(
    "wrong", [["browse"], [first], [third], [{"name": "browse"}]], ids=["a name", "a function", "a tool", "a document"]
)
def test_a_client_s_tool_is_a_schema(wrong: Any) -> None:
    with pytest.raises(BadAgent, match="ToolSchema"):
        Agent(ECHO, client_tools=wrong)


@pytest.mark.parametrize("parameters", ["3", "[]", "", "{", "{" * 100_000, "\ud800", "[" * 100_000 + "]" * 100_000])
def test_parameters_that_are_no_json_object_are_refused(parameters: str) -> None:
    with pytest.raises(BadTool, match="JSON object"):
        ToolSchema("browse", parameters=parameters)


@pytest.mark.parametrize("unattended", ["", "ask", None, True, ["run"]], ids=str)
def test_what_is_done_unattended_is_one_of_two(unattended: Any) -> None:
    with pytest.raises(BadAgent, match="deny or run"):
        Agent(ECHO, unattended=unattended)


def test_an_agent_but_for_some_fields_is_another_with_all_the_rest() -> None:
    agent = Agent(
        LLM("openai/gpt-5", api_key=SECRET),
        instructions="a",
        tools=[third],
        output=Person,
        limits=Limits(3),
        approval="risky",
        name="n",
        client_tools=[BROWSE],
        unattended="run",
    )
    assert agent.replace() == agent
    other = agent.replace(name="m", client_tools=[])
    assert (other.name, other.client_tools) == ("m", ())
    kept = [field.name for field in dataclasses.fields(Agent) if field.name not in {"name", "client_tools"}]
    assert all(getattr(other, field) == getattr(agent, field) for field in kept)
    assert agent.name == "n"
    assert other.manifest.hash != agent.manifest.hash
    with pytest.raises(BadAgent):
        agent.replace(unattended="ask")
    with pytest.raises(BadAgent, match="no field 'nmae', only llm, instructions"):
        agent.replace(nmae="m")


def test_an_agent_that_was_bound_is_not_stored_as_what_it_was_before_a_change() -> None:
    bound = bind(Agent(ECHO, name="n").to_json())
    assert bind(bound.replace(name="m").to_json()).name == "m"


# What cannot work is refused when it is made.


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(BadTool, match="first"):
        Agent(ECHO, tools=[first, tool(name="first")(second)])
    made = tool(first)
    with pytest.raises(BadTool, match="first"):
        Agent(ECHO, tools=[made, made])


@pytest.mark.parametrize("approval", [None, "", "sometimes", "NEVER", 3, True, [], {}, ("sometimes",)], ids=str)
def test_a_policy_that_is_none_is_refused(approval: Any) -> None:
    with pytest.raises(BadAgent, match="approval"):
        Agent(ECHO, approval=approval)


def test_an_async_policy_is_refused_since_nobody_would_await_it() -> None:
    async def asks(call: ToolCall, tool: Tool) -> bool:
        return False

    with pytest.raises(BadAgent, match="approval"):
        Agent(ECHO, approval=asks)  # type: ignore[arg-type]


def test_an_async_policy_among_others_is_refused() -> None:
    async def asks(call: ToolCall, tool: Tool) -> bool:
        return False

    with pytest.raises(BadAgent, match="approval"):
        Agent(ECHO, approval=("risky", asks))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["steps", "tokens", "dollars", "seconds"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf])
def test_a_limit_that_nothing_can_keep_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadAgent, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("limits", [{"steps": 2.5}, {"tokens": 0.5}, {"steps": True}, {"steps": "3"}], ids=str)
def test_a_limit_of_the_wrong_type_is_refused_and_not_only_when_it_is_read_again(limits: dict[str, Any]) -> None:
    with pytest.raises(BadAgent):
        Limits(**limits)


@pytest.mark.parametrize(
    "settings",
    [{"limits": None}, {"limits": {"steps": 3}}, {"name": 5}, {"name": "\ud800"}, {"instructions": None}],
    ids=ascii,
)
def test_a_setting_that_could_not_be_stored_or_read_again_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ForkpointError):
        Agent(ECHO, **settings)


def test_no_limit_is_none() -> None:
    limits = Limits(steps=None)
    assert bind(Agent(ECHO, limits=limits).to_json()).limits == limits


@pytest.mark.parametrize("limits", [Limits(1, 2, 0.5, 1e9), Limits(tokens=10**12), Limits(seconds=0.001)], ids=str)
def test_limits_come_back_from_an_agent_s_document(limits: Limits) -> None:
    assert bind(Agent(ECHO, limits=limits).to_json()).limits == limits


def test_what_is_no_model_or_no_tool_is_refused_with_its_own_error() -> None:
    with pytest.raises(BadModel):
        Agent("gpt-5")
    with pytest.raises(BadTool):
        Agent(ECHO, tools=[3])  # type: ignore[list-item]
    with pytest.raises(BadSetting, match="instructions"):
        Agent(ECHO, instructions="\ud800")


@pytest.mark.parametrize(
    "output",
    ["Person", 3, first, complex, Person("a"), list[complex], {"type": "nothing"}, {"type": object()}],
    ids=lambda one: ascii(one).partition(" at ")[0],
)
def test_an_output_without_a_schema_is_refused(output: Any) -> None:
    with pytest.raises(BadAgent, match="output"):
        Agent(ECHO, output=output)


def test_a_refused_output_is_not_called_a_tool() -> None:
    with pytest.raises(BadAgent) as refused:
        Agent(ECHO, output=complex)
    assert "tool" not in str(refused.value)


@pytest.mark.parametrize("output", [Person, Address, Household, Options, Tree, dict[str, int]], ids=str)
def test_an_output_s_schema_stands_in_the_manifest(output: Any) -> None:
    agent = Agent(ECHO, output=output)
    assert agent.manifest.output is not None
    assert agent.manifest.hash != Agent(ECHO).manifest.hash
    msgspec.json.decode(agent.manifest.output, type=dict)


# Approval.

CALLS = {name: ToolCall("call-1", name, "{}") for name in ("first", "third", "nothing")}


def asked(approval: Any) -> dict[str, str | None]:
    agent = Agent(ECHO, tools=[first, third], approval=approval)
    return {name: agent.asks_before(call) for name, call in CALLS.items()}


def test_never_asks_for_none() -> None:
    assert set(asked("never").values()) == {None}


def test_always_asks_for_all() -> None:
    assert all(asked("always").values())


def test_risky_asks_for_risky_tools_alone() -> None:
    reasons = asked("risky")
    assert reasons["third"]
    assert "risky" in reasons["third"]
    assert reasons["first"] is reasons["nothing"] is None


@pytest.mark.parametrize(
    ("said", "reason"), [(True, "the policy asks for it"), (False, None), ("it costs", "it costs"), ("", None)]
)
def test_a_function_decides_and_a_text_is_its_reason(said: bool | str, reason: str | None) -> None:
    assert asked(lambda call, tool: said)["first"] == reason


def test_a_function_is_given_the_call_and_the_tool_and_nothing_that_does_not_exist() -> None:
    seen: list[tuple[str, str]] = []

    def policy(call: ToolCall, tool: Tool) -> bool:
        seen.append((call.tool, tool.name))
        return False

    asked(policy)
    assert seen == [("first", "first"), ("third", "third")]


def test_a_function_that_raises_does_not_let_the_call_through() -> None:
    def policy(call: ToolCall, tool: Tool) -> bool:
        raise ValueError("cannot decide")

    agent = Agent(ECHO, tools=[first], approval=policy)
    try:
        reason = agent.asks_before(CALLS["first"])
    except ValueError:
        return
    assert reason is not None


def says(reason: str) -> Any:
    return lambda call, tool: reason if call.tool == "first" else ""


def test_of_several_policies_one_that_asks_is_enough_and_the_first_reason_is_shown() -> None:
    assert asked((says("mine"), says("yours"), "risky")) == {
        "first": "mine",
        "third": "the tool is risky",
        "nothing": None,
    }
    assert asked((lambda call, tool: False, says("yours")))["first"] == "yours"
    assert asked((lambda call, tool: False, lambda call, tool: ""))["first"] is None


def test_one_of_several_policies_that_raises_does_not_let_the_call_through() -> None:
    def policy(call: ToolCall, tool: Tool) -> bool:
        raise ValueError("cannot decide")

    agent = Agent(ECHO, tools=[first], approval=("risky", policy))
    with pytest.raises(ValueError, match="cannot decide"):
        agent.asks_before(CALLS["first"])
    assert Agent(ECHO, tools=[third], approval=("risky", policy)).asks_before(CALLS["third"]) == "the tool is risky"


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ((), "never"),
        (("never",), "never"),
        (("never", ("never", ())), "never"),
        (("risky",), "risky"),
        (("risky", "never", ("risky",)), "risky"),
        ((importable.asks, "never"), importable.asks),
        ((importable.asks, ("risky", importable.asks)), (importable.asks, "risky")),
        ((("risky",), (importable.asks,)), ("risky", importable.asks)),
        (("risky", importable.asks, "always"), "always"),
        (("always", "always"), "always"),
    ],
    ids=lambda one: re.sub(r" at 0x[0-9a-f]+", "", str(one)),
)
def test_several_policies_stand_in_their_plainest_form(given: Any, plain: Any) -> None:
    agent = Agent(ECHO, approval=given)
    assert agent.approval == plain
    assert agent == Agent(ECHO, approval=plain)
    assert agent.replace(approval=("never", agent.approval)) == agent
    assert bind(agent.to_json()).approval == plain


# Secrets.


def test_a_literal_key_is_in_no_text_that_is_made_of_an_agent() -> None:
    agent = Agent(
        LLM("openai/gpt-5", api_key=SECRET), tools=[importable.plain], output=Person, approval=importable.asks
    )
    assert agent.llm.key() == Key(SECRET)
    for shown in (agent.to_json(), repr(agent), str(agent), agent.manifest.to_json(), repr(agent.manifest)):
        assert SECRET not in shown


def test_a_document_names_functions_by_path_and_digest_and_holds_no_code() -> None:
    agent = Agent(ECHO, tools=[importable.plain, importable.with_settings], output=Person, approval=importable.asks)
    document = json.loads(agent.to_json())
    document.pop("limits", None)
    assert document == {
        "llm": {"model": ECHO},
        "tools": [
            {
                "name": "delete-all",
                "path": "tests.agent.importable:with_settings",
                "digest": importable.with_settings.digest,
                "risky": True,
                "repeatable": True,
            },
            {"name": "plain", "path": "tests.agent.importable:plain", "digest": tool(importable.plain).digest},
        ],
        "output": {"name": "Person", "path": "tests.agent.importable:Person", "digest": document["output"]["digest"]},
        "approval": {"name": "asks", "path": "tests.agent.importable:asks"},
    }
