"""A server's agents: what is wrong with them is said before it starts, and clients send data only."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent import importable
from tests.agent.importable import Person

from forkpoint.agent import Agent, Condenser, Hook, Limits, McpServer, Skill, Window
from forkpoint.agent.arguments import json_schema
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.stored.document import portable_document
from forkpoint.errors import BadAgent, BadWorkspace, CannotResume, ForkpointError, NotFound
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM, Price, Retries, Timeouts
from forkpoint.llm.prompt.manifest import ToolSchema
from forkpoint.server.agents.catalog import AgentItem, Catalog
from forkpoint.server.agents.sent import CLIENT_TOOLS, SIZE, SKILLS

ECHO = "scripted/echo"
SECRET = "sk-never-to-be-seen-4711"
AWAY = "http://127.0.0.1:9/v1"

OWN = LLM(
    "openai/big",
    base_url=AWAY,
    api="chat",
    provider="us",
    headers=(("x-team", "seven"),),
    session_headers=("x-ours",),
    extra='{"top_k": 5}',
    cache_salt=True,
    timeouts=Timeouts(total=100),
    retries=Retries(longest=9),
)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    reviewer = Agent(ECHO, tools=[importable.plain], approval=importable.asks, instructions="Review.")
    return Catalog({"big": Agent(OWN), "reviewer": reviewer}, allow_models=["openai/gpt-*", "scripted/*", "local/*"])


def sent(llm: Any, **fields: Any) -> bytes:
    return msgspec.json.encode({"llm": llm if isinstance(llm, dict) else {"model": llm}} | fields)


def refused(agents: Catalog, document: bytes | str) -> str:
    with pytest.raises(BadAgent) as error:
        agents.received(document)
    assert SECRET not in str(error.value)
    return error.value.why


def wrong(path: Path) -> str:
    with pytest.raises(BadAgent) as error:
        Catalog.from_file(path)
    assert str(path) in error.value.why
    return error.value.why


# From a file.

WHOLE = """
default = "helper"
allow_models = ["scripted/*"]
workspaces = ["repos"]

[agents.coder]
model = "openai/big"
base_url = "http://127.0.0.1:9/v1"
api = "responses"
api_key_env = "BIG_KEY"
temperature = 0.5
max_tokens = 1000
reasoning_effort = "low"
headers = { x-team = "seven" }
extra = { service_tier = "flex" }
timeouts = { total = 50 }
retries = { attempts = 2 }
price = { input = 1, output = 2 }
instructions_file = "coder.txt"
approval = "risky"
workspace = "repos"

[agents.coder.limits]
steps = 7

[[agents.coder.hooks]]
moment = "before_tool"
command = ["./guard.sh", "x"]
tools = "shell"
on_error = "block"

[[agents.coder.hooks]]
moment = "turn_end"
function = "operators_own:note"

[[agents.coder.mcp]]
name = "time"
command = ["./time-server", "--utc"]
env = { TOKEN = "${TIME_TOKEN}" }
cwd = "repos"
tools = ["now"]

[[agents.coder.mcp]]
name = "search"
url = "https://search.example/mcp"
timeout = 5

[agents.helper]
model = "scripted/echo"
instructions = "Help."
stop = "END"
unattended = "run"

[[agents.helper.client_tools]]
name = "browse"
description = "Opens a page."
strict = true
parameters = { type = "object", properties = { page = { type = "string" } } }

[[agents.helper.client_tools]]
name = "ask"

[agents.helper.output]
title = "Answer"
type = "object"

[agents.reader]
model = "scripted/echo"
output_file = "form.json"

[agents.tooled]
agent = "operators_own:agent"
"""

MODULE = """
from forkpoint.agent import Agent

def look(place: str) -> str:
    "Looks."
    return place

agent = Agent("scripted/echo", tools=[look])


def note(context):
    pass
