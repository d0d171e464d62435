"""Secrets in conversations: a tool has the value, and nothing else that is stored, sent, shown or logged has it."""

import base64
import json
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.agent.mcp.calling import odd
from tests.conversation.support.agents import Watcher, call, results, scripted
from tests.conversation.support.homes import Home, RemoteHome, home_of
from tests.conversation.support.team import lead, obedient, orders, spawn, wait

from forkpoint import Agent, AsyncConversation, Hook, Role, Secret, SubAgents, ToolContext, tool
from forkpoint.agent.builtin import shell
from forkpoint.errors import BadAgent, BadSetting, TurnFailed
from forkpoint.events import HookRun, Text, ToolResult
from forkpoint.server.agents.catalog import Catalog
from forkpoint.updates import CallProgress

pytestmark = pytest.mark.anyio

VALUE = 'gh/p+7"Zü-tail=90'
VARIABLE = "CI_API_TOKEN"
TOKEN = {"API_TOKEN": Secret(env=VARIABLE, shell=True)}
FORMS = {
    VALUE,
    json.dumps(VALUE)[1:-1],
    json.dumps(VALUE, ensure_ascii=False)[1:-1],
    quote(VALUE, safe=""),
    VALUE.encode().hex(),
    base64.b64encode(VALUE.encode()).decode(),
}


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, VALUE)


@tool(secrets=["API_TOKEN"])
def publish(ctx: ToolContext, how: str = "say") -> str:
    """Does with a secret whatever a tool should not do."""
    value = ctx.secrets["API_TOKEN"]
    match how:
        case "say":
            return "; ".join(sorted(FORMS)) if value == VALUE else f"another: {value}"
        case "raise":
            raise ValueError(f"401 for {value}")
        case "tell":
            for n in range(0, len(value), 3):
                ctx.progress(value[n : n + 3])
            ctx.progress("g")  # which may be the beginning of it
            return "told"
        case "keep":
            ctx.state["token"] = {"it": [value], value: 1}
            return "kept"
        case _:
            return "x" * 74_995 + value + "y" * 40_000  # a cut goes through the middle of it


@tool(risky=True, secrets=["API_TOKEN"])
def deploy(ctx: ToolContext) -> str:
    """Deploys."""
    return f"deployed with {ctx.secrets['API_TOKEN']}"


@tool
async def delegate(ctx: ToolContext) -> str:
    """Tells a sub-agent what it has read somewhere."""
    made = await ctx.agents.spawn(f"use {VALUE}", nickname="first")
    (done,) = await ctx.agents.wait(made.nickname)
    return str(done.answer)


@tool
def read_elsewhere() -> str:
    """Finds the value without being given it."""
    return f"{VARIABLE}={VALUE}"


def is_clean(content: bytes | str) -> bool:
    data = content if isinstance(content, bytes) else content.encode(errors="surrogateescape")
    return not any(form.encode() in data for form in FORMS)


