"""A stored agent comes back as it was, or everything that is missing or changed is listed, and nothing runs."""

import functools
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from tests.agent import importable
from tests.agent.importable import Address, Desk, Household, Options, Person, Tree

from forkpoint.agent import Agent, Limits, Tool, tool
from forkpoint.agent.arguments import json_schema
from forkpoint.agent.output import OutputSchema
from forkpoint.agent.stored.document import bind, portable_document
from forkpoint.errors import BadAgent, CannotResume
from forkpoint.events import ToolCall
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.manifest import ToolSchema

ECHO = "scripted/echo"
SECRET = "sk-never-to-be-seen-4711"


def local(a: int) -> int:
    return a


def missing_from(text: str, given: Agent | None = None) -> str:
    with pytest.raises(CannotResume) as refused:
        bind(text, given)
    return refused.value.missing


def document(**fields: Any) -> str:
    return msgspec.json.encode({"llm": {"model": ECHO}} | fields).decode()


# By import path.


def test_an_agent_comes_back_from_its_document_as_it_was() -> None:
    agent = Agent(
        LLM("openai/gpt-5", temperature=0.5, api_key_env="SOME_KEY"),
        instructions="Be\nbrief. é",
        tools=[importable.decorated, importable.with_settings, importable.with_context],
        output=Person,
        limits=Limits(5, 6, 7.5, 8.5),
        approval=importable.asks,
        name="somebody",
    )
    again = bind(agent.to_json())
    assert bind(agent.to_json().encode()).to_json() == again.to_json() == agent.to_json()
    assert again.manifest.hash == agent.manifest.hash
    assert (again.llm, again.limits, again.name) == (agent.llm, agent.limits, agent.name)
    assert again.output is Person
    assert again.approval is importable.asks
    assert again.tool("decorated") is importable.decorated
    assert again.tool("delete-all") is importable.with_settings


@pytest.mark.parametrize("approval", ["never", "always", "risky"])
def test_a_policy_that_is_a_word_comes_back(approval: Any) -> None:
    assert bind(Agent(ECHO, approval=approval).to_json()).approval == approval


@pytest.mark.parametrize(
    "function", [importable.plain, Desk.lamp, Desk.kind, importable.with_context], ids=lambda one: one.__name__
)
def test_a_plain_function_is_made_a_tool_again(function: Any) -> None:
    agent = Agent(ECHO, tools=[function])
    again = bind(agent.to_json())
    assert again.tools[0].function == function
    assert again.manifest.hash == agent.manifest.hash


@pytest.mark.parametrize("output", [Person, Address, Household, Options, Tree], ids=lambda output: output.__name__)
def test_an_output_type_comes_back(output: Any) -> None:
    assert bind(Agent(ECHO, output=output).to_json()).output is output