"""


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIG_KEY", SECRET)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "operators_own", raising=False)
    (tmp_path / "repos").mkdir()
    (tmp_path / "coder.txt").write_text("Write code. é", encoding="utf-8")
    (tmp_path / "form.json").write_text('{"type": "object"}')
    (tmp_path / "operators_own.py").write_text(MODULE)
    file = tmp_path / "agents.toml"
    file.write_text(WHOLE)
    return file


def test_a_file_says_everything_of_an_agent(whole: Path) -> None:
    agents = Catalog.from_file(whole)
    assert agents.names() == ("coder", "helper", "reader", "tooled")
    assert agents.default == "helper"
    coder = agents.named("coder")
    assert coder.llm == LLM(
        "openai/big",
        base_url=AWAY,
        api="responses",
        api_key_env="BIG_KEY",
        temperature=0.5,
        max_tokens=1000,
        reasoning_effort="low",
        headers=(("x-team", "seven"),),
        extra='{"service_tier":"flex"}',
        timeouts=Timeouts(total=50),
        retries=Retries(2),
        price=Price(1, 2),
    )
    assert (coder.instructions, coder.approval, coder.limits) == ("Write code. é", "risky", Limits(7))
    guard = [str(whole.parent / "guard.sh"), "x"]
    assert coder.hooks == (
        Hook("before_tool", command=guard, tools="shell", on_error="block", name="./guard.sh x"),
        Hook("turn_end", function="operators_own:note"),
    )
    assert [one.server for one in coder.mcp] == [
        McpServer("search", url="https://search.example/mcp", timeout=5),
        McpServer(
            "time",
            command=[str(whole.parent / "time-server"), "--utc"],
            env={"TOKEN": "${TIME_TOKEN}"},
            cwd=str(whole.parent / "repos"),
            tools=["now"],
        ),
    ]
    assert agents.workspace_for(None, coder) == str((whole.parent / "repos").resolve())
    helper = agents.named("helper")
    assert helper.output == OutputSchema("Answer", '{"title":"Answer","type":"object"}')
    assert helper.llm.stop == ("END",)
    page = '{"type":"object","properties":{"page":{"type":"string"}}}'
    assert helper.client_tools == (ToolSchema("ask"), ToolSchema("browse", "Opens a page.", page, strict=True))
    assert (helper.unattended, coder.client_tools, coder.unattended) == ("run", (), "deny")
    assert agents.workspace_for(None, helper) is None
    assert agents.named("reader").output == OutputSchema("reader", '{"type":"object"}')
    tooled = agents.named("tooled")
    assert ([tool.name for tool in tooled.tools], tooled.name) == (["look"], "tooled")


def test_json_says_the_same_as_toml(whole: Path) -> None:
    import tomllib

    other = whole.with_suffix(".json")
    other.write_bytes(msgspec.json.encode(tomllib.loads(WHOLE)))
    one, two = Catalog.from_file(whole), Catalog.from_file(other)
    assert [one.named(name).to_json() for name in one.names()] == [two.named(name).to_json() for name in two.names()]
    assert one.items() == two.items()


def test_the_operator_s_code_is_looked_for_last(whole: Path) -> None:
    (whole.parent / "msgspec.py").write_text("raise RuntimeError('in place of a library')")
    Catalog.from_file(whole)
    assert str(whole.parent) in sys.path[-2:]


def test_the_first_agent_is_the_default_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('[agents.b]\nmodel="scripted/echo"\n[agents.a]\nmodel="scripted/echo"\n')
    agents = Catalog.from_file(file)
    assert agents.default == "b"
    assert agents.items() == (AgentItem("b", ECHO, (), True), AgentItem("a", ECHO, (), False))


def test_everything_that_is_wrong_with_a_file_is_listed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY_KEY", " ")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "agents.toml"
    file.write_text(f"""
