"""Which conversation a request is for: names, forks, tenants, and what the answer says about it."""

from collections.abc import Iterator

import pytest
from tests.server.chat.lists_of_messages import (
    FULL,
    NAME,
    Chat,
    Model,
    answer,
    assistant,
    chatting,
    function,
    look,
    refused,
    result,
    user,
)
from tests.server.support.turning import two_tenants

from forkpoint.agent import Agent
from forkpoint.server.settings import ConversationHeader, ServerSettings

OTHER = "X-OpenWebUI-Chat-Id"
STATUS, TURN = "X-Conversation-Status", "X-Turn-Id"
APP = "https://app.example"
HEADERS = (ConversationHeader(NAME), ConversationHeader(OTHER))


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    careful = Agent(Model("identity-careful").llm, tools=[look], approval="always")
    settings = ServerSettings(conversation_headers=HEADERS, cors_origins=(APP,))
    with chatting("identity", others={"careful": careful}, settings=settings) as running:
        yield running


def heard(chat: Chat) -> list[str]:
    """What the user said, of what the model was asked last."""
    assert chat.model is not None
    return [line.removeprefix("user: ") for line in chat.model.heard if line.startswith("user: ")]


def lived(chat: Chat, name: str, *questions: str) -> list[str]:
    """A conversation. Gives the ids of its turns."""
    return [chat.post([user(question)], name).headers[TURN] for question in questions]


# Names.


def test_the_answer_says_the_name_the_turn_and_whether_the_conversation_is_new(chat: Chat) -> None:
    first = chat.post([user("one")], "named")
    assert (first.headers[NAME], first.headers[STATUS]) == ("named", "created")
    second = chat.post([user("two")], "named")
    assert (second.headers[NAME], second.headers[STATUS]) == ("named", "continued")
    turns = [turn["id"] for turn in chat.get("/named/turns")["items"]]
    assert turns == [first.headers[TURN], second.headers[TURN]]
    assert [one.json()["id"] for one in (first, second)] == [f"chatcmpl-{turn}" for turn in turns]
    assert OTHER not in first.headers


def test_a_stream_says_the_same(chat: Chat) -> None:
    response = chat.post([user("one")], "named-stream", stream=True)
    assert (response.headers[NAME], response.headers[STATUS]) == ("named-stream", "created")
    assert f'"id":"chatcmpl-{response.headers[TURN]}"' in response.text


def test_a_refusal_says_the_name_too(chat: Chat) -> None:
    response = chat.post([user("fail")], "named-refusal")
    assert (response.status_code, response.headers[NAME]) == (502, "named-refusal")
    assert response.headers["x-should-retry"] == "true"
    assert response.json()["error"]["request_id"] == response.headers["X-Request-Id"]


@pytest.mark.parametrize("headers", [{NAME: ""}, {OTHER: ""}, {NAME: "", OTHER: ""}, {NAME: "", "X-Fork-From": ""}])
def test_an_empty_header_is_no_header(chat: Chat, headers: dict[str, str]) -> None:
    before = chat.names()
    response = chat.post([user("one")], headers=headers)
    assert answer(response)["content"]
    assert not {NAME.lower(), STATUS.lower(), TURN.lower()} & set(response.headers)
    assert chat.names() == before


def test_each_header_names_the_same_conversations_and_is_the_one_that_is_echoed(chat: Chat) -> None:
    chat.say([user("one")], "two-headers")
    response = chat.post([user("two")], headers={OTHER: "two-headers"})
    assert (response.headers[OTHER], response.headers[STATUS]) == ("two-headers", "continued")
    assert NAME not in response.headers
    assert heard(chat) == ["one", "two"]


def test_two_headers_that_agree_are_one_and_two_that_do_not_are_400(chat: Chat) -> None:
    assert chat.post([user("one")], "agree", {OTHER: "agree"}).headers[NAME] == "agree"
    response = chat.post([user("one")], "agree", {OTHER: "disagree"})
    said = refused(response, 400, "bad_request")
    assert NAME in said
    assert OTHER in said
    assert chat.post([user("one")], "agree", {OTHER: ""}).status_code == 200


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "x" * 128, "local:abcDEF_-123", "0"])
def test_names_that_fit(chat: Chat, name: str) -> None:
    assert chat.post([user("one")], name).headers[NAME] == name
    assert heard(chat) == ["one"]