SETTINGS: list[dict[str, Any]] = [
    {"name": "other"},
    {"risky": True},
    {"timeout": 3},
    {"output_limit": 9},
    {"repeatable": True},
    {"description": "Other words."},
    {"strict": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_that_stand_nowhere_at_the_path_are_not_lost_in_silence(settings: dict[str, Any]) -> None:
    """`tool(risky=True)(function)`: at the path stands the plain function, which is not risky."""
    agent = Agent(ECHO, tools=[tool(**settings)(importable.plain)], approval="risky")
    try:
        again = bind(agent.to_json())
    except CannotResume:
        return
    one, other = agent.tools[0], again.tools[0]
    for name in ("schema", "timeout", "output_limit", "repeatable", "risky"):
        assert getattr(other, name) == getattr(one, name), f"{name} is not what it was"
    assert again.manifest.hash == agent.manifest.hash


def test_a_risky_tool_still_asks_after_it_was_stored() -> None:
    agent = Agent(ECHO, tools=[tool(risky=True)(importable.plain)], approval="risky")
    call = ToolCall("call-1", "plain", "{}")
    assert agent.asks_before(call)
    try:
        again = bind(agent.to_json())
    except CannotResume:
        return
    assert again.asks_before(call), "a stored agent weakened its own safety"


def test_two_tools_of_one_function_come_back_as_two_or_are_listed() -> None:
    agent = Agent(ECHO, tools=[tool(name=name)(importable.plain) for name in ("one", "two")])
    try:
        again = bind(agent.to_json())
    except CannotResume:
        return
    assert [made.name for made in again.tools] == ["one", "two"]


def test_another_process_binds_what_it_can_import_and_lists_what_it_cannot(tmp_path: Path) -> None:
    good = Agent(ECHO, tools=[importable.decorated, importable.plain], output=Tree, approval=importable.asks)
    document_of_main = document(tools=[{"name": "work", "path": "__main__:work", "digest": "0"}])
    program = (
        "import sys\n"
        "from forkpoint.agent.stored.document import bind\n"
        "from forkpoint.errors import CannotResume\n"
        "good = bind(sys.argv[1])\n"
        "print(good.manifest.hash)\n"
        "try:\n"
        "    bind(sys.argv[2])\n"
        "except CannotResume as refused:\n"
        "    print(refused.missing)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, good.to_json(), document_of_main],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == good.manifest.hash
    assert "work" in second


# From the agent given.


def test_functions_within_functions_come_from_the_agent_given() -> None:
    def within(a: int) -> int:
        return a

    def policy(call: ToolCall, tool: Tool) -> bool:
        return True

    agent = Agent(ECHO, tools=[within, local], approval=policy, instructions="stored")
    assert missing_from(agent.to_json()).count("no import path") == 2
    given = Agent("openai/other", tools=[within, importable.plain], approval=policy, instructions="given")
    again = bind(agent.to_json(), given)
    assert again.tool("within") is given.tool("within")
    assert again.tool("local") is not None
    assert again.tool("plain") is None, "what was not stored is not added"
    assert again.approval is policy
    assert (again.llm, again.instructions) == (agent.llm, "stored")


def test_the_given_agent_s_tool_comes_before_the_imported_one() -> None:
    mine = tool(name="plain", timeout=5, description="Adds them up.")(importable.plain)
    agent = Agent(ECHO, tools=[importable.plain])
    assert bind(agent.to_json(), Agent(ECHO, tools=[mine])).tools == (mine,)


def test_a_given_output_type_that_fits_is_taken() -> None:
    def make() -> type:
        return msgspec.defstruct("Local", [("a", int)], module="nowhere_at_all")

    agent = Agent(ECHO, output=make())
    other = make()
    assert bind(agent.to_json(), Agent(ECHO, output=other)).output is other
    assert "Local" in missing_from(agent.to_json())
    changed = msgspec.defstruct("Local", [("a", str)], module="nowhere_at_all")
    assert "Local" in missing_from(agent.to_json(), Agent(ECHO, output=changed))


def test_a_given_policy_that_is_a_word_does_not_replace_a_function() -> None:
    def policy(call: ToolCall, tool: Tool) -> bool:
        return True

    text = Agent(ECHO, approval=policy).to_json()
    assert "policy" in missing_from(text, Agent(ECHO, approval="never"))


def test_a_given_function_does_not_replace_a_policy_that_is_a_word() -> None:
    given = Agent(ECHO, approval=lambda call, tool: False)
    assert bind(Agent(ECHO, approval="always").to_json(), given).approval == "always"


# Several policies.


def policy(word: str, name: str = "policy") -> Any:
    def asks(call: ToolCall, tool: Tool) -> str:
        return word

    asks.__name__ = name
    return asks


def test_several_policies_come_back_in_their_order() -> None:
    agent = Agent(ECHO, approval=("risky", importable.asks))
    assert json.loads(agent.to_json())["approval"] == ["risky", {"name": "asks", "path": "tests.agent.importable:asks"}]
    again = bind(agent.to_json())
    assert (again.approval, again.to_json()) == (("risky", importable.asks), agent.to_json())


def test_each_of_several_policies_comes_from_the_agent_given_by_its_path_or_its_name() -> None:
    one, two, three = policy("1", "one"), policy("2", "two"), policy("3", "three")
    text = Agent(ECHO, approval=(one, importable.asks, two)).to_json()
    given = Agent(ECHO, approval=(two, three, importable.asks, one))
    assert bind(text, given).approval == (one, importable.asks, two)
    assert missing_from(text, Agent(ECHO, approval=(three, one))) == "approval policy two: it has no import path"
    assert missing_from(text).count("no import path") == 2


def test_two_policies_of_one_name_are_never_taken_for_one() -> None:
    one, two = policy("1"), policy("2")
    text = Agent(ECHO, approval=(one, two)).to_json()
    assert bind(text, Agent(ECHO, approval=(one, two))).approval == (one, two)
    assert missing_from(text, Agent(ECHO, approval=one)) == "approval policy policy: it has no import path"
    stolen = policy("1", "asks")
    text = Agent(ECHO, approval=(stolen, importable.asks)).to_json()
    assert missing_from(text, Agent(ECHO, approval=importable.asks)) == "approval policy asks: it has no import path"


def test_only_policies_that_are_known_to_be_the_same_are_taken_if_they_must_be() -> None:
    one = policy("1")
    given = Agent(ECHO, approval=(one, importable.asks))
    assert bind(Agent(ECHO, approval=("risky", importable.asks)).to_json(), given, same=True).approval == (
        "risky",
        importable.asks,
    )
    with pytest.raises(CannotResume, match="no import path"):
        bind(given.to_json(), given, same=True)


def test_of_several_policies_one_that_is_gone_on_without_asks_before_every_call() -> None:
    text = Agent(ECHO, approval=("risky", policy("1"), importable.asks)).to_json()
    assert bind(text, without=lambda item: item.kind == "approval").approval == "always"


def test_several_policies_go_to_a_server_unless_one_is_a_function() -> None:
    with pytest.raises(BadAgent, match="approval"):
        portable_document(Agent(ECHO, approval=("risky", importable.asks)))


# Outputs that are only a schema.

FORM = OutputSchema("Form", '{ "type": "object",  "required": ["a"] }')


def test_an_output_schema_comes_back_with_the_very_text_of_its_schema() -> None:
    agent = Agent(ECHO, output=FORM)
    again = bind(agent.to_json())
    assert again.output == FORM
    assert again.manifest.hash == agent.manifest.hash
    stored = msgspec.json.decode(agent.to_json())["output"]
    assert stored.keys() == {"name", "digest", "schema"}
    assert stored["schema"] == {"type": "object", "required": ["a"]}


def test_the_type_of_the_agent_given_is_taken_if_its_schema_is_the_one_stored() -> None:
    text = Agent(ECHO, output=OutputSchema("Person", json_schema(Person))).to_json()
    assert bind(text, Agent(ECHO, output=Person)).output is Person
    assert bind(text, Agent(ECHO, output=Person), same=True).output is Person
    assert bind(text, Agent(ECHO, output=Address)).output == OutputSchema("Person", json_schema(Person))
    assert bind(text, Agent(ECHO)).output == OutputSchema("Person", json_schema(Person))


def test_a_schema_that_is_given_serves_for_the_type_that_was_stored() -> None:
    schema = OutputSchema("Person", json_schema(Person))
    assert bind(Agent(ECHO, output=Person).to_json(), Agent(ECHO, output=schema)).output == schema


def test_a_schema_written_by_hand_needs_no_digest() -> None:
    assert bind(document(output={"name": "Form", "schema": {"type": "object"}})).output.name == "Form"


@pytest.mark.parametrize(
    "output",
    [
        {"name": "Form", "schema": {"type": "object"}, "digest": "0"},
        {"name": "Form", "schema": {"type": "nonsense"}},
        {"name": "Form", "schema": {"$ref": "http://127.0.0.1:9/x"}},
        {"name": "Form", "schema": "{}"},
        {"name": "Form", "schema": None},
    ],
    ids=str,
)
def test_a_stored_schema_that_is_not_as_it_was_is_listed(output: Any) -> None:
    assert "Form" in missing_from(document(output=output))


# As data alone, for a server.


def test_an_agent_for_a_server_has_its_output_by_its_schema_and_no_path() -> None:
    agent = Agent(
        LLM("openai/gpt-5", temperature=0.5),
        instructions="Be brief.",
        output=Person,
        limits=Limits(5),
        approval="risky",
        name="somebody",
    )
    text = portable_document(agent)
    assert "importable" not in text
    again = bind(text)
    assert again.output == OutputSchema("Person", json_schema(Person))
    assert again.manifest.hash == agent.manifest.hash
    assert (again.llm, again.limits, again.approval, again.name) == (agent.llm, agent.limits, "risky", "somebody")
    assert bind(text, agent).output is Person


@pytest.mark.parametrize("output", [None, FORM, dict[str, int], Tree], ids=str)
def test_any_output_goes_to_a_server(output: Any) -> None:
    agent = Agent(ECHO, output=output)
    assert bind(portable_document(agent)).manifest.hash == agent.manifest.hash


def test_an_agent_that_was_bound_goes_to_a_server_as_data_too() -> None:
    assert "path" not in portable_document(bind(Agent(ECHO, output=Person).to_json()))


@pytest.mark.parametrize(
    ("agent", "word"),
    [
        (Agent(ECHO, tools=[importable.plain]), "plain"),
        (Agent(ECHO, approval=importable.asks), "approval"),
        (Agent(LLM("openai/gpt-5", api_key=SECRET)), "literal key"),
    ],
    ids=["tools", "approval", "key"],
)
def test_what_only_runs_here_is_not_sent_to_a_server(agent: Agent, word: str) -> None:
    with pytest.raises(BadAgent, match=word) as refused:
        portable_document(agent)
    assert "server" in refused.value.why
    assert SECRET not in str(refused.value)


# Keys.


def test_a_literal_key_comes_from_the_agent_given_alone() -> None:
    agent = Agent(LLM("openai/gpt-5", api_key=SECRET))
    assert bind(agent.to_json()).llm.api_key is None
    assert bind(agent.to_json(), agent).llm.key() == Key(SECRET)


def test_a_literal_key_of_another_model_is_not_taken() -> None:
    text = Agent("openai/gpt-5").to_json()
    given = Agent(LLM("anthropic/claude", api_key=SECRET))
    assert bind(text, given).llm.api_key is None


@pytest.mark.parametrize("base_url", ["https://elsewhere.example/v1", "http://localhost:8000/v1"])
def test_a_literal_key_is_not_shown_to_another_server(base_url: str) -> None:
    text = Agent(LLM("openai/gpt-5", base_url=base_url)).to_json()
    given = Agent(LLM("openai/gpt-5", api_key=SECRET))
    assert bind(text, given).llm.key() is None, f"the key of one company would be sent to {base_url}"


def test_a_stored_key_s_variable_and_a_given_literal_key_do_not_collide() -> None:
    text = Agent(LLM("openai/gpt-5", api_key_env="SOME_KEY")).to_json()
    again = bind(text, Agent(LLM("openai/gpt-5", api_key=SECRET)))
    assert again.llm.model == "openai/gpt-5"


# What is missing or has changed.


def test_everything_that_is_missing_is_listed_at_once() -> None:
    text = document(
        tools=[
            {"name": "one", "path": "no_such_module:one", "digest": "1"},
            {"name": "two", "path": "tests.agent.importable:no_such_name", "digest": "2"},
            {"name": "three", "digest": "3"},
            {"name": "four", "path": "tests.agent.importable:plain", "digest": "4"},
            {"name": "five", "path": "tests.agent.importable:NUMBER", "digest": "5"},
            {"name": "six", "path": "", "digest": "6"},
            {"name": "seven", "path": ":::", "digest": "7"},
            {"name": "eight", "path": ".relative:x", "digest": "8"},
            {"name": "nine", "path": "builtins:max", "digest": "9"},
            {"name": "ten", "path": "tests.agent.importable:Desk.drawer", "digest": "10"},
        ],
        output={"name": "Form", "path": "no_such_module:Form", "digest": "0"},
        approval={"name": "decide", "path": "no_such_module:decide"},
    )
    said = missing_from(text)
    names = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "Form", "decide"]
    assert [name for name in names if name not in said] == []


def test_a_tool_whose_arguments_have_changed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Agent(ECHO, tools=[importable.plain, importable.decorated]).to_json()

    def plain(a: int, b: str = "other") -> None: ...

    monkeypatch.setattr(importable, "plain", plain)
    said = missing_from(text)
    assert "plain" in said
    assert "changed" in said
    assert "decorated" not in said
    given = Agent(ECHO, tools=[tool(name="decorated")(lambda a: a)])
    assert "decorated" in missing_from(text, given), "the given agent's tool takes other arguments"


def test_a_tool_that_was_renamed_is_listed_and_not_bound_by_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Agent(ECHO, tools=[importable.decorated]).to_json()
    renamed = tool(name="renamed")(importable.decorated.function)
    monkeypatch.setattr(importable, "decorated", renamed)
    assert "decorated" in missing_from(text)


@pytest.mark.parametrize("name", ["NOTHING", "WORD", "NUMBER"])
def test_a_tool_whose_path_holds_something_else_by_now_is_listed(name: str) -> None:
    text = document(tools=[{"name": "work", "path": f"tests.agent.importable:{name}", "digest": "1"}])
    assert "work" in missing_from(text)


@pytest.mark.parametrize("name", ["NOTHING", "WORD", "NUMBER", "plain", "Desk"])
def test_an_output_whose_path_holds_something_else_by_now_is_listed(name: str) -> None:
    text = document(output={"name": "Form", "path": f"tests.agent.importable:{name}", "digest": "1"})
    assert "Form" in missing_from(text)


@pytest.mark.parametrize("name", ["NOTHING", "WORD", "NUMBER"])
def test_a_policy_whose_path_holds_something_else_by_now_is_listed(name: str) -> None:
    text = document(approval={"name": "decide", "path": f"tests.agent.importable:{name}"})
    assert "decide" in missing_from(text)


def test_an_output_whose_fields_have_changed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Agent(ECHO, output=Person).to_json()
    monkeypatch.setattr(importable, "Person", msgspec.defstruct("Person", [("name", int)]))
    said = missing_from(text)
    assert "Person" in said
    assert "changed" in said


def test_a_method_of_an_object_is_not_bound_without_its_object() -> None:
    text = Agent(ECHO, tools=[Desk("table").drawer]).to_json()
    assert "drawer" in missing_from(text)
    agent = Agent(ECHO, tools=[Desk("table").drawer])
    assert bind(text, agent).tools == agent.tools


def test_a_policy_that_is_a_method_of_an_object_is_not_bound_without_its_object() -> None:
    desk = Desk()
    agent = Agent(ECHO, tools=[importable.plain], approval=desk.asks)
    assert "asks" in missing_from(agent.to_json())
    assert bind(agent.to_json(), agent).asks_before(ToolCall("c", "plain", "{}"))


def test_a_policy_that_is_an_object_or_a_partial_function_needs_the_agent_given() -> None:
    class Policy:
        def __call__(self, call: ToolCall, tool: Tool) -> bool:
            return True

    for policy in (Policy(), functools.partial(importable.asks)):
        agent = Agent(ECHO, approval=policy)
        assert "no import path" in missing_from(agent.to_json())
        assert bind(agent.to_json(), agent).approval is policy


def test_an_output_that_has_no_name_of_its_own_says_so_and_comes_from_the_agent_given() -> None:
    output = Annotated[dict[str, int], msgspec.Meta(min_length=1)]
    agent = Agent(ECHO, output=output)
    said = missing_from(agent.to_json())
    assert "changed" not in said, "nothing has changed; it cannot be imported"
    assert bind(agent.to_json(), agent).output == output


def test_what_stands_in_the_main_module_is_found_there_in_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")

    def work(a: int) -> int:
        return a

    work.__module__, work.__qualname__ = "__main__", "work"
    main.work = work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    text = Agent(ECHO, tools=[work]).to_json()
    assert bind(text).tools[0].function is work
    del main.work
    assert "work" in missing_from(text)


# Modules that misbehave.


@pytest.mark.parametrize(
    "body",
    ["raise ValueError('too blue')", "1/0", "import no_such_module_at_all", "def", "raise SystemExit('usage')"],
    ids=["raises", "divides", "imports", "syntax", "exits"],
)
def test_a_module_that_cannot_be_imported_is_listed_with_the_reason(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{len(body)}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    text = document(
        tools=[{"name": "work", "path": f"{name}:work", "digest": "1"}],
        output={"name": "Form", "path": f"{name}:Form", "digest": "1"},
        approval={"name": "decide", "path": f"{name}:decide"},
    )
    try:
        said = missing_from(text)
    except SystemExit:
        pytest.fail("a module that exits while it is imported would end the process")
    for what in ("work", "Form", "decide", name):
        assert what in said


def test_an_attribute_that_misbehaves_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("not today")

    monkeypatch.setitem(sys.modules, "odd_module", Odd("odd_module"))
    assert "not today" in missing_from(document(tools=[{"name": "work", "path": "odd_module:work", "digest": "1"}]))


# Tools of the client.

SCHEMA = '{ "type":"object",\n "properties": {"z": {"const": 1.50}, "é": {"const": "\\u00e9"}} }'
BROWSE = ToolSchema("browse", "Opens a page. é", SCHEMA, strict=True)


@pytest.mark.parametrize("written", [Agent.to_json, portable_document], ids=["stored", "portable"])
def test_a_client_s_tools_come_back_with_the_very_text_of_their_schemas(written: Any) -> None:
    agent = Agent(ECHO, client_tools=[BROWSE, ToolSchema("ask")], unattended="run")
    text = written(agent)
    again = bind(text)
    assert again == agent
    assert again.manifest.hash == agent.manifest.hash
    assert again.client_tools[1].parameters == SCHEMA
    assert SCHEMA in text
    assert json.loads(text)["client_tools"][1] == {
        "name": "browse",
        "description": "Opens a page. é",
        "parameters": json.loads(SCHEMA),
        "strict": True,
    }
    assert written(again) == text


def test_white_space_around_a_schema_does_not_make_another_manifest_of_it() -> None:
    agent = Agent(ECHO, client_tools=[ToolSchema("ask", parameters='\n {"type":"object"}\t ')])
    assert bind(agent.to_json()).manifest.hash == agent.manifest.hash


def test_an_agent_without_them_is_stored_as_it_always_was() -> None:
    word: Any = "DENY".lower()  # equal to the default, and another object
    stored = '{"llm":{"model":"scripted/echo"},"limits":{},"name":"n"}'
    assert Agent(ECHO, name="n").to_json() == Agent(ECHO, name="n", unattended=word).to_json() == stored


def test_a_client_s_tool_that_says_no_more_than_its_name_takes_no_arguments() -> None:
    assert bind(document(client_tools=[{"name": "ask"}])).client_tools == (ToolSchema("ask"),)


def test_the_tools_of_the_client_are_those_of_the_document_whatever_agent_is_given() -> None:
    stored = Agent(ECHO, tools=[importable.plain], client_tools=[BROWSE])
    given = Agent(ECHO, tools=[importable.plain], client_tools=[ToolSchema("other")], unattended="run")
    again = bind(stored.to_json(), given)
    assert (again.client_tools, again.unattended) == ((BROWSE,), "deny")


# Documents.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        "\ud800",
        b"\xff",
        '{"llm":3}',
        '{"llm":{"model":"gpt-5"}}',
        '{"llm":{"model":"openai/gpt-5","top_k":1}}',
        document(limits={"steps": 0}),
        document(limits={"steps": "x"}),
        document(limits={"hours": 1}),
        document(approval="sometimes"),
        document(approval=None),
        document(tools=[{}]),
        document(tools=[3]),
        document(output="Person"),
        document(name=3),
        document(instructions=None),
        document(client_tools=3),
        document(client_tools=[3]),
        document(client_tools=[{}]),
        document(client_tools=[{"name": "not a name"}]),
        document(client_tools=[{"name": "ask", "parameters": []}]),
        document(client_tools=[{"name": "ask", "parameters": None}]),
        document(client_tools=[{"name": "ask", "parameters": '{"type":"object"}'}]),
        document(client_tools=[{"name": "ask", "strict": "very"}]),
        document(client_tools=[{"name": "ask"}, {"name": "ask"}]),
        document(unattended="ask"),
        document(unattended=None),
        "[" * 100_000,
        '{"llm":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=lambda text: ascii(text[:60]),
)
def test_a_document_that_is_no_agent_is_refused_in_our_words(text: str | bytes) -> None:
    with pytest.raises(CannotResume):
        bind(text)


def test_a_document_that_names_a_tool_twice_is_refused_in_our_words() -> None:
    reference = {"name": "plain", "path": "tests.agent.importable:plain", "digest": tool(importable.plain).digest}
    with pytest.raises(CannotResume):
        bind(document(tools=[reference, reference]))


def test_nothing_of_an_agent_runs_while_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def work(a: int) -> None:
        ran.append("tool")

    def decide(call: ToolCall, tool: Tool) -> bool:
        ran.append("policy")
        return True

    for function in (work, decide):
        function.__module__, function.__qualname__ = "tests.agent.importable", function.__name__
        monkeypatch.setattr(importable, function.__name__, function, raising=False)
    agent = Agent(ECHO, tools=[work], approval=decide)
    bind(agent.to_json())
    bind(agent.to_json(), agent)
    assert ran == []
