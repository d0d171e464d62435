"""Agents of a server that have sub-agents: from its file, from clients, and stored ones."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent import importable

from forkpoint.agent import Agent, Role, SubAgents
from forkpoint.agent.stored.document import portable_document
from forkpoint.agent.team.offer import everyone
from forkpoint.errors import BadAgent, CannotResume
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.agents.sent import TEAM, TEAM_DEPTH, TEAM_MOST

ECHO = "scripted/echo"
SECRET = "sk-never-to-be-seen-4711"
AWAY = "http://127.0.0.1:9/v1"


def team_of(agent: Agent) -> SubAgents:
    assert agent.sub_agents is not None
    return agent.sub_agents


def hidden(word: str) -> Agent:
    """An agent whose function is nowhere to be imported from."""

    def look(place: str) -> str:
        return word + place

    return Agent(ECHO, tools=[look], approval=lambda call, tool: word, name=word)


# From a file.

FILE = """
[agents.lead]
model = "scripted/echo"

[agents.lead.sub_agents]
depth = 3
most = 5
agents = ["explorer", "judge"]
models = ["openai/small", { model = "openai/large", base_url = "http://127.0.0.1:9/v1", headers = { x-team = "7" } }]

[agents.lead.sub_agents.roles.scout]
description = "Looks around."
instructions = "You look around."
agent = "explorer"

[agents.lead.sub_agents.roles.guard]
guardian = true

[agents.explorer]
agent = "team_of_operator:looker"

[agents.judge]
model = "scripted/echo"
sub_agents = true

[agents.plain]
model = "scripted/echo"
sub_agents = false
"""

MODULE = """
from forkpoint.agent import Agent

def look(place: str) -> str:
    "Looks."
    return place

looker = Agent("scripted/echo", tools=[look])
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "team_of_operator", raising=False)
    (tmp_path / "team_of_operator.py").write_text(MODULE)
    return tmp_path / "agents.toml"