default = "nobody"
allow_model = ["openai/*"]
allow_models = ["gpt", "anthropicc/*"]
workspaces = ["nowhere"]
[agents.typo]
modle = "scripted/echo"
[agents.kinds]
model = "scripted/echo"
temperature = "hot"
limits = {{ steps = 0 }}
approval = "sometimes"
[agents.bare]
[agents.files]
model = "scripted/echo"
instructions_file = "no.txt"
output_file = "no.json"
workspace = "nowhere-either"
[agents.both]
model = "scripted/echo"
instructions = "a"
instructions_file = "agents.toml"
[agents.form]
model = "scripted/echo"
output = {{ type = "nonsense" }}
[agents.gone]
agent = "no_such_module_here:agent"
[agents.notone]
agent = "os:sep"
[agents.shape]
agent = "os"
[agents.double]
agent = "os:sep"
model = "scripted/echo"
[agents.literal]
model = "openai/x"
api_key = "{SECRET}"
[agents.empty]
model = "openai/x"
api_key_env = "EMPTY_KEY"
[agents.unset]
model = "openai/x"
[agents.wire]
model = "openai/x"
top_k = 3
[agents."not a name"]
model = "scripted/echo"
[agents.alone]
model = "scripted/echo"
unattended = "ask"
client_tools = [{{ name = "ask", type = "function" }}]
[agents.called]
model = "scripted/echo"
client_tools = [{{ name = "not a name" }}]
[agents.twice]
model = "scripted/echo"
client_tools = [{{ name = "ask" }}, {{ name = "ask" }}]
[agents.json]
model = "scripted/echo"
client_tools = [{{ name = "ask", parameters = "x" }}]
[agents.hooked]
model = "scripted/echo"
hooks = [{{ moment = "turn_end", function = "no_such_module_here:note" }}, {{ moment = "turn_end" }}]
[agents.misspelt]
model = "scripted/echo"
hooks = [{{ moment = "never", command = "x" }}]
""")
    said = wrong(file)
    for words in (
        "default: there is no agent 'nobody'",
        "allow_model: there is no such field; did you mean allow_models?",
        "allow_models: 'gpt'",
        "allow_models: 'anthropicc/*'",
        "nowhere is not a folder",
        "agents.typo.modle: there is no such field",
        "agents.kinds.temperature:",
        "agents.kinds.limits: its limit of steps",
        "agents.kinds.approval:",
        "agents.bare: it has neither model nor agent",
        "agents.files.instructions_file:",
        "agents.files.output_file:",
        "agents.files.workspace:",
        "agents.both: instructions and instructions_file",
        "agents.form: ",
        "agents.gone.agent: no_such_module_here:agent cannot be imported",
        "agents.hooked.hooks: no_such_module_here:note cannot be imported",
        "agents.hooked.hooks: its hook of 'turn_end' must have a command or a function",
        "agents.misspelt.hooks: Invalid enum value 'never'",
        "agents.notone.agent: os:sep is of the class str",
        "agents.shape.agent: 'os' is not of the form MODULE:NAME",
        "agents.double: agent names all of it already; leave out model",
        "agents.literal.api_key: a literal key does not belong in a file",
        "agents.empty: the environment variable EMPTY_KEY",
        "agents.unset: the environment variable OPENAI_API_KEY",
        "agents.wire.top_k:",
        "agents.not a name: ",
        "agents.alone.unattended:",
        "agents.alone.client_tools:",
        "agents.called: ",
        "agents.twice: ",
        "agents.json.client_tools:",
    ):
        assert words in said, f"{words!r} is missing from {said}"
    assert SECRET not in said


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.toml", "[agents", "TOML"),
        ("a.toml", "[agents.a]\nmodel='scripted/echo'\n[agents.a]\nmodel='scripted/echo'", "TOML"),
        ("a.json", "{", "JSON"),
        ("a.json", "[]", "table"),
        (
            "a.json",
            '{"agents":{"a":{"model":"scripted/echo"},"a":{"model":"scripted/echo"}}}',
            "'a' stands there twice",
        ),
        ("a.json", '{"agents":{"a":3}}', "agents"),
        ("a.json", "{}", "no agents"),
        ("a.toml", "", "no agents"),
        ("a.toml", "agents = 3", "agents"),
        ("a.json", "[" * 100_000, "JSON"),
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_is_none_is_refused(name: str, text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert word in wrong(tmp_path / name)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in wrong(tmp_path / "none.toml")
    assert "cannot be read" in wrong(tmp_path)
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    assert "not TOML" in wrong(tmp_path / "a.toml")


def test_a_module_that_ends_the_program_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "ending_module.py").write_text("raise SystemExit('usage')")
    (tmp_path / "a.toml").write_text('[agents.a]\nagent = "ending_module:agent"')
    assert "SystemExit: usage" in wrong(tmp_path / "a.toml")


# From flags.


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai/gpt-5.6", "gpt-5.6"),
        ("openai/Qwen/Qwen3-8B", "Qwen-Qwen3-8B"),
        ("scripted/echo", "echo"),
        ("local/smollm2", "smollm2"),
        ("local//srv/models/a b.gguf", "a-b.gguf"),
    ],
)
def test_an_agent_of_a_model_is_called_like_it(model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    agents = Catalog.of_model(model, instructions="Be brief.")
    assert (agents.names(), agents.default) == ((name,), name)
    assert (agents.named(name).llm.model, agents.named(name).instructions) == (model, "Be brief.")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_key_that_is_missing_or_empty_is_an_error_at_the_start(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("MY_KEY", raising=False)
    else:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(BadAgent, match=r"agents\.big: .*MY_KEY"):
        Catalog.of_model(LLM("openai/big", base_url=AWAY, api_key_env="MY_KEY"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadAgent, match="OPENAI_API_KEY"):
        Catalog.of_model("scripted/echo", allow_models=["openai/*"])
    assert Catalog.of_model(LLM("openai/big", base_url=AWAY)).named("big").llm.key() is None, (
        "a server that wants no key"
    )


# Names.


def test_a_name_is_an_agent(agents: Catalog) -> None:
    assert agents.received('"reviewer"') is agents.named("reviewer")
    assert agents.items()[1] == AgentItem("reviewer", ECHO, ("plain",), False)


@pytest.mark.parametrize("name", ["nobody", "", "\x00", "x" * 10_000, "../big"])
def test_a_name_that_no_agent_has_is_not_found(agents: Catalog, name: str) -> None:
    with pytest.raises(NotFound) as error:
        agents.received(msgspec.json.encode(name))
    assert error.value.what == "agent"
    assert len(error.value.id) < 300


# What clients send.


def test_an_agent_that_is_sent_runs_where_the_server_has_its_model(agents: Catalog) -> None:
    mine = Agent(
        LLM("openai/big", api="chat", temperature=0.3, seed=5, max_tokens=9, reasoning_effort="low"),
        instructions="Mine.",
        output=Person,
        limits=Limits(3),
        approval="always",
        name="my-own",
        client_tools=[ToolSchema("browse", "Opens a page.", '{ "type": "object" }', strict=True)],
        unattended="run",
    )
    made = agents.received(portable_document(mine))
    assert (made.client_tools, made.unattended) == (mine.client_tools, "run")
    assert agents.bound(made.to_json()) == made
    assert made.llm == msgspec.structs.replace(OWN, temperature=0.3, seed=5, max_tokens=9, reasoning_effort="low")
    assert (made.instructions, made.limits, made.approval, made.name) == ("Mine.", Limits(3), "always", "my-own")
    assert made.output == OutputSchema("Person", json_schema(Person))
    assert made.tools == ()


def test_settings_of_the_wire_that_the_server_uses_can_be_sent(agents: Catalog) -> None:
    """A client need not know that the server speaks another wire than the model's own."""
    assert agents.received(sent({"model": "openai/big", "seed": 7})).llm.wire == "chat"