@pytest.mark.parametrize(
    "name",
    [
        "x" * 129,
        "a b",
        "a/b",
        "a,b",
        "{{LIBRECHAT_BODY_CONVERSATIONID}}",
        "{{CHAT_ID}}",
        "undefined",
        "null",
        "\u00e4".encode().decode("latin-1"),
    ],
)
def test_names_that_do_not_are_400_and_make_nothing(chat: Chat, name: str) -> None:
    before = chat.names()
    response = chat.http.post(
        "/v1/chat/completions",
        json={"model": "helper", "messages": [user("one")]},
        headers=[(NAME.encode(), name.encode("latin-1"))],
    )
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert response.headers["x-should-retry"] == "false"
    assert chat.names() == before


# A name that is made.


def test_a_name_is_made_on_request_and_works_afterwards(chat: Chat) -> None:
    made = chat.post([user("one")], headers={"X-Conversation-Create": "true"})
    name = made.headers[NAME]
    assert made.headers[STATUS] == "created"
    assert name in chat.names()
    assert chat.post([user("two")], name).headers[STATUS] == "continued"
    assert heard(chat) == ["one", "two"]
    other = chat.post([user("one")], headers={"X-Conversation-Create": "true"})
    assert other.headers[NAME] != name


def test_a_name_that_is_given_stays(chat: Chat) -> None:
    response = chat.post([user("one")], "given", {"X-Conversation-Create": "true"})
    assert response.headers[NAME] == "given"


def test_a_failed_first_turn_says_the_name_that_was_made_so_that_it_can_be_tried_again(chat: Chat) -> None:
    failed = chat.post([user("fail")], headers={"X-Conversation-Create": "true"})
    assert failed.status_code == 502
    name = failed.headers[NAME]
    assert chat.http.get(f"/api/conversations/{name}").status_code == 404
    again = chat.post([user("one")], name)
    assert (again.headers[NAME], again.headers[STATUS]) == (name, "created")
    assert heard(chat) == ["one"]


@pytest.mark.parametrize("value", ["false", "0", ""])
def test_no_name_is_made_where_none_is_wanted(chat: Chat, value: str) -> None:
    before = chat.names()
    assert NAME not in chat.post([user("one")], headers={"X-Conversation-Create": value}).headers
    assert chat.names() == before


def test_what_is_neither_yes_nor_no_is_400(chat: Chat) -> None:
    response = chat.post([user("one")], headers={"X-Conversation-Create": "maybe"})
    assert "X-Conversation-Create" in refused(response, 400, "bad_request")


# Forks.


def test_a_new_name_is_forked_from_a_conversations_head(chat: Chat) -> None:
    lived(chat, "source", "one", "two")
    before = chat.standing("source")
    fork = chat.post([user("three")], "fork", {"X-Fork-From": "source"})
    assert (fork.headers[NAME], fork.headers[STATUS]) == ("fork", "created")
    assert heard(chat) == ["one", "two", "three"]
    lineage = chat.get("/fork")["lineage"]
    assert (lineage["kind"], lineage["source"]) == ("fork", chat.get("/source")["id"])
    assert chat.standing("source") == before
    chat.say([user("four")], "source")
    assert heard(chat) == ["one", "two", "four"]
    chat.say([user("five")], "fork")
    assert heard(chat) == ["one", "two", "three", "five"]


def test_a_fork_at_a_turn_has_the_history_up_to_there(chat: Chat) -> None:
    turns = lived(chat, "source-at", "one", "two", "three")
    for number, turn in enumerate(turns):
        chat.say([user("on")], f"fork-at-{number}", {"X-Fork-From": f"source-at@{turn}"})
        assert heard(chat) == [*["one", "two", "three"][: number + 1], "on"]


def test_only_the_newest_message_of_a_forks_first_list_counts(chat: Chat) -> None:
    lived(chat, "source-latest", "one")
    chat.say([user("old"), assistant("Old."), user("new")], "fork-latest", {"X-Fork-From": "source-latest"})
    assert heard(chat) == ["one", "new"]


def test_a_forks_first_list_is_matched_where_the_list_is_the_truth(chat: Chat) -> None:
    first = chat.say([user("one")], "source-full")
    chat.say([user("two")], "source-full")
    before = chat.standing("source-full")
    headers = {"X-Fork-From": "source-full", **FULL}
    chat.say([user("one"), assistant(first), user("edited")], "fork-full", headers)
    assert heard(chat) == ["one", "edited"]
    assert chat.events("fork-full", "imported") == []
    assert chat.standing("source-full") == before


def test_a_fork_that_is_there_goes_on_when_the_header_comes_again(chat: Chat) -> None:
    (turn, _) = lived(chat, "source-again", "one", "two")
    for source in ("source-again", f"source-again@{turn}", "source-again"):
        response = chat.post([user(f"on {source[:12]}")], "fork-again", {"X-Fork-From": source})
        assert response.headers[STATUS] == ("created" if len(heard(chat)) == 3 else "continued")
    assert len(heard(chat)) == 5
    assert heard(chat)[:2] == ["one", "two"]


