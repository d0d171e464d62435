"""Several requests at once in one conversation of a client that sends whole lists: each has a branch, none waits."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.chat.chatting import PATH, held, problem, spoken, until
from tests.server.chat.lists_of_messages import FULL, NAME, Chat, Model, answer, assistant, chatting, refused, user
from tests.server.support.turning import asked_for

from forkpoint.agent import Agent
from forkpoint.errors import ForkpointError
from forkpoint.server.wires.chat.turn import ChatTurn

STATUS, BRANCH = "X-Conversation-Status", "X-Conversation-Branch"


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    store = f"sqlite:///{tmp_path_factory.mktemp('at-once') / 'store.db'}"
    other = Agent(Model("at-once-other").llm, instructions="Be brief.")
    with chatting("at-once", headers=FULL, store=store, others={"other": other}) as running:
        yield running


def users(lines: list[str]) -> list[str]:
    return [line.removeprefix("user: ") for line in lines if line.startswith("user: ")]


def hold(at: str) -> dict[str, Any]:
    return user('use hold {"at":"' + at + '"}')


@pytest.mark.parametrize("new", [True, False], ids=["new", "continued"])
def test_two_models_answer_in_one_chat_and_both_can_be_continued(chat: Chat, new: bool) -> None:
    name = f"models-{new}"
    before = [] if new else [user("one"), assistant(chat.say([user("one")], name))]
    asked = [*before, hold(name)]
    running = chat.soon(asked, name)
    chat.gates.reached(name)
    other = chat.post(asked, name, model="other")
    assert (other.headers[NAME], other.headers[STATUS]) == (name, "branched")
    chat.gates.open(name)
    mine = running.result(20)
    assert mine.headers[STATUS] == ("created" if new else "continued")
    assert chat.aside(name) == [other.headers[BRANCH]]
    for response in (other, mine):
        shown = answer(response)["content"]
        goes_on = chat.post([*asked, assistant(shown), user("and?")], name)
        assert BRANCH not in goes_on.headers, "the name is where a second request goes on"
        assert users(chat.history(name)) == [*users([f"user: {one['content']}" for one in asked[::2]]), "and?"]
        assert f"assistant: {shown}".split("\n\n")[-1] in " ".join(chat.history(name))
        assert chat.events(name, "imported") == []


def test_another_message_from_a_second_tab_is_a_branch(chat: Chat) -> None:
    first = chat.say([user("one")], "tabs")
    running = chat.soon([user("one"), assistant(first), hold("tabs")], "tabs")
    chat.gates.reached("tabs")
    response = chat.post([user("one"), assistant(first), user("two")], "tabs")
    assert response.headers[STATUS] == "branched"
    assert users(chat.history(response.headers[BRANCH])) == ["one", "two"]
    assert users(chat.history("tabs")) == ["one"], "the name's own turn is not over"
    chat.gates.open("tabs")
    running.result(20)
    assert len(users(chat.history("tabs"))) == 2


def test_twenty_at_once_get_twenty_answers_each_on_a_branch_of_its_own(chat: Chat) -> None:
    def ask(number: int) -> Any:
        body = {"model": "helper", "messages": [user(f"Question {number}")]}
        return chat.http.post(PATH, json=body, headers={**FULL, NAME: "twenty"})

    with ThreadPoolExecutor(20) as threads:
        responses = list(threads.map(ask, range(20)))
    assert {response.status_code for response in responses} == {200}
    assert sorted(response.headers[STATUS] for response in responses) == ["branched"] * 19 + ["created"]
    histories = chat.everything("twenty").values()
    assert sorted(users(lines)[0] for lines in histories) == sorted(f"Question {n}" for n in range(20))
    for number, response in enumerate(responses):
        shown = answer(response)["content"]
        assert [f"user: Question {number}", f"assistant: {shown}"] in histories
    seventh = answer(responses[7])["content"]
    chat.say([user("Question 7"), assistant(seventh), user("And?")], "twenty")
    assert users(chat.history("twenty")) == ["Question 7", "And?"]
    chat.verify()


def test_the_same_request_again_while_its_branch_runs_is_refused_and_as_a_retry_joins_it(chat: Chat) -> None:
    first = chat.say([user("one")], "same")
    before = [user("one"), assistant(first)]
    main = chat.soon([*before, hold("same-main")], "same")
    chat.gates.reached("same-main")
    branch = chat.soon([*before, hold("same-branch")], "same")
    chat.gates.reached("same-branch")
    refused(chat.post([*before, hold("same-branch")], "same"), 409, "conversation_busy")
    refused(chat.post([*before, hold("same-main")], "same"), 409, "conversation_busy")
    retry = chat.soon([*before, hold("same-branch")], "same", {"X-Stainless-Retry-Count": "1"})
    for gate in ("same-main", "same-branch"):
        chat.gates.open(gate)
    assert main.result(20).headers[STATUS] == "continued"
    assert branch.result(20).headers["X-Turn-Id"] == retry.result(20).headers["X-Turn-Id"]
    assert retry.result(20).headers[STATUS] == "branched"
    late = chat.post([*before, hold("same-branch")], "same", {"X-Stainless-Retry-Count": "2"})
    assert late.headers["X-Turn-Id"] == branch.result(20).headers["X-Turn-Id"]
    assert len(chat.aside("same")) == 1


@pytest.mark.parametrize("headers", [{}, {"X-Stainless-Retry-Count": "1"}], ids=["requests", "retries"])
def test_the_same_request_several_times_at_once_is_one_turn(tmp_path: Path, headers: dict[str, str]) -> None:
    """Also if none of them has begun when the others come."""
    file = tmp_path / "store.db"
    with chatting("same-at-once", headers=FULL, store=f"sqlite:///{file}") as chat:
        before = [user("one"), assistant(chat.say([user("one")], "c"))]
        main = chat.soon([*before, hold("main")], "c")
        chat.gates.reached("main")
        with held(file):
            same = [chat.soon([*before, hold("branch")], "c", headers) for _ in range(4)]
            asked_for(chat.server, 5)
        chat.gates.reached("branch")
        if not headers:
            until(lambda: sum(one.done() for one in same) == 3)
        for gate in ("main", "branch"):
            chat.gates.open(gate)
        assert main.result(20).status_code == 200
        answered = [one.result(20) for one in same if one.result(20).status_code == 200]
        assert len({response.headers["X-Turn-Id"] for response in answered}) == 1
        refusals = [problem(one.result(20)) for one in same if one.result(20) not in answered]
        assert refusals == ([] if headers else [(409, "conversation_busy")] * 3)
        assert len(chat.aside("c")) == 1


def test_the_same_request_is_refused_though_its_equal_ends_while_we_look(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [user("one"), assistant(chat.say([user("one")], "ends"))]
    main = chat.soon([*before, hold("ends-main")], "ends")
    chat.gates.reached("ends-main")
    branch = chat.soon([*before, hold("ends-branch")], "ends")
    chat.gates.reached("ends-branch")
    look = ChatTurn._is_worth_another_look

    async def looks(self: ChatTurn, error: ForkpointError) -> bool:
        monkeypatch.setattr(ChatTurn, "_is_worth_another_look", look)
        chat.gates.open("ends-branch")
        await asyncio.to_thread(branch.result, 20)
        return await look(self, error)

    monkeypatch.setattr(ChatTurn, "_is_worth_another_look", looks)
    refused(chat.post([*before, hold("ends-branch")], "ends"), 409, "conversation_busy")
    assert chat.post([*before, hold("ends-branch")], "ends").status_code == 200, "sent later, it is another request"
    chat.gates.open("ends-main")
    assert main.result(20).status_code == branch.result(20).status_code == 200


def test_a_key_finds_the_branch_that_answered_it_though_the_name_is_free_again(chat: Chat) -> None:
    first = chat.say([user("one")], "keys")
    before = [user("one"), assistant(first)]
    main = chat.soon([*before, hold("keys")], "keys")
    chat.gates.reached("keys")
    key = {"Idempotency-Key": "beside-1"}
    branch = chat.post([*before, user("two")], "keys", key)
    assert branch.headers[STATUS] == "branched"
    chat.gates.open("keys")
    main.result(20)
    again = chat.post([*before, user("two")], "keys", key)
    assert again.headers["X-Turn-Id"] == branch.headers["X-Turn-Id"]
    refused(chat.post([*before, user("three")], "keys", key), 400, "key_reused")
    assert len(chat.aside("keys")) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_same_key_again_says_where_its_turn_stands(chat: Chat, stream: bool) -> None:
    name = f"stands-{stream}"
    asked: list[Any] = []
    for text, status in (("one", "created"), ("two", "continued")):
        asked.append(user(text))
        key = {"Idempotency-Key": f"{name}-{text}"}
        first, again = (chat.post(asked, name, key, stream=stream) for _ in range(2))
        assert again.headers["X-Turn-Id"] == first.headers["X-Turn-Id"]
        assert (first.headers[STATUS], again.headers[STATUS]) == (status, status)
        assert BRANCH not in again.headers
        asked.append(assistant(spoken(first).text if stream else answer(first)["content"]))
    early = chat.post(asked[:1], name, {"Idempotency-Key": f"{name}-one"}, stream=stream)
    assert early.headers[STATUS] == "created"
    assert chat.aside(name) == []


def test_a_branch_of_a_first_turn_that_fails_is_found_by_its_list(chat: Chat) -> None:
    running = chat.soon([hold("fails")], "fails")
    chat.gates.reached("fails")
    other = chat.post([user("two")], "fails")
    assert other.headers[STATUS] == "branched"
    draft = chat.get(f"/{other.headers[BRANCH]}")["lineage"]["source"]
    turn = chat.get(f"/{draft}")["open_turn"]
    assert chat.http.post(f"/api/conversations/{draft}/turns/{turn}/cancel").status_code == 200
    chat.gates.open("fails")
    assert running.result(20).status_code == 409
    goes_on = chat.post([user("two"), assistant(answer(other)["content"]), user("three")], "fails")
    assert goes_on.headers[STATUS] == "created"
    assert users(chat.history("fails")) == ["two", "three"]
    assert chat.events("fails", "imported") == []


def test_in_latest_the_second_request_is_refused(chat: Chat) -> None:
    latest = {"X-Conversation-History": "latest"}
    running = chat.soon([hold("latest")], "latest", latest)
    chat.gates.reached("latest")
    refused(chat.post([user("two")], "latest", latest), 409, "conversation_busy")
    chat.gates.open("latest")
    assert json.loads(running.result(20).text)["choices"]