def test_a_model_s_name_is_enough(agents: Catalog) -> None:
    assert agents.received(b'{"llm":"openai/big"}').llm == OWN


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base_url", "http://169.254.169.254/latest"),
        ("api_key_env", "AWS_SECRET_ACCESS_KEY"),
        ("headers", [["x-other", "1"]]),
        ("provider", "them"),
        ("session_headers", ["x-theirs"]),
        ("extra", '{"n": 100}'),
        ("cache_salt", False),
    ],
)
def test_where_a_model_is_cannot_be_sent_unless_it_is_the_same(agents: Catalog, setting: str, value: Any) -> None:
    for model in ("openai/big", "openai/gpt-5"):
        if model == "openai/gpt-5" and value is False:
            continue
        assert setting in refused(agents, sent({"model": model, setting: value}))
    same = msgspec.json.decode(OWN.to_json()).get(setting)
    assert agents.received(sent({"model": "openai/big", setting: same})).llm == OWN


def test_a_refusal_does_not_say_what_the_server_has(agents: Catalog) -> None:
    said = refused(agents, sent({"model": "openai/big", "base_url": "http://elsewhere.example", "headers": []}))
    for secret in (AWAY, "seven", "x-team"):
        assert secret not in said


def test_a_context_cannot_be_made_larger_by_a_client() -> None:
    agents = Catalog({"small": Agent(LLM("local/smollm2", context_tokens=2048))})
    assert agents.received(sent("local/smollm2")).llm.context_tokens == 2048
    assert "context_tokens" in refused(agents, sent({"model": "local/smollm2", "context_tokens": 1_000_000}))


def test_a_price_is_the_server_s_where_it_has_one() -> None:
    priced = Catalog({"a": Agent(LLM(ECHO, price=Price(1, 2)))})
    assert priced.received(sent(ECHO)).llm.price == Price(1, 2)
    assert "price" in refused(priced, sent({"model": ECHO, "price": {"input": 0, "output": 0}}))
    free = Catalog({"a": Agent(ECHO)})
    assert free.received(sent({"model": ECHO, "price": {"input": 3, "output": 4}})).llm.price == Price(3, 4)