def test_a_fork_may_get_a_name_that_is_made(chat: Chat) -> None:
    lived(chat, "source-made", "one")
    headers = {"X-Fork-From": "source-made", "X-Conversation-Create": "true"}
    name = chat.post([user("two")], headers=headers).headers[NAME]
    assert heard(chat) == ["one", "two"]
    assert chat.get(f"/{name}")["lineage"]["kind"] == "fork"


def test_a_fork_without_a_name_is_400(chat: Chat) -> None:
    lived(chat, "source-nameless", "one")
    assert NAME in refused(chat.post([user("two")], headers={"X-Fork-From": "source-nameless"}), 400, "bad_request")


def test_a_source_that_is_not_there_is_404(chat: Chat) -> None:
    refused(chat.post([user("one")], "fork-of-nobody", {"X-Fork-From": "nobody"}), 404, "not_found")
    assert "fork-of-nobody" not in chat.names()


def test_a_draft_is_no_source(chat: Chat) -> None:
    assert chat.post([user("fail")], "only-failed").status_code == 502
    refused(chat.post([user("one")], "fork-of-draft", {"X-Fork-From": "only-failed"}), 404, "not_found")


def test_a_turn_that_is_not_there_is_an_error_and_makes_nothing(chat: Chat) -> None:
    lived(chat, "source-turnless", "one")
    (elsewhere,) = lived(chat, "elsewhere", "one")
    for turn in ("nothing", elsewhere, "0" * 36):
        response = chat.post([user("two")], "fork-turnless", {"X-Fork-From": f"source-turnless@{turn}"})
        assert response.status_code in {400, 404}, response.text
        assert response.headers["x-should-retry"] == "false"
    assert "fork-turnless" not in chat.names()


@pytest.mark.parametrize("source", ["a b", "@turn", "{{X}}"])
def test_a_source_that_is_no_name_is_400(chat: Chat, source: str) -> None:
    assert chat.post([user("one")], "fork-of-nonsense", {"X-Fork-From": source}).status_code == 400


def test_a_conversation_that_is_no_such_fork_is_409(chat: Chat) -> None:
    lived(chat, "source-a", "one")
    lived(chat, "source-b", "one")
    lived(chat, "unrelated", "one")
    chat.say([user("two")], "fork-of-a", {"X-Fork-From": "source-a"})
    for name in ("unrelated", "fork-of-a", "source-b"):
        before = chat.standing(name)
        response = chat.post([user("two")], name, {"X-Fork-From": "source-b"})
        refused(response, 409, "exists")
        assert response.headers["x-should-retry"] == "false"
        assert chat.standing(name) == before


def test_a_failed_first_turn_of_a_fork_leaves_nothing_and_the_name_is_free(chat: Chat) -> None:
    lived(chat, "source-failing", "one", "two")
    before = chat.standing("source-failing")
    headers = {"X-Fork-From": "source-failing"}
    assert chat.post([user("fail")], "fork-failing", headers).status_code == 502
    assert "fork-failing" not in chat.names()
    assert chat.http.get("/api/conversations/fork-failing").status_code == 404
    tree = chat.get("/source-failing/tree")["items"]
    assert len(tree) == 1, "the family is not seen to have grown"
    assert chat.standing("source-failing") == before
    started = chat.post([user("alone")], "fork-failing")
    assert started.headers[STATUS] == "created"
    assert heard(chat) == ["alone"]


def test_a_failed_first_turn_of_a_fork_can_be_tried_again(chat: Chat) -> None:
    (turn, _) = lived(chat, "source-retried", "one", "two")
    headers = {"X-Fork-From": "source-retried"}
    for _ in range(2):
        assert chat.post([user("fail")], "fork-retried", headers).status_code == 502
    chat.say([user("three")], "fork-retried", {"X-Fork-From": f"source-retried@{turn}"})
    assert heard(chat) == ["one", "three"], "as this request asks, and not as the failed one did"


def test_a_failed_first_turn_without_the_header_does_not_stand_in_the_way_of_a_fork(chat: Chat) -> None:
    lived(chat, "source-late", "one")
    assert chat.post([user("fail")], "fork-late").status_code == 502
    chat.say([user("two")], "fork-late", {"X-Fork-From": "source-late"})
    assert heard(chat) == ["one", "two"]


