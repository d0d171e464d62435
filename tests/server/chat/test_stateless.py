"""Requests without a conversation: answered as by any compatible server, kept nowhere, and counted for their tenant."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.chat.chatting import agents_at
from tests.server.chat.lists_of_messages import (
    NAME,
    Chat,
    Message,
    answer,
    assistant,
    chatting,
    function,
    lines,
    look,
    obedient,
    put_together,
    refused,
    result,
    system,
    user,
)
from tests.server.support.serving import served
from tests.server.support.turning import two_tenants

from forkpoint import LLM, Agent, ToolContext, tool
from forkpoint.events import Usage
from forkpoint.llm.model import Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting("stateless") as running:
        yield running


def heard(chat: Chat) -> list[str]:
    assert chat.model is not None
    return chat.model.heard


def spent(chat: Chat, tenant: str = "default") -> tuple[Usage, Usage]:
    """What a tenant has ever spent, and of that beside any conversation."""
    store = chat.server.services.tenants.store.within(tenant)

    async def ask() -> tuple[Usage, Usage]:
        return await store.usage(), await store.spent(None)

    return asyncio.run_coroutine_threadsafe(ask(), chat.server.loop).result(20)


# Nothing is kept.


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_kept_but_what_it_cost(chat: Chat, stream: bool) -> None:
    before, beside = spent(chat)
    names = chat.names()
    response = chat.post([user("one"), assistant("First."), user("two")], stream=stream)
    assert response.status_code == 200
    assert not {name for name in response.headers if name.startswith(("x-conversation", "x-turn"))}
    assert heard(chat) == ["system: Be kind.", "user: one", "assistant: First.", "user: two"]
    assert chat.names() == names
    after, beside_after = spent(chat)
    assert (after.calls - before.calls, beside_after.calls - beside.calls) == (1, 1)
    assert after.input > before.input


def test_a_store_has_no_row_of_it_but_the_cost_and_the_records_of_that(tmp_path: Path) -> None:
    file = tmp_path / "store.db"

    def rows() -> dict[str, int]:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as db:
            tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")]
            found = {name: db.execute(f"select count(*) from {name}").fetchone()[0] for name in tables}
        db.close()
        return found

    with chatting("stateless-rows", store=f"sqlite:///{file}") as chat:
        before = rows()
        chat.say([user('use look {"what":"it"}')])
        chat.stream([user("two")])
        chat.post([user("fail")])
        changed = {name for name, count in rows().items() if count != before.get(name)}
        assert changed == {"ledger", "record", "chain"}


def test_a_failed_request_is_charged_for_what_it_used_and_keeps_nothing(chat: Chat) -> None:
    names = chat.names()
    response = chat.post([user("fail")])
    refused(response, 502, response.json()["error"]["code"])
    assert response.headers["x-should-retry"] == "true"
    assert chat.names() == names


def test_two_requests_have_nothing_to_do_with_each_other(chat: Chat) -> None:
    chat.say([user("one")])
    chat.say([user("two")])
    assert heard(chat) == ["system: Be kind.", "user: two"]


def test_an_answers_id_is_its_own(chat: Chat) -> None:
    ids = [chat.post([user("one")]).json()["id"] for _ in range(2)]
    assert all(id.startswith("chatcmpl-") for id in ids)
    assert ids[0] != ids[1]


# What it can do.


def test_our_own_tools_run(chat: Chat) -> None:
    message = answer(chat.post([user('use look {"what":"it"}')]))
    assert message["content"] == "On it.\n\nDone: saw it"
    assert "tool_calls" not in message


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_tools_work_by_lists_alone(chat: Chat, stream: bool) -> None:
    tools = [function("weather", city="string")]
    asked: list[Message] = [user('use weather {"city":"Rome"}; weather {"city":"Oslo"}')]
    if stream:
        message, finish = put_together(chat.stream(asked, tools=tools))
        assert finish == "tool_calls"
    else:
        message = answer(chat.post(asked, tools=tools))
    first, second = message["tool_calls"]
    results = [result(first["id"], "sun"), result(second["id"], "rain")]
    calls = assistant(message["content"], *((c["id"], "weather", c["function"]["arguments"]) for c in (first, second)))
    assert chat.say([*asked, calls, *results], tools=tools) == "Done: sun | rain"


def test_calls_without_results_and_results_without_calls_are_mended(chat: Chat) -> None:
    messages = [result("c0", "lost"), user("one"), assistant(None, ("c1", "weather", "{}")), user("two")]
    chat.say(messages)
    assert [line for line in heard(chat) if not line.startswith("result")] == [
        "system: Be kind.",
        "user: one",
        "call: weather {}",
        "user: two",
    ]
    assert sum(line.startswith("result") for line in heard(chat)) == 1
    assert not any("lost" in line for line in heard(chat))


def test_instructions_stand_where_the_list_has_them(chat: Chat) -> None:
    chat.say([system("In French."), user("one")])
    assert heard(chat)[-1] == "user: one"
    assert "In French." in "\n".join(heard(chat)[:-1])


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("model", ["helper", "helper:side"])
def test_a_list_of_instructions_alone_is_answered(chat: Chat, role: str, model: str) -> None:
    said = chat.say([{"role": role, "content": "Give it a title."}], model=model)
    assert said.endswith("to Give it a title.")
    assert heard(chat)[-1] == "user: Give it a title."


@pytest.mark.parametrize("messages", [[user("  ")], [system(" ")], [{"role": "user", "content": []}]])
def test_a_list_that_says_nothing_is_400(chat: Chat, messages: list[Message]) -> None:
    refused(chat.post(messages), 400, "no_new_user_message")


def test_a_list_that_is_empty_is_400(chat: Chat) -> None:
    response = chat.post([])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_a_role_that_nobody_knows_is_400(chat: Chat) -> None:
    response = chat.post([{"role": "oracle", "content": "x"}, user("one")])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].role")


# On the side.


@pytest.mark.parametrize("headers", [{}, {NAME: ""}, {NAME: "beside"}, {NAME: "beside", "X-Fork-From": "y"}], ids=str)
def test_a_side_request_begins_no_conversation_whatever_its_headers_say(chat: Chat, headers: dict[str, str]) -> None:
    before = chat.get("", limit=1000, sides=True)["items"]
    response = chat.post([user("title")], headers=headers, model="helper:side")
    assert response.json()["model"] == "helper:side"
    expected = {NAME: "beside", "X-Conversation-Status": "side"} if headers.get(NAME) else {}
    names = (NAME, "X-Conversation-Status", "X-Conversation-Branch", "X-Turn-Id")
    assert {name: response.headers[name] for name in names if name in response.headers} == expected
    assert chat.get("", limit=1000, sides=True)["items"] == before
    assert heard(chat) == ["system: Be kind.", "user: title"]


def test_a_side_request_takes_no_lock_and_is_no_turn(chat: Chat) -> None:
    chat.say([user("one")], "running")
    turn = chat.soon([user('use hold {"at":"side"}')], "running")
    chat.gates.reached("side")
    assert chat.say([user("title")], "running", model="helper:side").endswith("to title")
    refused(chat.post([user("two")], "running"), 409, "conversation_busy")
    chat.gates.open("side")
    assert answer(turn.result(20))["content"] == "On it.\n\nDone: held at side"
    users = [line for line in chat.history("running") if line.startswith("user")]
    assert users == ["user: one", 'user: use hold {"at":"side"}']
    assert len(chat.get("/running/turns")["items"]) == 2


# Whose it is.


def test_what_it_costs_is_its_tenants_own_and_adds_to_its_conversations() -> None:
    with chatting("stateless-tenants", keyring=two_tenants(), key="key-of-one") as chat:
        chat.say([user("one")])
        chat.say([user('use look {"what":"it"}')], "kept")
        total, beside = spent(chat, "one")
        assert (total.calls, beside.calls) == (3, 1)
        assert spent(chat, "two") == (Usage(), Usage())


def test_a_cache_key_is_shared_by_those_who_send_the_same_within_a_tenant() -> None:
    with (
        ModelServer(Script(obedient)) as models,
        served(agents=agents_at(models, tools=[look]), keyring=two_tenants()) as server,
    ):
        one, two = Chat(server, key="key-of-one"), Chat(server, key="key-of-two")

        def key(chat: Chat, **fields: Any) -> str:
            chat.say([user("Hello")], **fields)
            assert lines(models.last.json) == ["user: Hello"]
            assert models.last.key is not None
            return models.last.key

        a = key(one, prompt_cache_key="a")
        assert key(one, prompt_cache_key="a") == a
        assert key(one, prompt_cache_key="a", model="helper:side") == a
        others = [key(one, prompt_cache_key="b"), key(two, prompt_cache_key="a"), key(one), key(two)]
        assert len({a, *others}) == 5
        assert not any(word in a for word in ("a-", "one")), "it says nothing of whose it is"
        assert key(one) == others[2], "without one, those with the same instructions and tools share theirs"
        response = one.post([user("Hello")], "in-one", prompt_cache_key="a")
        assert response.headers["X-Ignored-Fields"] == "prompt_cache_key"
        assert models.last.key == one.get("/in-one")["cache"]["key"] != a
        one.close()
        two.close()


def test_tools_of_an_agent_work_in_its_folder(tmp_path: Path) -> None:
    @tool
    def where(ctx: ToolContext) -> str:
        return str(ctx.workspace)

    def reply(heard: Heard) -> Reply:
        last = heard.body["messages"][-1]
        return Reply(last["content"]) if last["role"] == "tool" else Reply(calls=(ScriptedCall("where"),))

    worker = Agent(Script(reply).register("stateless-worker"), tools=[where])
    agents = Catalog({"worker": worker}, workspaces={"worker": tmp_path})
    with served(agents=agents) as server, server.client() as client:
        asked = {"model": "worker", "messages": [{"role": "user", "content": "Where?"}]}
        answered = client.post("/v1/chat/completions", json=asked)
        assert answered.json()["choices"][0]["message"]["content"] == str(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_no_machine_is_told_to_repeat_what_tools_did(stream: bool) -> None:
    did: list[str] = []

    @tool
    def ring() -> str:
        did.append("rang")
        return "done"

    def reply(heard: Heard) -> Reply:
        if heard.body["messages"][-1]["role"] == "tool":
            return Reply(fault=Fault("status", status=500))
        return Reply(calls=(ScriptedCall("ring"),))

    llm = LLM(Script(reply).register(f"stateless-ring-{stream}"), retries=Retries(attempts=1))
    with served(agents=Catalog({"bell": Agent(llm, tools=[ring])})) as server, server.client() as client:
        asked = {"model": "bell", "stream": stream, "messages": [{"role": "user", "content": "Ring."}]}
        answered = client.post("/v1/chat/completions", json=asked)
    assert did == ["rang"]
    if answered.status_code == 200:  # the stream had begun with the first of the model's events
        assert '"error"' in answered.text
        assert "[DONE]" not in answered.text
    else:
        assert (answered.status_code, answered.headers["x-should-retry"]) == (502, "false")