def test_of_two_ways_to_one_model_the_one_that_was_sent_is_taken() -> None:
    one, two = (LLM("openai/m", base_url=f"http://127.0.0.1:{port}/v1") for port in (1, 2))
    agents = Catalog({"one": Agent(one), "two": Agent(two), "three": Agent(ECHO)}, default="three")
    assert agents.received(sent("openai/m")).llm == one
    assert agents.received(sent({"model": "openai/m", "base_url": two.base_url})).llm == two
    assert agents.received(sent("openai/m", name="two")).llm == two
    assert "base_url" in refused(agents, sent({"model": "openai/m", "base_url": AWAY}))


def test_a_literal_key_of_the_server_serves_and_is_stored_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    own = Agent(LLM("openai/m", api_key=SECRET))
    agents = Catalog({"own": own, "other": Agent(ECHO, tools=[importable.plain])})
    for name in ("mine", "other", "own"):
        made = agents.received(sent("openai/m", name=name))
        assert made.llm.key() == Key(SECRET)
        assert SECRET not in made.to_json()
        assert agents.bound(made.to_json()).llm.key() == Key(SECRET)


def test_a_key_is_never_taken_from_a_client_nor_repeated(agents: Catalog) -> None:
    assert "literal key" in refused(agents, sent({"model": "openai/big", "api_key": SECRET}))
    assert "literal key" in refused(agents, sent({"model": "openai/big", "api_key": None}))


def test_waiting_and_trying_have_the_server_s_limits(agents: Catalog) -> None:
    llm = LLM("openai/big", timeouts=Timeouts(5, 6, 7, 10_000), retries=Retries(1000, 100, 1000))
    made = agents.received(portable_document(Agent(llm)))
    assert made.llm.timeouts == Timeouts(5, 6, 7, 100)
    assert made.llm.retries == Retries(10, 9, 9)
    shorter = LLM("openai/big", timeouts=Timeouts(total=3), retries=Retries(1))
    assert agents.received(portable_document(Agent(shorter))).llm.timeouts.total == 3
    assert agents.received(portable_document(Agent(shorter))).llm.retries.attempts == 1


@pytest.mark.parametrize("model", ["openai/gpt-5", "scripted/echo", "scripted/other", "local/smollm2"])
def test_a_model_that_a_pattern_allows_can_be_sent(agents: Catalog, model: str) -> None:
    assert agents.received(sent(model)).llm == LLM(model)


@pytest.mark.parametrize(
    "model",
    [
        "openai/other",
        "anthropic/claude",
        "OPENAI/gpt-5",
        "local//etc/passwd.gguf",
        "local/x.gguf",
        "scripted/x.json",
        "scripted//tmp/x",
        "scripted/../x",
        "gpt-5",
        "",
    ],
)
def test_no_other_model_can_be_sent(agents: Catalog, model: str) -> None:
    said = refused(agents, sent(model))
    assert "not offered" in said
    assert "openai/gpt-*" in said, "it says what can be used"


