"""What servers offer, as tools: their names, their arguments, what they answer."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
from tests.agent.journal import Memory, run, says
from tests.agent.mcp.calling import Tools, odd, said
from tests.conversation.support.agents import agent_of, asks, call

from forkpoint.agent import Agent
from forkpoint.agent.loop import Done
from forkpoint.agent.mcp import McpFailed, McpServer, Offered, OfferedTool, connect, is_mcp_tool, mcp_tools, offers
from forkpoint.agent.mcp.tools import SchemaArguments, plain_names
from forkpoint.errors import ExtraMissing
from forkpoint.events import File, Image, Text, ToolResult
from forkpoint.llm.prompt.manifest import PLAIN_NAME
from forkpoint.testing import Reply

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


# Lists.


async def test_tools_are_sorted_by_name_and_begin_with_their_servers() -> None:
    names = [tool.name for tool in await connect(odd("pages"))]
    assert names == sorted(names)
    assert names[0] == "odd__answer"
    assert len(names) > 20, "all pages of a list are read"


async def test_two_servers_may_have_tools_of_one_name() -> None:
    tools = await connect(odd(tools=["echo"]), odd(name="other", tools=["echo"]))
    agent = Agent("scripted/x", tools=tools)
    assert [tool.name for tool in agent.manifest.tools] == ["odd__echo", "other__echo"]


async def test_only_the_tools_that_are_wanted_are_there_and_one_that_is_not_there_is_said() -> None:
    assert [tool.name for tool in await connect(odd(tools=["pid", "echo"]))] == ["odd__echo", "odd__pid"]
    with pytest.raises(McpFailed, match="has no tool 'nothing'; it has answer, ask"):
        await connect(odd(tools=["nothing"]))


async def test_names_are_what_every_provider_takes_and_no_two_are_one() -> None:
    names = [tool.name for tool in await connect(odd("names"))]
    assert len(set(names)) == len(names) == 8, "of two tools with one name there is one"
    assert all(PLAIN_NAME.fullmatch(name) for name in names)
    assert {"odd__a_b", "odd__c_d"} <= set(names), (
        "an own name stays, and one that is nobody else's is as near as can be"
    )


def test_a_name_does_not_depend_on_the_order_of_the_list() -> None:
    names = ["a.b", "a b", "a_b", "c.d", "x" * 80]
    assert plain_names("s", names) == plain_names("s", reversed(names))


@pytest.mark.parametrize(
    ("manner", "why"),
    [
        ("many", "300 tools, and 256"),
        ("large", "'large' that cannot be used"),
        ("endless", "more than 100 pages"),
        (
            "endless words",
            "'wordy' that cannot be used .its description has 5,000,000 characters, and 64,000 can be used",
        ),
    ],
)
async def test_a_list_that_cannot_be_used_is_refused_with_its_reason(manner: str, why: str) -> None:
    with pytest.raises(McpFailed, match=why):
        await connect(odd(manner))


async def test_a_long_description_is_cut() -> None:
    (tool,) = await connect(odd("wordy"))
    assert len(tool.description) < 9_000
    assert tool.description.endswith("[... 42,000 characters left out]")


async def test_what_a_server_says_of_its_tools_is_believed_only_if_it_is_to_be() -> None:
    def shown(tools: tuple[object, ...]) -> dict[str, tuple[bool, bool]]:
        return {tool.name: (tool.risky, tool.repeatable) for tool in tools}  # type: ignore[attr-defined]

    assert set(shown(await connect(odd("hints"))).values()) == {(True, False)}
    assert shown(await connect(odd("hints", hints=True))) == {
        "odd__drop": (True, False),
        "odd__look": (False, True),
        "odd__put": (True, True),
    }


async def test_a_server_that_only_knows_the_newer_protocol_is_understood() -> None:
    tools = await Tools.of(odd("modern", tools=["pid"]))
    assert list(tools.tools) == ["odd__pid"]


# A list that is kept.


async def test_a_list_that_is_kept_needs_no_server_until_a_tool_is_called() -> None:
    server = odd()
    kept = msgspec.json.decode(msgspec.json.encode(Offered(server, (await offers([server]))["odd"])), type=Offered)
    gone = McpServer("odd", command=["/no/such/program"])
    assert kept.tools is not None
    assert await offers([gone], {"odd": kept.tools}) == {"odd": kept.tools}
    tools = Tools(mcp_tools(gone, kept.tools))
    assert "cannot be started" in await tools.failed("pid")
    assert mcp_tools(kept.server, kept.tools)[0].schema == (await connect(server))[0].schema


async def test_a_server_that_says_that_its_list_has_changed_is_asked_again_for_the_next_turn() -> None:
    server = odd()
    before = await offers([server])
    tools = Tools(mcp_tools(server, before["odd"]))
    assert await offers([server], before) == before
    assert await tools.done("change") == "changed"
    after = await offers([server], before)
    assert {offer.tool for offer in after["odd"]} - {offer.tool for offer in before["odd"]} == {"added"}
    one, other = (Agent("scripted/x", tools=mcp_tools(server, found["odd"])).manifest for found in (before, after))
    assert one.hash != other.hash, "the change is one of the manifest, which is recorded"


async def test_a_list_that_became_useless_does_not_replace_the_one_that_is_kept() -> None:
    good = await offers([odd(tools=["pid"])])
    server = odd(tools=["pid", "nothing"])
    assert await offers([server], good) == good


# Arguments.


async def test_arguments_are_checked_by_the_servers_schema_before_it_is_asked() -> None:
    tools = await Tools.of(odd())
    assert await tools.done("echo", '{"x": 1, "ctx": 2, "self": 3}') == '{"ctx": 2, "self": 3, "x": 1}'
    assert await tools.done("echo", "") == "{}"
    assert "'one' is not of type 'integer'" in await tools.failed("echo", '{"x": "one"}')
    assert "is not JSON" in await tools.failed("echo", "{")
    assert "do not fit" in await tools.failed("echo", "[]")


def test_a_schema_that_is_too_much_to_check_by_leaves_the_check_to_the_server() -> None:
    arguments = SchemaArguments("t", '{"type":"object","properties":{"x":{"pattern":"(?=a)b"}}}')
    assert arguments.read('{"x": "y"}') == {"arguments": {"x": "y"}}
    with pytest.raises(Exception, match="not an object"):
        arguments.read("[]")


# Results.


async def test_texts_pictures_and_resources_become_parts_and_what_is_not_what_it_says_becomes_words() -> None:
    parts = (await (await Tools.of(odd())).result("many_parts")).parts
    assert [type(part) for part in parts] == [Text, Image, Text, Text, Text, File, Text]
    told = [part.text for part in parts if isinstance(part, Text)]
    assert told[0] == "first"
    assert told[1].endswith("it is not what it says]")
    assert told[2].endswith("it is not valid base64]")
    assert told[3] == "[resource file:///a/b.txt]\ninside"
    assert told[4].startswith("[resource file:///a/b.bin")
    assert [part.name for part in parts if isinstance(part, File)] == ["b.pdf"]


async def test_structured_content_is_shown_if_nothing_is_said_in_words() -> None:
    tools = await Tools.of(odd())
    assert await tools.done("structured") == '{"answer":42}'
    assert await tools.done("answer") == "answered"


async def test_sounds_and_links_are_told_in_words() -> None:
    tools = await Tools.of(odd())
    assert await tools.done("sound") == "[sound, audio/wav, about 3 bytes: left out, it cannot be shown]"
    assert await tools.done("link") == "[resource file:///a (a): the first]"


async def test_a_tool_that_fails_or_is_refused_is_a_failed_result_with_the_reason() -> None:
    tools = await Tools.of(odd())
    assert await tools.failed("fail") == "McpToolError: the disk is full"
    assert await tools.failed("refuse") == "McpToolError: not today"
    assert await tools.done("echo") == "{}", "the server is still there"


async def test_a_long_answer_is_shown_in_part() -> None:
    shown = await (await Tools.of(odd())).done("flood")
    assert len(shown) < 101_000
    assert "characters left out" in shown


@both
async def test_how_far_a_tool_is_is_told_in_the_callers_own_thread() -> None:
    told: list[str] = []
    assert await (await Tools.of(odd())).done("progress", progress=told.append) == "done"
    assert told == ["1 of 2: step 1", "2 of 2: step 2"]


async def test_a_server_that_asks_for_our_model_is_refused() -> None:
    assert await (await Tools.of(odd())).done("ask") == "refused"


# Surroundings.


async def test_a_process_has_the_basics_and_what_it_names_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody")
    monkeypatch.setenv("MY_TOKEN", "hidden-value")
    server = odd(env={"TOKEN": "${MY_TOKEN}", "LEVEL": "debug"})
    shown = await (await Tools.of(server)).done("environment")
    env = json.loads(shown)["env"]
    assert {"PATH", "LEVEL", "TOKEN"} <= env.keys()
    assert not {"OPENAI_API_KEY", "MY_TOKEN"} & env.keys()
    assert env["TOKEN"] == "***", "it has the secret, and what it says of it is masked"


async def test_each_workspace_has_a_process_of_its_own_if_the_server_works_there(tmp_path: Path) -> None:
    server = odd(cwd="${workspace}")
    tools = Tools(mcp_tools(server, (await offers([server], workspace=tmp_path))["odd"]))
    other = tmp_path / "other"
    other.mkdir()
    shown = [json.loads(await tools.done("environment", workspace=one)) for one in (tmp_path, other)]
    assert [Path(one["cwd"]).name for one in shown] == [tmp_path.name, "other"]
    assert "works in no folder" in await tools.failed("pid")


async def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ExtraMissing, match=r"pip install 'forkpoint\[mcp\]'"):
        await connect(odd())


# In an agent.


@both
async def test_an_agent_calls_the_tools_of_a_server_and_goes_on_when_it_dies() -> None:
    tools = await connect(odd())
    assert all(map(is_mcp_tool, tools))
    replies: list[Reply | str] = [
        asks(call("odd__echo", "a")),
        asks(call("odd__die", "b")),
        asks(call("odd__echo", "c")),
        "done",
    ]
    journal = Memory(says("go"))
    assert await run(agent_of(replies, tools=tools), journal) == Done()
    results = [body for body in journal.bodies if isinstance(body, ToolResult)]
    assert [result.status for result in results] == ["done", "failed", "done"]
    assert "it hurts" in said(results[1])


def test_a_tool_of_a_server_is_stored_by_no_path() -> None:
    (tool,) = mcp_tools(odd(), [OfferedTool("a", "odd__a")])
    assert tool.path is None
    assert tool._is_async