def test_calls_that_are_open_in_the_source_are_open_in_the_fork(chat: Chat) -> None:
    tools = [function("time")]
    (call,) = answer(chat.post([user("use time")], "source-open", tools=tools))["tool_calls"]
    for name, word in (("fork-open", "noon"), ("source-open", "night")):
        headers = {"X-Fork-From": "source-open"} if name == "fork-open" else {}
        assert chat.say([result(call["id"], word)], name, headers, tools=tools) == f"Done: {word}"


# Other ways to the same conversation.


def test_a_name_whose_conversation_was_deleted_begins_anew(chat: Chat) -> None:
    lived(chat, "deleted", "one")
    assert chat.http.delete("/api/conversations/deleted").status_code == 204
    assert chat.post([user("two")], "deleted").headers[STATUS] == "created"
    assert heard(chat) == ["two"]


def test_what_was_set_aside_can_be_named_by_its_id(chat: Chat) -> None:
    chat.say([user("one")], "whole", FULL)
    chat.say([user("one")], "whole", FULL)
    (aside,) = chat.aside("whole")
    response = chat.post([user("two")], aside)
    assert (response.headers[NAME], response.headers[STATUS]) == (aside, "continued")
    assert heard(chat) == ["one", "two"]


def test_the_latest_message_is_409_while_a_turn_waits_for_an_approval(chat: Chat) -> None:
    chat.http.post("/api/conversations", json={"id": "waits", "agent": "careful"})
    waits = chat.http.post("/api/conversations/waits/turns", json={"message": 'use look {"what":"it"}'})
    assert waits.json()["outcome"] == "awaiting_approval"
    response = chat.post([user("two")], "waits", model="careful")
    refused(response, 409, "turn_open")
    assert response.headers["x-should-retry"] == "false"


def test_a_whole_list_is_answered_on_a_branch_while_a_turn_waits_for_an_approval(chat: Chat) -> None:
    chat.http.post("/api/conversations", json={"id": "waits-too", "agent": "careful"})
    waits = chat.http.post("/api/conversations/waits-too/turns", json={"message": 'use look {"what":"it"}'})
    response = chat.post([user("two")], "waits-too", FULL, model="careful")
    assert (response.status_code, response.headers[STATUS]) == (200, "branched")
    turn = chat.http.get(f"/api/conversations/waits-too/turns/{waits.json()['id']}").json()
    assert turn["outcome"] == "awaiting_approval", "what waits stays as it is"


# Tenants.


def test_tenants_with_the_same_names_have_nothing_to_do_with_each_other() -> None:
    with chatting("identity-tenants", keyring=two_tenants(), key="key-of-one") as one:
        two = Chat(one.server, one.model, key="key-of-two")
        try:
            first = one.post([user("mine")], "same")
            second = two.post([user("yours")], "same")
            assert [response.headers[STATUS] for response in (first, second)] == ["created", "created"]
            assert heard(one) == ["yours"]
            one.say([user("mine too")], "same")
            assert heard(one) == ["mine", "mine too"]
            two.say([user("yours too")], "same")
            assert heard(one) == ["yours", "yours too"]
            one.say([user("x")], "only-one")
            refused(two.post([user("y")], "fork", {"X-Fork-From": "only-one"}), 404, "not_found")
            assert two.post([user("y")], "only-one", FULL).headers[STATUS] == "created"
            assert one.get("/same")["id"] != two.get("/same")["id"]
            assert two.post([user("z")], one.get("/same")["id"]).headers[STATUS] == "created"
            assert heard(one) == ["z"], "an id of somebody else's is a name like any other"
            assert one.get("/same")["cache"]["key"] != two.get("/same")["cache"]["key"]
            refused(two.post([user("y")], headers={"Authorization": "Bearer nobody"}), 401, "invalid_api_key")
        finally:
            two.close()


# Web pages.


def test_pages_may_send_and_read_all_of_these_headers(chat: Chat) -> None:
    sent = [NAME, OTHER, "X-Conversation-Create", "X-Fork-From", "X-Conversation-History", "Idempotency-Key"]
    asked = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ", ".join([*sent, "authorization", "content-type"]).lower(),
    }
    preflight = chat.http.options("/v1/chat/completions", headers=asked)
    allowed = {name.strip().lower() for name in preflight.headers["access-control-allow-headers"].split(",")}
    assert (preflight.status_code // 100, {name.lower() for name in sent} - allowed) == (2, set())
    response = chat.post([user("one")], "of-a-page", {"Origin": APP})
    exposed = {name.strip().lower() for name in response.headers["access-control-expose-headers"].split(",")}
    told = {NAME, OTHER, STATUS, TURN, "X-Request-Id", "X-Ignored-Fields", "X-Should-Retry", "Retry-After"}
    assert {name.lower() for name in told} - exposed == set()
    assert response.headers["access-control-allow-origin"] == APP