def wrong(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(BadAgent) as error:
        Catalog.from_file(path)
    return error.value.why


def test_a_file_says_whom_an_agent_may_spawn(file: Path) -> None:
    file.write_text(FILE)
    agents = Catalog.from_file(file)
    assert (agents.names(), agents.default) == (("lead", "explorer", "judge", "plain"), "lead")
    explorer, judge = agents.named("explorer"), agents.named("judge")
    assert explorer.tool("look") is not None
    assert agents.named("lead").sub_agents == SubAgents(
        roles={"scout": Role("Looks around.", "You look around.", explorer), "guard": Role(guardian=True)},
        agents={"explorer": explorer, "judge": judge},
        models=["openai/small", LLM("openai/large", base_url=AWAY, headers=(("x-team", "7"),))],
        depth=3,
        most=5,
    )
    assert (judge.sub_agents, agents.named("plain").sub_agents) == (SubAgents(), None)
    assert "spawn_agent" in agents.items()[0].tools
    assert agents.bound(agents.named("lead").to_json()) == agents.named("lead")


def test_json_says_the_same_as_toml(file: Path) -> None:
    file.write_text(FILE)
    other = file.with_suffix(".json")
    other.write_bytes(msgspec.json.encode(tomllib.loads(FILE)))
    assert Catalog.from_file(other).named("lead") == Catalog.from_file(file).named("lead")


def test_everything_that_is_wrong_with_the_sub_agents_of_a_file_is_listed_at_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    said = wrong(
        file,
        f"""
[agents.fields]
model = "scripted/echo"
sub_agents = {{ deep = 3, depth = "two" }}
[agents.kind]
model = "scripted/echo"
sub_agents = 3
[agents.number]
model = "scripted/echo"
sub_agents = {{ depth = 0 }}
[agents.roles]
model = "scripted/echo"
[agents.roles.sub_agents]
roles.a = {{ descripton = "typo", guardian = "yes", agent = "nobody" }}
roles.b = {{ agent = "roles" }}
agents = ["roles", "no-one", "fields"]
models = [
  "gpt",
  {{ base_url = "http://127.0.0.1:9/v1" }},
  {{ model = "openai/x", top_k = 3 }},
  {{ model = "openai/x", api_key = "{SECRET}" }},
]
[agents.name]
model = "scripted/echo"
sub_agents = {{ roles = {{ "a b" = {{}} }} }}
[agents.twice]
model = "scripted/echo"
sub_agents = {{ models = ["scripted/a", "scripted/a"] }}
[agents.tools]
model = "scripted/echo"
client_tools = [{{ name = "spawn_agent" }}]
sub_agents = true
[agents.imported]
agent = "team_of_operator:looker"
sub_agents = true
[agents.unset]
model = "scripted/echo"
sub_agents = {{ models = ["openai/x"], agents = ["unset-too"] }}
[agents.unset-too]
model = "openai/x"
[agents.broken]
model = "scripted/echo"
temperature = "hot"
[agents.of-broken]
model = "scripted/echo"
output = {{ type = "nonsense" }}
sub_agents = {{ agents = ["broken"] }}
""",
    )
    for words in (
        "agents.fields.sub_agents.deep: there is no such field; did you mean depth?",
        "agents.fields.sub_agents.depth:",
        "agents.kind.sub_agents:",
        "agents.number.sub_agents: the depth",
        "agents.roles.sub_agents.roles.a.descripton: there is no such field; did you mean description?",
        "agents.roles.sub_agents.roles.a.guardian:",
        "agents.roles.sub_agents.roles.a.agent: there is no agent 'nobody' in this file",
        "agents.roles.sub_agents.roles.b.agent: it names the agent itself",
        "agents.roles.sub_agents.agents: it names the agent itself",
        "agents.roles.sub_agents.agents: there is no agent 'no-one' in this file",
        "agents.roles.sub_agents.models: ",
        "agents.roles.sub_agents.models: one of them has no model",
        "agents.roles.sub_agents.models: openai/x: top_k",
        "agents.roles.sub_agents.models.api_key: a literal key does not belong in a file",
        "agents.name.sub_agents: the name of its role 'a b'",
        "agents.twice.sub_agents: two models",
        "agents.tools: ",
        "agents.imported: agent names all of it already; leave out sub_agents",
        "agents.unset: model openai/x: the environment variable OPENAI_API_KEY",
        "agents.unset-too: the environment variable OPENAI_API_KEY",
        "agents.broken.temperature:",
        "agents.of-broken: ",
    ):
        assert words in said, f"{words!r} is missing from {said}"
    assert said.count("agents.unset") == 2, "what is wrong with an agent is said of it, and not of whoever names it"
    assert SECRET not in said


@pytest.mark.parametrize(
    ("names", "ring"),
    [
        ({"a": "b", "b": "a"}, "agents.a.sub_agents: a, which has b, which has a, and so on without end"),
        ({"x": "b", "b": "c", "c": "d", "d": "b"}, "agents.b.sub_agents: b, which has c, which has d, which has b,"),
    ],
)
@pytest.mark.parametrize("place", ["agents", "role"])
def test_agents_that_have_one_another_are_refused(file: Path, names: dict[str, str], ring: str, place: str) -> None:
    tables = (
        f'[agents.{name}]\nmodel = "scripted/echo"\n[agents.{name}.sub_agents]\n'
        + (f'agents = ["{other}"]\n' if place == "agents" else f'roles.r = {{ agent = "{other}" }}\n')
        for name, other in names.items()
    )
    said = wrong(file, "".join(tables))
    assert ring in said
    assert said.count("without end") == 1


def test_an_agent_may_be_there_by_two_ways(file: Path) -> None:
    file.write_text("""
[agents.a]
model = "scripted/echo"
sub_agents = { agents = ["b", "c"] }
[agents.b]
model = "scripted/echo"
sub_agents = { agents = ["c"] }
[agents.c]
model = "scripted/echo"
""")
    assert [place for place, _ in everyone(Catalog.from_file(file).named("a"))] == [
        "agent b",
        "agent b: agent c",
        "agent c",
    ]


# Given in code.


def test_a_key_that_an_agent_in_another_needs_must_be_there_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    inner = Agent(ECHO, sub_agents=SubAgents(agents={"b": Agent("openai/b")}, models=["openai/m"]))
    lead = Agent(ECHO, sub_agents=SubAgents(roles={"a": Role(agent=inner)}, models=["openai/n"]))
    with pytest.raises(BadAgent) as refused:
        Catalog({"lead": lead})
    for words in (
        "agents.lead: model openai/n: the environment variable OPENAI_API_KEY",
        "agents.lead: role a: model openai/m: the environment variable OPENAI_API_KEY",
        "agents.lead: role a: agent b: the environment variable OPENAI_API_KEY",
    ):
        assert words in refused.value.why
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert Catalog({"lead": lead}).named("lead").sub_agents == lead.sub_agents


# From clients.


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    big = LLM("openai/big", base_url=AWAY, retries=Retries(longest=9), api_key=SECRET)
    reviewer = hidden("reviewer").replace(sub_agents=SubAgents(roles={"deep": Role(agent=hidden("deep"))}))
    return Catalog({"big": Agent(big), "reviewer": reviewer}, allow_models=["scripted/*"])


def sent(**sub_agents: Any) -> bytes:
    return msgspec.json.encode({"llm": ECHO, "sub_agents": sub_agents})


def refused(agents: Catalog, document: bytes) -> str:
    with pytest.raises(BadAgent) as error:
        agents.received(document)
    assert SECRET not in str(error.value)
    return error.value.why


def test_an_agent_that_is_sent_may_have_sub_agents(agents: Catalog) -> None:
    made = agents.received(
        sent(
            roles={"a": {"description": "d", "instructions": "i", "guardian": True, "agent": {"llm": "openai/big"}}},
            agents={"b": {"llm": ECHO, "sub_agents": {}}},
            models=["openai/big", {"model": ECHO, "temperature": 0.5}],
            depth=3,
            most=4,
        )
    )
    big = agents.named("big").llm
    role = team_of(made).roles["a"]
    assert (role.description, role.instructions, role.guardian) == ("d", "i", True)
    assert role.agent is not None
    assert role.agent.llm == big, "where the server has it, with its key"
    assert team_of(team_of(made).agents["b"]) == SubAgents()
    assert [llm.model for llm in team_of(made).models] == ["openai/big", ECHO]
    assert (team_of(made).depth, team_of(made).most) == (3, 4)
    assert SECRET not in made.to_json()


def test_what_a_client_in_python_has_is_what_arrives(agents: Catalog) -> None:
    own = Agent(
        ECHO,
        sub_agents=SubAgents(
            roles={"a": Role("d", "i", Agent(ECHO, approval="risky"))}, models=["scripted/b"], depth=4
        ),
    )
    made = agents.received(portable_document(own))
    assert (made.sub_agents, made.manifest.hash) == (own.sub_agents, own.manifest.hash)


def test_an_agent_of_the_server_may_be_named_in_one_that_is_sent_and_keeps_its_policy(agents: Catalog) -> None:
    made = agents.received(sent(roles={"r": {"agent": "reviewer"}}, agents={"r": "reviewer"}))
    reviewer = agents.named("reviewer")
    assert team_of(made).agents == {"r": reviewer}
    assert team_of(made).roles["r"].agent is reviewer
    bound = agents.bound(made.to_json())
    assert bound == made, "with the server's own functions, at any depth"
    assert team_of(bound).agents["r"].approval is reviewer.approval


def test_literal_keys_of_the_server_serve_agents_and_models_in_a_stored_one(agents: Catalog) -> None:
    made = agents.received(sent(agents={"b": {"llm": "openai/big"}}, models=["openai/big"]))
    bound = agents.bound(made.to_json())
    assert bound == made
    assert team_of(bound).agents["b"].llm.key() == team_of(bound).models[0].key() == Key(SECRET)


DEEP: dict[str, Any] = {"llm": ECHO}
for _ in range(TEAM + 1):
    DEEP = {"llm": ECHO, "sub_agents": {"agents": {"a": DEEP}}}


@pytest.mark.parametrize(
    ("sub_agents", "word"),
    [
        (3, "cannot be read"),
        ({"deep": 3}, "deep"),
        ({"roles": {"a": {"path": "os:system"}}}, "path"),
        ({"roles": {"a b": {}}}, "a b"),
        ({"roles": {"a": {"agent": {"llm": ECHO, "tools": [{"name": "x"}]}}}}, "role a: it has tools"),
        ({"agents": {"a": {"llm": ECHO, "toolz": []}}}, "agent a: its document cannot be read"),
        ({"agents": {"a": {"llm": ECHO, "approval": {"name": "f", "path": "os:system"}}}}, "agent a: its approval"),
        ({"agents": {"a": {"llm": ECHO, "approval": ["risky", {"name": "f"}]}}}, "agent a: its approval"),
        ({"agents": {"a": {"llm": ECHO, "output": {"name": "X", "path": "os:system"}}}}, "agent a: its output"),
        ({"agents": {"a": {"llm": "openai/gpt-5.6"}}}, "agent a: its model 'openai/gpt-5.6' is not offered here"),
        ({"agents": {"a": {"llm": {"model": "openai/big", "base_url": "http://x"}}}}, "agent a: its llm has base_url"),
        ({"agents": {"a": {"llm": ECHO, "limits": {"steps": -1}}}}, "agent a: its limit of steps"),
        ({"agents": {"a": "nobody"}}, "agent a: there is no agent 'nobody' on this server"),
        ({"agents": {"a": None}}, "agent a: "),
        ({"models": ["openai/gpt-5.6"]}, "is not offered here"),
        ({"models": [{"model": "openai/big", "api_key": SECRET}]}, "a key is never sent"),
        ({"models": [ECHO, ECHO]}, "two models"),
        ({"depth": TEAM_DEPTH + 1}, "depth"),
        ({"depth": 0}, "depth"),
        ({"most": TEAM_MOST + 1}, "most"),
        ({"roles": {f"r{n}": {} for n in range(TEAM + 1)}}, "limit"),
        (DEEP["sub_agents"], "limit"),
    ],
    ids=lambda given: str(given)[:80],
)
def test_the_same_holds_for_what_is_in_an_agent_as_for_itself(agents: Catalog, sub_agents: Any, word: str) -> None:
    assert word in refused(agents, json.dumps({"llm": ECHO, "sub_agents": sub_agents}).encode())


def test_a_client_may_have_many_roles(agents: Catalog) -> None:
    made = agents.received(sent(roles={f"r{n}": {} for n in range(TEAM)}, depth=TEAM_DEPTH, most=TEAM_MOST))
    assert len(team_of(made).roles) == TEAM


def test_nothing_is_imported_for_an_agent_in_one_that_is_sent(
    agents: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team_trap.py").write_text("raise SystemExit('sprung')")
    monkeypatch.syspath_prepend(tmp_path)
    reference = {"name": "f", "path": "team_trap:f", "digest": "1"}
    for fields in ({"tools": [reference]}, {"approval": [reference]}, {"output": reference}):
        assert refused(agents, sent(agents={"a": {"llm": ECHO} | fields}))
        assert refused(agents, sent(roles={"a": {"agent": {"llm": ECHO} | fields}}))
    assert "team_trap" not in sys.modules


# Stored.


def test_a_sub_agent_s_own_conversation_has_the_functions_of_the_agents_in_which_it_stands(agents: Catalog) -> None:
    reviewer = agents.named("reviewer")
    deep = team_of(reviewer).roles["deep"].agent
    assert deep is not None
    child = deep.replace(approval=(reviewer.approval, deep.approval))
    bound = agents.bound(child.to_json())
    assert (bound.tools, bound.approval) == (deep.tools, (reviewer.approval, deep.approval))
    with pytest.raises(CannotResume, match="approval policy"):
        agents.bound(deep.to_json())  # which of the two is meant is not known


def test_which_of_two_agents_of_one_name_is_meant_is_not_guessed() -> None:
    roles = {"one": Role(agent=hidden("deep")), "two": Role(agent=hidden("deep"))}  # two functions of one name
    here = Catalog({"lead": Agent(ECHO, sub_agents=SubAgents(roles=roles))})
    deep = roles["one"].agent
    assert deep is not None
    with pytest.raises(CannotResume, match="no import path"):
        here.bound(deep.to_json())
    own = Catalog({"lead": Agent(ECHO, sub_agents=SubAgents(roles=roles)), "deep": deep})
    assert own.bound(deep.to_json()).tools == deep.tools, "the server's own name comes first"


def test_a_stored_agent_whose_sub_agents_have_changed_says_so() -> None:
    stored = Agent(ECHO, name="lead", sub_agents=SubAgents(agents={"a": Agent(ECHO, tools=[importable.plain])}))

    def plain(a: str) -> str:
        return a

    now = Catalog({"lead": Agent(ECHO, sub_agents=SubAgents(agents={"a": Agent(ECHO, tools=[plain])}))})
    with pytest.raises(CannotResume, match="agent a: tool plain: its arguments have changed"):
        now.bound(stored.to_json())
