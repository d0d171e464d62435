"""Sub-agents of an agent are data: checked when they are made, stored and bound with it, and told to its model."""

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent import importable
from tests.agent.importable import Person

from forkpoint import Agent, Role, SubAgents, tool
from forkpoint.agent import Limits
from forkpoint.agent.stored.document import bind, portable_document
from forkpoint.agent.team.offer import everyone
from forkpoint.agent.team.tools import NAMES, is_team_tool
from forkpoint.errors import BadAgent, BadModel, CannotResume, Item
from forkpoint.events import ToolCall
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import ToolSchema, differences

ECHO = "scripted/echo"
SECRET = "sk-never-to-be-seen-4711"
LOOKER = Agent(ECHO, tools=[importable.plain], approval=importable.asks, output=Person, name="looker")


def team(**fields: Any) -> Agent:
    return Agent(ECHO, sub_agents=SubAgents(**fields))


def missing_from(text: str, given: Agent | None = None, **how: Any) -> tuple[Item, ...]:
    with pytest.raises(CannotResume) as refused:
        bind(text, given, **how)
    return refused.value.items


# As data.


def test_an_agent_has_none_unless_it_is_said() -> None:
    for agent in (Agent(ECHO), Agent(ECHO, sub_agents=None), Agent(ECHO, sub_agents=False)):
        assert (agent.sub_agents, agent.tools) == (None, ())
    assert "sub_agents" not in json.loads(Agent(ECHO).to_json()), "an agent without them is stored as it always was"


def test_true_is_all_the_defaults() -> None:
    agent = Agent(ECHO, sub_agents=True)
    assert agent.sub_agents == SubAgents() == SubAgents(roles={}, agents={}, models=(), depth=2, most=16)
    assert agent == Agent(ECHO, sub_agents=SubAgents())
    assert json.loads(agent.to_json())["sub_agents"] == {}


def test_with_them_an_agent_has_the_five_tools_on_top_of_its_own() -> None:
    agent = Agent(ECHO, tools=[importable.plain], sub_agents=True)
    assert [one.name for one in agent.tools] == sorted({"plain", *NAMES})
    assert [one.name for one in agent.manifest.tools] == sorted({"plain", *NAMES})
    assert len(NAMES) == 5
    assert [one["name"] for one in json.loads(agent.to_json())["tools"]] == ["plain"]


def test_a_model_is_told_of_roles_agents_and_models_whatever_their_order() -> None:
    roles = {"writer": Role("Writes it down."), "explorer": Role("Looks around.", "You look around.")}
    agent = team(roles=roles, agents={"looker": LOOKER}, models=["openai/small"])
    spawn = agent.tool("spawn_agent")
    assert spawn is not None
    for word in ("explorer: Looks around.", "writer: Writes it down.", "looker", "openai/small"):
        assert word in spawn.description
    assert "You look around." not in spawn.description
    turned = team(roles=dict(reversed(roles.items())), agents={"looker": LOOKER}, models=["openai/small"])
    assert (turned, turned.manifest.hash) == (agent, agent.manifest.hash)


def test_what_a_model_is_not_told_leaves_its_prompt_as_it_is() -> None:
    one = team(roles={"explorer": Role("Looks.", "A")}, depth=2)
    other = team(roles={"explorer": Role("Looks.", "B", LOOKER, guardian=True)}, depth=3, most=4)
    assert one != other
    assert one.manifest.hash == other.manifest.hash
    told = team(roles={"explorer": Role("Looks twice.")})
    assert differences(one.manifest, told.manifest) == ("tool spawn_agent changed",)


def test_nothing_of_them_can_be_changed() -> None:
    roles = {"explorer": Role()}
    subs = SubAgents(roles=roles)
    roles["other"] = Role()
    assert list(subs.roles) == ["explorer"]
    with pytest.raises(TypeError):
        subs.roles["other"] = Role()  # type: ignore[index]
    for thing in (subs, subs.roles["explorer"]):
        for field in dataclasses.fields(thing):
            with pytest.raises(AttributeError):
                setattr(thing, field.name, None)