def test_a_file_of_the_server_s_own_can_be_named_but_is_not_told() -> None:
    agents = Catalog({"mine": Agent("scripted/secret/place.json")})
    assert agents.received(sent("scripted/secret/place.json")).llm.model == "scripted/secret/place.json"
    assert "secret" not in refused(agents, sent("scripted/x"))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"name": "plain", "path": "tests.agent.importable:plain"}]}, "tools"),
        ({"tools": [{"name": "plain"}]}, "tools"),
        ({"mcp": [{"server": {"name": "a", "command": ["id"]}}]}, "MCP servers"),
        ({"hooks": [{"moment": "turn_start", "command": ["id"]}]}, "it has hooks"),
        ({"hooks": [{"moment": "turn_start", "function": "os:abort"}]}, "it has hooks"),
        ({"mcp": [{"server": {"name": "a", "url": "http://127.0.0.1:9"}, "tools": []}]}, "MCP servers"),
        ({"mcp": [{"server": {"name": "a"}}]}, "a command or a url"),
        ({"approval": {"name": "asks", "path": "tests.agent.importable:asks"}}, "approval"),
        ({"output": {"name": "Person", "path": "tests.agent.importable:Person"}}, "schema"),
        ({"output": {"name": "Person", "path": "os:system", "schema": {"type": "object"}}}, "import path"),
        ({"output": {"name": "Person"}}, "schema"),
        ({"output": {"name": "Person", "schema": {"$ref": "http://127.0.0.1:9/"}}}, "leads elsewhere"),
        ({"output": {"name": "Person", "schema": "x"}}, "JSON object"),
        ({"limits": {"steps": -1}}, "limit of steps"),
        ({"limits": {"hours": 1}}, "hours"),
        ({"approval": "sometimes"}, "approval"),
        ({"toolz": []}, "toolz"),
        ({"instructions": 3}, "instructions"),
        ({"name": 3}, "name"),
        ({"llm": 3}, "llm"),
        ({"llm": {}}, "model"),
        ({"llm": {"model": 3}}, "model"),
        ({"llm": {"model": ECHO, "modle": 3}}, "modle"),
        ({"llm": {"model": ECHO, "temperature": "hot"}}, "float"),
        ({"llm": {"model": "openai/gpt-5", "top_k": 3}}, "top_k"),
        ({"llm": {"model": "openai/gpt-5", "api": "messages"}}, "api"),
        ({"llm": {"model": ECHO, "timeouts": {"total": -1}}}, "timeouts.total"),
        ({"instructions": "x" * SIZE}, "limit"),
        ({"client_tools": [{"name": "ask", "path": "os:system"}]}, "path"),
        ({"client_tools": [{"name": "ask", "type": "function"}]}, "type"),
        ({"client_tools": [{"name": "not a name"}]}, "not a name"),
        ({"client_tools": [{"name": "ask"}, {"name": "ask"}]}, "two tools"),
        ({"client_tools": [{"name": "ask", "parameters": [1]}]}, "JSON object"),
        ({"client_tools": [{}]}, "name"),
        ({"client_tools": [{"name": f"ask{n}"} for n in range(CLIENT_TOOLS + 1)]}, "limit"),
        ({"client_tools": [{"name": "ask", "description": "x" * SIZE}]}, "limit"),
        ({"unattended": "ask"}, "unattended"),
        ({"skills": [{"name": f"s{n}", "content": "x"} for n in range(SKILLS + 1)]}, "65 skills, and the limit is 64"),
        (
            {
                "skills": [
                    {"name": f"s{n}", "content": "x", "words": ["a"] * 51, "files": ["b"] * 50} for n in range(10)
                ]
            },
            "1,010 words and patterns, and the limit is 1,000",
        ),
    ],
    ids=lambda given: str(given)[:80],
)
def test_what_is_no_plain_data_or_makes_no_sense_is_refused(agents: Catalog, fields: Any, word: str) -> None:
    assert word in refused(agents, msgspec.json.encode({"llm": {"model": ECHO}} | fields))


def test_a_client_may_have_many_tools_of_its_own(agents: Catalog) -> None:
    tools = [{"name": f"ask{n:03}"} for n in range(CLIENT_TOOLS)]
    assert len(agents.received(sent(ECHO, client_tools=tools)).client_tools) == CLIENT_TOOLS


def test_what_a_client_does_unattended_lets_no_function_of_the_server_run(agents: Catalog) -> None:
    """It names an agent of the server, whose tools ask first, and gets none of them."""
    made = agents.received(sent(ECHO, name="reviewer", unattended="run", approval="never"))
    assert (made.tools, agents.bound(made.to_json()).tools) == ((), ())
    assert agents.named("reviewer").unattended == "deny"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "{}",
        "\ud800",
        b"\xff",
        "[" * 100_000,
        '{"llm":' + "[" * 90_000,
        '{"llm":' + "[" * 90_000 + "]" * 90_000 + "}",
        '{"llm":"\\ud800"}',
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_no_document_is_refused_in_our_words(agents: Catalog, text: bytes | str) -> None:
    assert refused(agents, text)