def files_below(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def texts(found: Iterable[ToolResult]) -> list[str]:
    return ["".join(part.text for part in one.parts if isinstance(part, Text)) for one in found]


async def everything(conversation: AsyncConversation) -> str:
    """All that callers can read of a conversation."""
    found = (
        await conversation.info(),
        await conversation.events(),
        await conversation.turns(),
        await conversation.agent_state(),
        await conversation.tree(),
    )
    return repr(found)


async def http_answers(url: str, id: str) -> bytes:
    """All that a server says of a conversation."""
    async with httpx2.AsyncClient(base_url=url) as client:
        names = ("", "/events", "/turns", "/state", "/tree", "/stats", "/agents", "/request")
        said = [await client.get(f"/api/conversations/{id}{name}") for name in names]
        assert [one.status_code for one in said] == [200] * len(names)
        return b"\n".join(one.content for one in said)


async def test_a_value_is_in_no_file_no_log_no_span_no_prompt_and_no_answer(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    caplog.set_level(logging.DEBUG)
    prompts: list[str] = []

    def model(heard: Any) -> Any:
        prompts.append(json.dumps(heard.body, ensure_ascii=False))
        return obedient(heard)

    folder = tmp_path / "work"
    folder.mkdir()
    hook = [sys.executable, "-c", f"import os; print(os.environ['{VARIABLE}']); print('seen')"]
    agent = Agent(
        scripted(model),
        tools=[publish, shell, read_elsewhere, delegate],
        secrets=TOKEN,
        sub_agents=True,
        hooks=[Hook("after_tool", command=hook, tools="read_elsewhere"), Hook("turn_start", command=hook)],
    )
    watcher = Watcher()
    code = "import os; v = os.environ['API_TOKEN']; [print(n, v, v.encode().hex()) for n in range(4000)]"
    much = f'{sys.executable} -c "{code}"'
    asked = [
        [call("publish", how, how=how) for how in ("say", "raise", "tell", "keep", "cut")],
        [
            call(
                "shell", "short", command='echo "$API_TOKEN" >&2; export COPY="$API_TOKEN" FINE=1; echo "${#API_TOKEN}"'
            )
        ],
        [call("shell", "long", command=much), call("read_elsewhere", "found"), call("delegate", "sent")],
    ]
    async with AsyncConversation(
        home.agent(agent), store=home.store, workspace=folder, callbacks=[watcher]
    ) as conversation:
        turn = await conversation.run(orders(*asked))
        await conversation.run("and?")
        fork = await conversation.fork()
        forked = await fork.run(orders([call("publish")], say="forked"))
        said = {one.call_id: texts([one])[0] for one in results(turn.events)}
        assert said["say"] == "; ".join(["***"] * len(FORMS)), "the tool had it, and each form was found"
        assert said["raise"] == "ValueError: 401 for ***"
        assert (await conversation.agent_state())["token"] == {"it": ["***"], "***": 1}
        assert "x***yy\n[..." in said["cut"]
        assert said["short"].startswith(f"***\n{len(VALUE)}\n"), "the command had it"
        assert (await conversation.agent_state())["shell"]["env"] == {"FINE": "1"}
        assert "All of it is in .forkpoint/output/" in said["long"]
        assert said["found"] == f"{VARIABLE}=***", "found by a tool that was not given it"
        assert said["sent"] == "Did use ***"
        assert texts(results(forked.events)) == [said["say"]]
        told = "".join(one.text for one in watcher.of(CallProgress))
        assert "***g" in told, "what was held back is told at the end"
        runs = [event.body for event in turn.events if isinstance(event.body, HookRun)]
        assert {run.output for run in runs} == {"***\nseen\n"}
        family = [conversation, fork]
        family += [
            await AsyncConversation.open(one.conversation, store=home.store) for one in await conversation.list_agents()
        ]
        assert len(family) == 3
        assert all(map(is_clean, [await everything(one) for one in family]))
        if isinstance(home, RemoteHome):
            assert all(map(is_clean, [await http_answers(home.store, one.id) for one in family]))
    assert is_clean(repr(watcher.told))
    assert prompts
    assert all(map(is_clean, prompts))
    files = files_below(tmp_path)
    assert any(file.name.startswith("output-") for file in files)
    assert b"***" in b"".join(content for file, content in files.items() if file.name.startswith(home.file.name))
    assert [file for file, content in files.items() if not is_clean(content)] == []
    assert spans.get_finished_spans()
    assert all(is_clean(span.to_json()) for span in spans.get_finished_spans())
    assert is_clean(caplog.text)


async def test_where_a_variable_is_missing_the_call_fails_and_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = lead(tools=[publish], secrets=TOKEN)
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        await conversation.run(orders([call("publish")], say="fine"))
    monkeypatch.delenv(VARIABLE)
    async with await AsyncConversation.open(
        conversation.id, agent=home.at_hand(agent) or None, store=home.store
    ) as again:
        (missing,) = results((await again.run(orders([call("publish")], say="missing"))).events)
        assert missing.status == "failed"
        assert "the secret API_TOKEN cannot be had (no_secret)" in texts([missing])[0]
        assert VARIABLE not in texts([missing])[0], "where it is to be had is for the log alone"
        monkeypatch.setenv(VARIABLE, "another-value-since")
        fork = await again.fork()
        assert texts(results((await fork.run(orders([call("publish")], say="there"))).events)) == ["another: ***"]


async def test_a_turn_that_waits_has_the_value_of_the_moment_when_it_goes_on(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = lead(tools=[deploy], secrets=TOKEN, approval="risky")
    async with AsyncConversation(home.agent(agent), store=home.store) as conversation:
        assert (await conversation.run(orders([call("deploy")], say="done"))).outcome == "awaiting_approval"
    monkeypatch.setenv(VARIABLE, "the-value-of-later")
    async with await AsyncConversation.open(
        conversation.id, agent=home.at_hand(agent) or None, store=home.store
    ) as again:
        await again.open_turn()
        turn = await again.approve()
        assert texts(results(turn.events)) == ["deployed with ***"]


async def test_a_sub_agent_has_the_secrets_of_its_own_agent() -> None:
    other = Agent(
        scripted(obedient),
        tools=[publish],
        secrets={"API_TOKEN": Secret(command=(sys.executable, "-c", "print(98765)"))},
    )
    agent = lead(SubAgents(roles={"other": Role(agent=other)}), tools=[publish], secrets=TOKEN)
    ask = orders([call("publish")])
    async with AsyncConversation(agent, store="memory:") as conversation:
        turn = await conversation.run(
            orders([spawn(ask, nickname="same")], [spawn(ask, nickname="other", role="other")], [wait()])
        )
        answers = {one["agent"]: one["answer"] for one in json.loads(texts(results(turn.events))[-1])}
        assert answers == {"same": "; ".join(["***"] * len(FORMS)), "other": "another: ***"}
    with pytest.raises(BadAgent, match="its tool publish needs the secret API_TOKEN"):
        other.replace(secrets={})


@tool
def read_build() -> str:
    """Finds the value of BUILD without being given it."""
    return f"found {os.environ['LEADS_BUILD_CFG']}"


async def test_a_sub_agents_shell_is_not_given_the_variable_behind_its_parents_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEADS_BUILD_CFG", "q7Zr2Xw9Lk4Tb8")  # neither the name nor the value looks like a secret
    reader = Agent(scripted(obedient), tools=[shell, read_build])
    agent = lead(
        SubAgents(roles={"reader": Role(agent=reader)}),
        tools=[shell],
        secrets={"BUILD": Secret(env="LEADS_BUILD_CFG", shell=True)},
    )
    look = call("shell", command='echo "<$LEADS_BUILD_CFG|$BUILD>"')
    asked = orders([spawn(orders([look, call("read_build")]), role="reader")], [wait()], [look])
    async with AsyncConversation(agent, store="memory:", workspace=tmp_path) as conversation:
        turn = await conversation.run(asked)
        _, waited, own = texts(results(turn.events))
        assert own.startswith("<|***>"), "the agent has its secret, under the name of the secret"
        (done,) = json.loads(waited)
        assert done["answer"].startswith("<|>"), "the sub-agent has no secrets, and its command neither"
        assert done["answer"].endswith("found ***"), "the value is masked for the sub-agent, too"


async def test_a_client_sends_no_secrets(tmp_path: Path) -> None:
    agent = Agent("scripted/echo", secrets={"PASSWD": Secret(file="/etc/passwd")})
    nested = Agent("scripted/echo", sub_agents=SubAgents(agents={"inner": agent}))
    with home_of("remote", tmp_path) as home:
        for given in (agent, nested):
            with pytest.raises(BadAgent, match="it has secrets"):
                AsyncConversation(given, store=home.store)
            async with httpx2.AsyncClient(base_url=home.store) as client:
                body = {"agent": json.loads(given.to_json())}
                answer = await client.post("/api/conversations", json=body)
                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_agent")
                assert "it has secrets" in answer.text


def test_a_servers_file_has_secrets_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "agents.toml"
    file.write_text(
        '[agents.a]\nmodel = "scripted/echo"\n[agents.a.secrets]\n'
        'API_TOKEN = { env = "CI_API_TOKEN", shell = true }\nDB = { command = ["pass", "show", "db"] }\n'
    )
    assert Catalog.from_file(file).named("a").secrets == {**TOKEN, "DB": Secret(command=("pass", "show", "db"))}
    monkeypatch.delenv(VARIABLE)
    with pytest.raises((BadAgent, BadSetting)) as refused:
        Catalog.from_file(file)
    assert "agents.a.secrets.API_TOKEN: the environment variable CI_API_TOKEN is not set" in str(refused.value)
    file.write_text(
        f"[agents.a]\nmodel = \"scripted/echo\"\nsecrets = {{ API_TOKEN = '{VALUE}' }}\n"
        '[agents.b]\nmodel = "scripted/echo"\nsecrets = { X = { file = "relative" } }\n'
        '[agents.c]\nmodel = "scripted/echo"\nsecrets = { "a b" = { env = "PATH" } }\n'
        '[agents.d]\nmodel = "scripted/echo"\nsecrets = { X = { file = "/no/such/file" } }\n'
    )
    with pytest.raises((BadAgent, BadSetting)) as refused:
        Catalog.from_file(file)
    assert is_clean(str(refused.value)), "a literal value is not told"
    for why in ("agents.a.secrets: ", "agents.b.secrets: ", "'a b' cannot be the name of a secret"):
        assert why in str(refused.value)


async def test_an_mcp_server_is_given_what_it_names_of_the_agents_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    server = odd(env={"TOKEN": "${API_TOKEN}", "SHORT": "${SHORT_ONE}"})
    monkeypatch.setenv("SHORT_ONE", "us")
    agent = lead(False, mcp=[server], secrets=TOKEN)
    ask = orders([call("odd__environment")])
    async with AsyncConversation(agent, store="memory:") as conversation:
        (result,) = results((await conversation.run(ask)).events)
        env = json.loads(texts([result])[0])["env"]
        assert (env["TOKEN"], env["SHORT"]) == ("***", "us")
        monkeypatch.delenv(VARIABLE)
        (result,) = results((await conversation.run(ask)).events)
        assert result.status == "failed"
        assert "the secret API_TOKEN cannot be had" in texts([result])[0], "its list is kept, so only the call fails"
        fresh = AsyncConversation(agent, store="memory:")
        with pytest.raises(TurnFailed, match="The secret API_TOKEN cannot be had"):
            await fresh.run(ask)