def test_equal_ones_are_equal_and_have_one_hash() -> None:
    def made() -> Agent:
        return team(roles={"a": Role("d", "i", Agent(ECHO, sub_agents=True))}, agents={"b": Agent(ECHO)}, models=[ECHO])

    assert made() == made()
    assert len({made(), made(), made().replace(name="n")}) == 2
    assert made() != made().replace(sub_agents=True)


@dataclasses.dataclass
class Listed:
    """A policy that can change, and so has no hash."""

    names: list[str]

    def __call__(self, call: ToolCall, tool: Any) -> bool:
        return call.tool in self.names


def test_an_agent_in_it_need_not_have_a_hash() -> None:
    odd = Agent(ECHO, approval=Listed(["look"]))
    with pytest.raises(TypeError):
        hash(odd)
    assert team(agents={"odd": odd}).tool("spawn_agent") is not None


def test_they_can_be_copied() -> None:
    subs = SubAgents(roles={"a": Role("d")}, agents={"b": Agent(ECHO)}, models=["openai/m"], depth=3, most=4)
    for again in (copy.copy(subs), copy.deepcopy(subs), pickle.loads(pickle.dumps(subs))):
        assert again == subs


def test_their_text_is_short_and_shows_no_key() -> None:
    assert repr(SubAgents()) == "SubAgents()"
    assert repr(SubAgents(roles={"a": Role("d")}, depth=3, most=4)).startswith("SubAgents(roles={'a': Role(descri")
    keyed = SubAgents(agents={"b": Agent(LLM("openai/m", api_key=SECRET))}, models=[LLM("openai/m", api_key=SECRET)])
    assert "openai/m" in repr(keyed)
    assert SECRET not in repr(keyed) + repr(Agent(ECHO, sub_agents=keyed))


def test_another_agent_with_changes_has_them_once() -> None:
    agent = team(roles={"a": Role("A")})
    assert agent.replace() == agent
    assert agent.replace(name="n").tools == agent.tools
    assert [one.name for one in agent.replace(tools=[importable.plain]).tools] == sorted({"plain", *NAMES})
    other = agent.replace(sub_agents=SubAgents(roles={"b": Role("B")})).tool("spawn_agent")
    assert other is not None
    assert "- b: B" in other.description
    assert "- a: A" not in other.description
    assert agent.replace(sub_agents=None) == Agent(ECHO)


def test_the_tools_of_another_s_team_make_no_team() -> None:
    assert Agent(ECHO, tools=team().tools).tools == ()


def test_everyone_is_there_at_any_depth_with_the_way_to_it() -> None:
    deep = team(roles={"a": Role(agent=team(agents={"b": LOOKER}))}, agents={"c": LOOKER})
    assert [place for place, _ in everyone(deep)] == ["role a", "role a: agent b", "agent c"]
    assert list(everyone(LOOKER)) == []


# What cannot be is refused when it is made.


@tool(name="spawn_agent")
def own_spawn(task: str) -> str:
    return task