def test_nothing_is_imported_for_a_client(agents: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_module.py").write_text("raise SystemExit('sprung')")
    monkeypatch.syspath_prepend(tmp_path)
    reference = {"name": "f", "path": "trap_module:f", "digest": "1"}
    for fields in ({"tools": [reference]}, {"approval": reference}, {"output": reference}):
        refused(agents, sent(ECHO, **fields))
    assert "trap_module" not in sys.modules


# Agents of stored conversations.


def test_a_stored_agent_has_the_server_s_own_functions(agents: Catalog) -> None:
    def within(a: int) -> int:
        return a

    here = Catalog({"worker": Agent(ECHO, tools=[within], approval=lambda call, tool: True)})
    text = here.named("worker").to_json()
    bound = here.bound(text)
    assert bound.tools == here.named("worker").tools
    assert bound.approval is here.named("worker").approval
    assert here.bound(text) is bound, "it is not made anew each time"
    with pytest.raises(CannotResume, match="within"):
        agents.bound(text)


def test_the_name_that_a_server_gives_an_agent_changes_nothing_else_of_it() -> None:
    agent = Agent(ECHO, tools=[importable.plain], client_tools=[ToolSchema("ask")], unattended="run", approval="always")
    named = Catalog({"worker": agent}).named("worker")
    assert named.name == "worker"
    assert named.replace(name=None) == agent


def test_a_stored_agent_of_another_model_has_that_model_s_key_and_its_own_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another")

    def within(a: int) -> int:
        return a

    worker = Agent("openai/gpt-5", tools=[within], client_tools=[ToolSchema("ask")], unattended="run")
    keeper = Agent(LLM("openai/gpt-6", api_key=SECRET))
    here = Catalog({"worker": worker, "keeper": keeper})
    bound = here.bound(here.named("worker").replace(llm=LLM("openai/gpt-6")).to_json())
    assert bound.llm.key() == Key(SECRET)
    assert (bound.tools, bound.client_tools, bound.unattended) == (worker.tools, worker.client_tools, "run")


def test_a_stored_agent_that_the_server_s_own_no_longer_matches_says_so() -> None:
    def look(place: str) -> str:
        return place

    text = Catalog({"worker": Agent(ECHO, tools=[look])}).named("worker").to_json()

    def changed(place: int) -> int:
        return place

    changed.__name__ = "look"
    with pytest.raises(CannotResume, match="look: its arguments have changed"):
        Catalog({"worker": Agent(ECHO, tools=[changed])}).bound(text)


def test_what_a_client_sent_comes_back_without_the_functions_of_an_agent_of_that_name(agents: Catalog) -> None:
    made = agents.received(sent(ECHO, name="reviewer", instructions="Mine."))
    again = agents.bound(made.to_json())
    assert (again.tools, again.approval, again.instructions) == ((), "never", "Mine.")


@pytest.mark.parametrize("text", ["", "{}", "3", "[" * 100_000, '{"llm":{"model":3}}'], ids=lambda text: text[:10])
def test_a_stored_document_that_is_none_cannot_be_resumed(agents: Catalog, text: str) -> None:
    with pytest.raises(CannotResume):
        agents.bound(text)


# Workspaces.


@pytest.fixture
def rooted(tmp_path: Path) -> Catalog:
    (tmp_path / "repos" / "one").mkdir(parents=True)
    (tmp_path / "repos-too").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "repos" / "file").write_text("")
    (tmp_path / "repos" / "out").symlink_to(tmp_path / "private")
    (tmp_path / "in").symlink_to(tmp_path / "repos" / "one")
    agents = {"a": Agent(ECHO), "b": Agent(ECHO)}
    return Catalog(agents, roots=[tmp_path / "repos"], workspaces={"a": tmp_path / "private"})


def test_a_client_chooses_a_folder_under_a_root(rooted: Catalog, tmp_path: Path) -> None:
    agent, one = rooted.named("b"), str((tmp_path / "repos" / "one").resolve())
    for path in (one, one + "/", f"{one}/../one", str(tmp_path / "in")):
        assert rooted.workspace_for(path, agent) == one
    assert rooted.workspace_for(str(tmp_path / "repos"), agent) == str((tmp_path / "repos").resolve())


@pytest.mark.parametrize(
    "path",
    [
        "private",
        "no-such",
        "repos-too",
        "repos/out",
        "repos/no-such",
        "repos/file",
        "repos/../private",
        "repos/one/../../private",
        "x\x00y",
        "x" * 10_000,
    ],
    ids=lambda path: ascii(path[:20]),
)
def test_whether_a_folder_elsewhere_exists_is_not_told(rooted: Catalog, tmp_path: Path, path: str) -> None:
    with pytest.raises(BadWorkspace) as error:
        rooted.workspace_for(f"{tmp_path}/{path}", rooted.named("b"))
    assert error.value.why == "it is not a folder under one of the roots that this server allows for workspaces"
    assert len(error.value.path) < 300


@pytest.mark.parametrize("path", ["", ".", "repos", "~", "~/repos", "share", "worktree"])
def test_only_an_absolute_path_names_a_workspace(rooted: Catalog, path: str) -> None:
    with pytest.raises(BadWorkspace):
        rooted.workspace_for(path, rooted.named("b"))


