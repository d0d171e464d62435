"""Whatever a provider sends, what is streamed is what is stored, and what would have been answered as a whole."""

from collections.abc import Iterator
from itertools import count

import pytest
from tests.server.chat.chatting import Spoken, agents_at, post, said, spoken
from tests.server.chat.lists_of_messages import answer, function, look, result
from tests.server.support.serving import served
from tests.server.support.turning import Api, left_nothing, using

from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.testing import ModelServer, Reply, Script, ScriptedCall

TOOLS = [function("mine", at="string")]
DONE = Reply("Done.")


class Place:
    """A server, and a model that says the same as often as it is asked."""

    def __init__(self, api: Api, models: ModelServer) -> None:
        self.api = api
        self.models = models
        self._names = count()

    def streamed(self, *replies: Reply) -> tuple[str, Spoken]:
        """The conversation's name, and what was streamed; it is the same in words and calls as when it comes whole."""
        name = f"c-{next(self._names)}"
        self.models.script = Script(list(replies))
        response = post(self.api.http, conversation=name, tools=TOOLS, stream=True)
        stream = spoken(response)
        self.models.script = Script(list(replies))
        whole = answer(post(self.api.http, conversation=f"{name}-whole", tools=TOOLS))
        calls = [(call["name"], call["arguments"]) for call in stream.calls]
        functions = [call["function"] for call in whole.get("tool_calls") or ()]
        assert (stream.text or None, calls) == (
            whole["content"],
            [(one["name"], one["arguments"]) for one in functions],
        )
        assert (stream.errors, stream.done) == ([], True)
        return name, stream

    def open_calls(self, name: str) -> list[str]:
        """The ids of the client's calls, as they are stored."""
        events = self.api.get(f"{name}/events", limit=100)["items"]
        calls = [event["body"] for event in events if event["kind"] == "tool_call"]
        return [call["call_id"] for call in calls if call.get("client")]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with (
        ModelServer(Script([DONE])) as models,
        served("memory:", agents_at(models, tools=[look])) as server,
        using(server.url) as api,
    ):
        yield Place(api, models)
        left_nothing(server)


def mine(at: str, id: str) -> ScriptedCall:
    return ScriptedCall("mine", f'{{"at":"{at}"}}', id)


@pytest.mark.parametrize("piece", [3, 100])
@pytest.mark.parametrize(
    "calls",
    [
        (mine("sea", "a"), mine("lake", "a")),
        (ScriptedCall("look", '{"what":"it"}', "a"), mine("lake", "a")),
        (mine("sea", "a"), ScriptedCall("look", '{"what":"it"}', "a"), mine("lake", "a")),
    ],
    ids=["both the client's", "ours first", "ours between"],
)
def test_of_calls_with_one_id_each_is_told_once_by_the_id_that_it_is_answered_with(
    place: Place, calls: tuple[ScriptedCall, ...], piece: int
) -> None:
    name, stream = place.streamed(Reply(calls=calls, piece=piece))
    ids = [call["id"] for call in stream.calls]
    assert sorted(ids) == sorted(place.open_calls(name))
    assert len({*ids}) == sum(call.tool == "mine" for call in calls)
    place.models.script = Script([DONE])
    results = [result(id, "sunny") for id in ids]
    assert said(post(place.api.http, results, conversation=name, tools=TOOLS)) == "Done."


def test_an_id_may_come_again_in_a_later_response(place: Place) -> None:
    looks = Reply(calls=(ScriptedCall("look", '{"what":"it"}', "a"),))
    name, stream = place.streamed(looks, Reply(calls=(mine("sea", "a"),), piece=3))
    assert [call["id"] for call in stream.calls] == place.open_calls(name)


def test_a_call_without_arguments_has_an_empty_object_of_them(place: Place) -> None:
    """A client that puts the pieces together and reads them must not find nothing."""
    _, stream = place.streamed(Reply(calls=(ScriptedCall("mine", "", "a"), mine("sea", "b"))))
    assert [(call["id"], call["arguments"]) for call in stream.calls] == [("a", "{}"), ("b", '{"at":"sea"}')]


@pytest.mark.parametrize("blank", ["\n\n", "  ", "\n"])
@pytest.mark.parametrize("piece", [1, 100])
def test_white_space_before_a_call_is_no_words(place: Place, blank: str, piece: int) -> None:
    call = ScriptedCall("look", '{"what":"it"}')
    assert place.streamed(Reply(blank, calls=(call,), piece=piece), DONE)[1].text == "Done."


@pytest.mark.parametrize("piece", [1, 100])
def test_white_space_before_and_between_words_stays(place: Place, piece: int) -> None:
    call = ScriptedCall("look", '{"what":"it"}')
    _, stream = place.streamed(Reply("\n\nOn  it. ", calls=(call,), piece=piece), Reply(" Done.\n", piece=piece))
    assert stream.text.split() == ["On", "it.", "Done."]


def test_characters_that_some_take_for_the_end_of_a_line_do_not_stand_in_one(place: Place) -> None:
    text = "a\u2028b\u2029c\u0085d\u200be\u00a0f"
    place.models.script = Script([Reply(text, reasoning=text), Reply(calls=(mine(text, "a"),), piece=5)])
    for expected in (text, ""):
        response = post(place.api.http, tools=TOOLS, stream=True)
        assert not {"\u2028", "\u2029", "\u0085"} & {*response.text}
        assert response.text.splitlines() == response.text.split("\n")[:-1]
        assert spoken(response).text == expected
    place.models.script = Script([Reply(text)])
    assert said(post(place.api.http)) == text


def test_an_answer_that_a_hook_sends_back_is_never_told() -> None:
    def odd(context: HookContext) -> Block | None:
        return Block("say it better") if "Bad" in str(context.answer) else None

    with (
        ModelServer(Script([DONE])) as models,
        served("memory:", agents_at(models, hooks=[Hook("turn_end", function=odd)])) as server,
        using(server.url) as api,
    ):
        _, stream = Place(api, models).streamed(
            Reply("Bad words", reasoning="Bad thought"), Reply("Good words", piece=4)
        )
        assert (stream.text, "Bad" in str(stream.chunks)) == ("Good words", False)
        left_nothing(server)