def test_a_tool_of_one_s_own_has_none_of_the_five_names() -> None:
    assert not is_team_tool(own_spawn)
    assert Agent(ECHO, tools=[own_spawn]).tools == (own_spawn,), "without sub-agents the name is free"
    with pytest.raises(BadAgent, match=r"tool spawn_agent .*rename it"):
        Agent(ECHO, tools=[own_spawn], sub_agents=True)
    with pytest.raises(BadAgent, match="client tool wait_agent"):
        Agent(ECHO, client_tools=[ToolSchema("wait_agent")], sub_agents=True)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Agent(ECHO, sub_agents=3), "SubAgents"),  # type: ignore[arg-type]
        (lambda: Agent(ECHO, sub_agents={"depth": 2}), "SubAgents"),  # type: ignore[arg-type]
        (lambda: Role(3), "description"),  # type: ignore[arg-type]
        (lambda: Role("\ud800"), "description"),
        (lambda: Role(instructions=None), "instructions"),  # type: ignore[arg-type]
        (lambda: Role(instructions="\ud800"), "instructions"),
        (lambda: Role(agent=ECHO), "Agent"),  # type: ignore[arg-type]
        (lambda: Role(guardian=1), "guardian"),  # type: ignore[arg-type]
        (lambda: SubAgents(roles=[Role()]), "roles"),  # type: ignore[arg-type]
        (lambda: SubAgents(roles={"a": "b"}), "role a"),  # type: ignore[dict-item]
        (lambda: SubAgents(roles={"": Role()}), "name"),
        (lambda: SubAgents(roles={"a b": Role()}), "a b"),
        (lambda: SubAgents(roles={"a/b": Role()}), "a/b"),
        (lambda: SubAgents(roles={3: Role()}), "3"),  # type: ignore[dict-item]
        (lambda: SubAgents(agents={"x" * 129: LOOKER}), "name"),
        (lambda: SubAgents(agents={"a": ECHO}), "agent a"),  # type: ignore[dict-item]
        (lambda: SubAgents(models=[ECHO, LLM(ECHO, temperature=1)]), "scripted/echo"),
        *((lambda n=n: SubAgents(depth=n), "depth") for n in (0, -1, 33, 1.0, True, None, "2")),
        *((lambda n=n: SubAgents(most=n), "most") for n in (0, -1, 1025, 1.0, True, None, "2")),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, word: str) -> None:
    with pytest.raises(BadAgent, match=word):
        make()


def test_a_model_that_is_none_is_refused_as_anywhere() -> None:
    with pytest.raises(BadModel):
        SubAgents(models=["gpt"])
    assert SubAgents(models="openai/m").models == (LLM("openai/m"),), "one text is one of them, and not its letters"


def test_a_model_is_found_by_its_name_and_its_key_is_looked_up_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    subs = SubAgents(agents={"a": Agent("openai/big")}, models=[LLM("openai/m", temperature=0.5)])
    assert subs.model("openai/m") == LLM("openai/m", temperature=0.5)
    assert subs.model("openai/n") is None


# Stored, and bound again.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abcXYZ019._:-", min_size=1, max_size=8)
PLAIN_AGENTS = st.builds(
    Agent,
    st.sampled_from([ECHO, LLM("openai/m", temperature=0.5, api_key_env="SOME_KEY"), LLM("anthropic/c")]),
    instructions=TEXTS,
    tools=st.lists(st.sampled_from([importable.plain, importable.decorated, importable.with_settings]), unique=True),
    output=st.sampled_from([None, Person]),
    limits=st.builds(Limits, st.sampled_from([None, 5, 100])),
    approval=st.sampled_from(["never", "always", "risky", importable.asks, ("risky", importable.asks)]),
    name=st.none() | NAME,
    unattended=st.sampled_from(["deny", "run"]),
)


def with_team(agents: st.SearchStrategy[Agent]) -> st.SearchStrategy[Agent]:
    roles = st.builds(Role, TEXTS, TEXTS, st.none() | agents, st.booleans())
    subs = st.builds(
        SubAgents,
        roles=st.dictionaries(NAME, roles, max_size=3),
        agents=st.dictionaries(NAME, agents, max_size=2),
        models=st.lists(st.sampled_from([ECHO, "openai/m", "openai/n"]), unique=True, max_size=2),
        depth=st.integers(1, 32),
        most=st.integers(1, 1024),
    )
    return st.builds(lambda agent, subs: agent.replace(sub_agents=subs), agents, subs)