def test_without_roots_a_client_chooses_no_workspace(tmp_path: Path) -> None:
    agents = Catalog({"a": Agent(ECHO)})
    with pytest.raises(BadWorkspace):
        agents.workspace_for(str(tmp_path), agents.named("a"))


def test_an_agent_s_own_workspace_is_not_for_one_that_only_has_its_name(rooted: Catalog, tmp_path: Path) -> None:
    assert rooted.workspace_for(None, rooted.named("a")) == str((tmp_path / "private").resolve())
    assert rooted.workspace_for(None, rooted.received(sent(ECHO, name="a"))) is None


# Made in code.


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"agents": {}}, "no agents"),
        ({"agents": {"a b": Agent(ECHO)}}, "a b"),
        ({"agents": {"a": Agent(ECHO)}, "default": "b"}, "'b'"),
        ({"agents": {"a": Agent(ECHO)}, "allow_models": ["*"]}, "'*'"),
        ({"agents": {"a": Agent(ECHO)}, "roots": ["/no/such/folder"]}, "/no/such/folder"),
        ({"agents": {"a": Agent(ECHO)}, "workspaces": {"a": "/no/such/folder"}}, "agents.a.workspace"),
    ],
    ids=lambda one: str(one)[:50],
)
def test_what_is_wrong_with_agents_is_said_when_they_are_made(arguments: Any, word: str) -> None:
    with pytest.raises(ForkpointError) as error:
        Catalog(**arguments)
    assert word in str(error.value)


def test_skills_and_a_condenser_stand_in_the_file_and_all_that_is_wrong_is_said(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "sql.md").write_text('---\nfiles: ["*.sql"]\n---\nMind the indexes.')
    file = tmp_path / "agents.toml"
    file.write_text(
        """
        [agents.one]
        model = "scripted/echo"
        skills_folder = "skills"
        condenser = { tokens = 1000, llm = { model = "scripted/small", temperature = 0.5 } }
        [[agents.one.skills]]
        name = "deploy"
        content = "Tag it first."
        words = ["deploy"]
        [agents.two]
        model = "scripted/echo"
        condenser = { kind = "window", events = 500 }
        """
    )
    agents = Catalog.from_file(file)
    one = agents.named("one")
    assert [(skill.name, skill.words, skill.files) for skill in one.skills] == [
        ("deploy", ("deploy",), ()),
        ("sql", (), ("*.sql",)),
    ]
    assert one.condenser == Condenser(tokens=1000, llm=LLM("scripted/small", temperature=0.5))
    assert agents.named("two").condenser == Window(events=500)
    (tmp_path / "skills" / "bad.md").write_text("---\nname: [x\n---\n")
    file.write_text(
        """
        [agents.a]
        model = "scripted/echo"
        skills_folder = "skills"
        [agents.b]
        model = "scripted/echo"
        skills_folder = "nowhere"
        [agents.c]
        model = "scripted/echo"
        skills = [{ name = "a b", content = "x" }]
        [agents.d]
        model = "scripted/echo"
        condenser = { kind = "import", path = "os:system" }
        [agents.e]
        model = "scripted/echo"
        condenser = { keep = 2 }
        [agents.f]
        model = "scripted/echo"
        condenser = { llm = { model = "scripted/echo", api_key = "sk-never-to-be-seen-4711" } }
        """
    )
    said = wrong(file)
    for where in (
        "agents.a.skills_folder",
        "agents.b.skills_folder: there is no folder",
        "agents.c.skills",
        "agents.d.condenser",
        "agents.e.condenser: what its condenser keeps must be a share",
        "agents.f.condenser.llm.api_key",
    ):
        assert where in said
    assert SECRET not in said


def test_a_client_sends_skills_and_a_condenser_but_nothing_that_is_imported_or_asked_with_our_keys(
    agents: Catalog,
) -> None:
    skills = [{"name": "deploy", "content": "Tag it first.", "words": ["deploy"]}]
    found = agents.received(sent("openai/big", skills=skills, condenser={"kind": "window", "events": 9}))
    assert isinstance(found, Agent)
    assert (found.skills, found.condenser) == ((Skill("deploy", "Tag it first.", words=("deploy",)),), Window(events=9))
    for condenser in ({"kind": "import", "name": "x", "path": "os:system"}, {"kind": "condenser", "llm": "openai/big"}):
        assert "its condenser" in refused(agents, sent("openai/big", condenser=condenser))
    assert "deploy" in refused(agents, sent("openai/big", skills=skills * 2))