@settings(max_examples=60, deadline=None)
@given(st.recursive(PLAIN_AGENTS, with_team, max_leaves=6))
def test_an_agent_comes_back_from_its_document_with_all_of_them(agent: Agent) -> None:
    text = agent.to_json()
    again = bind(text)
    assert again.manifest.hash == agent.manifest.hash
    assert again.to_json() == text == agent.replace().to_json() == again.replace().to_json()
    assert (again.sub_agents is None) == (agent.sub_agents is None)
    for (place, one), (where, other) in zip(everyone(agent), everyone(again), strict=True):
        assert (place, one.to_json(), one.manifest.hash) == (where, other.to_json(), other.manifest.hash)
        assert (one.approval, one.output) == (other.approval, other.output)
    if agent.sub_agents is not None and again.sub_agents is not None:
        for field in ("models", "depth", "most"):
            assert getattr(again.sub_agents, field) == getattr(agent.sub_agents, field)
        for name, role in agent.sub_agents.roles.items():
            found = again.sub_agents.roles[name]
            assert dataclasses.replace(found, agent=None) == dataclasses.replace(role, agent=None)
    assert bind(text, agent, same=True).tools == agent.tools


def hidden(word: str) -> Agent:
    """An agent whose functions are nowhere to be imported from."""

    @tool
    def look(place: str) -> str:
        return word + place

    def asks(call: ToolCall, tool: Any) -> str:
        return word

    return Agent(ECHO, tools=[look], approval=asks, name=word)


def test_functions_of_an_agent_in_it_come_from_the_one_of_the_same_place() -> None:
    agent = team(roles={"a": Role(agent=hidden("role a"))}, agents={"a": hidden("agent a"), "b": hidden("agent b")})
    again = bind(agent.to_json(), agent)
    assert again == agent
    for _, one in everyone(again):
        assert one.tools[0].function("!") == f"{one.name}!"
        assert one.asks_before(ToolCall("c", "look", "{}")) == one.name


def test_everything_that_they_lack_is_listed_with_its_place() -> None:
    inner = team(agents={"deep": hidden("deep")})
    agent = Agent(
        ECHO, tools=hidden("x").tools, sub_agents=SubAgents(roles={"a": Role(agent=inner)}, agents={"b": inner})
    )
    said = "; ".join(map(str, missing_from(agent.to_json())))
    assert said == (
        "tool look: it has no import path; "
        "agent a: agent deep: tool look: it has no import path; "
        "agent a: agent deep: approval policy asks: it has no import path; "
        "agent b: agent deep: tool look: it has no import path; "
        "agent b: agent deep: approval policy asks: it has no import path"
    )


def test_only_the_very_same_functions_of_an_agent_of_an_earlier_day_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = team(roles={"a": Role(agent=Agent(ECHO, tools=[importable.plain]))})
    earlier = team(roles={"a": Role(agent=Agent(ECHO, tools=[tool(risky=True)(importable.plain)]))})
    assert [str(item) for item in missing_from(stored.to_json(), earlier)] == [
        "agent a: tool plain: it was not risky, and that has changed"
    ]
    (_, bound), *_ = everyone(bind(stored.to_json(), earlier, same=True))
    assert bound.tools[0].function is importable.plain
    assert not bound.tools[0].risky


def test_a_document_of_an_agent_in_it_is_kept_as_it_is() -> None:
    """Wherever its functions were found: what is stored of a sub-agent is what was stored of its parent."""
    stored = team(roles={"a": Role(agent=Agent(ECHO, tools=[importable.plain], name="n"))})
    moved = team(roles={"a": Role(agent=Agent(ECHO, tools=[tool(name="plain")(local_plain)], name="n"))})
    bound = bind(stored.to_json(), moved)
    ((_, one),), ((_, other),) = everyone(stored), everyone(bound)
    assert other.tools[0].function is local_plain
    assert other.to_json() == one.to_json()
    assert bound.to_json() == stored.to_json() == bound.replace().to_json()


def local_plain(a: int, b: str = "z") -> str:
    """Adds them up."""
    return ""


def test_what_one_goes_on_without_is_left_out_of_an_agent_in_it_too() -> None:
    agent = team(roles={"a": Role(agent=hidden("a").replace(tools=[*hidden("a").tools, importable.plain]))})
    again = bind(agent.to_json(), without=lambda item: item.kind in {"tool", "approval"})
    ((_, one),) = everyone(again)
    assert [tool.name for tool in one.tools] == ["plain"]
    assert one.approval == "always", "what is missing is never weakened"
    assert again.to_json() != agent.to_json(), "it is another agent, and is stored as that"
    assert bind(again.to_json()).to_json() == again.to_json()


@pytest.mark.parametrize(
    "sub_agents",
    [
        3,
        {"roles": 3},
        {"roles": {"a": 3}},
        {"roles": {"a": {"agent": 3}}},
        {"roles": {"a": {"agent": {"llm": {"model": "nobody"}}}}},
        {"roles": {"a b": {}}},
        {"agents": {"a": None}},
        {"agents": {"a": {}}},
        {"agents": {"a": {"llm": {"model": ECHO}, "client_tools": [{"name": "a b"}]}}},
        {"models": [{"model": "nobody"}]},
        {"models": ["x"]},
        {"models": [{"model": ECHO}, {"model": ECHO}]},
        {"depth": 0},
        {"most": 100_000},
    ],
    ids=str,
)
def test_a_document_whose_sub_agents_are_none_is_refused_in_our_words(sub_agents: Any) -> None:
    (item,) = missing_from(json.dumps({"llm": {"model": ECHO}, "sub_agents": sub_agents}))
    assert "cannot be read" in item.why or "cannot be made again" in item.why
    assert str(item).startswith(("its agent cannot", "agent a: cannot"))


def test_a_literal_key_of_theirs_comes_from_the_agent_given_and_goes_nowhere_else() -> None:
    keyed = LLM("openai/m", base_url="http://127.0.0.1:9/v1", api_key=SECRET)
    agent = team(roles={"a": Role(agent=Agent(keyed))}, models=[keyed])
    assert SECRET not in agent.to_json()
    again = bind(agent.to_json(), agent)
    assert again == agent
    assert again.sub_agents is not None
    assert again.sub_agents.models[0].key() == Key(SECRET)
    alone = bind(agent.to_json())
    assert [one.llm.api_key for _, one in everyone(alone)] == [None]
    moved = agent.to_json().replace("127.0.0.1:9", "127.0.0.1:10")
    elsewhere = bind(moved, agent)
    assert elsewhere.sub_agents is not None
    assert [one.llm.api_key for _, one in everyone(elsewhere)] == [elsewhere.sub_agents.models[0].api_key] == [None]


def test_whoever_lends_is_asked_about_agents_that_the_one_given_does_not_have() -> None:
    agent = team(roles={"a": Role(agent=hidden("a"))}, agents={"b": hidden("b")})
    lent = {one.to_json(): one for _, one in everyone(agent)}
    assert bind(agent.to_json(), lender=lent.get) == agent


# As data alone, for a server.


def test_they_go_to_a_server_if_all_of_it_is_data() -> None:
    agent = team(
        roles={"a": Role("d", "i", Agent(ECHO, output=Person, sub_agents=True), guardian=True)},
        agents={"b": Agent(ECHO, approval="risky")},
        models=["openai/m"],
        depth=3,
    )
    again = bind(portable_document(agent))
    assert again.manifest.hash == agent.manifest.hash
    assert again.sub_agents is not None
    assert portable_document(again) == portable_document(agent)
    assert "tests.agent" not in portable_document(agent), "the type of an answer goes as its schema"


@pytest.mark.parametrize(
    ("agent", "word"),
    [
        (team(roles={"a": Role(agent=hidden("a"))}), "^role a: it has Python tools"),
        (team(agents={"b": team(roles={"c": Role(agent=LOOKER)})}), "^agent b: role c: it has Python tools"),
        (team(agents={"b": Agent(ECHO, approval=importable.asks)}), "^agent b: its approval policy is a function"),
        (team(agents={"b": Agent(LLM("openai/m", api_key=SECRET))}), "^agent b: it has a literal key"),
        (team(models=[LLM("openai/m", api_key=SECRET)]), "^it has a literal key"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_runs_only_here_is_not_sent_with_them(agent: Agent, word: str) -> None:
    with pytest.raises(BadAgent) as refused:
        portable_document(agent)
    assert refused.value.why.startswith(word.removeprefix("^"))
    assert SECRET not in str(refused.value)
