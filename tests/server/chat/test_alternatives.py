"""Alternatives that are nearly the same: which of them a client's list goes on with."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.chat.chatting import agents_at, assistant, post, said, user
from tests.server.chat.lists_of_messages import FULL, lines, look
from tests.server.support.serving import served
from tests.server.support.turning import Api, left_nothing, using

from forkpoint.testing import Heard, ModelServer, Reply, Script, ScriptedCall

FORM: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def reply(heard: Heard) -> Reply:
    """Looks first if it is told to and has no seed. The answer is what stands behind the question's colon."""
    is_asked = heard.body["messages"][-1]["role"] == "user"
    if is_asked and heard.text.startswith("look") and not heard.body.get("seed"):
        return Reply("On it.", calls=(ScriptedCall("look", '{"what":"it"}'),))
    _, colon, answer = heard.text.partition(": ")
    return Reply(answer if colon else f'{{"a":{heard.number}}}')


class Place:
    """A server, and the model behind it."""

    def __init__(self, api: Api, models: ModelServer) -> None:
        self.api = api
        self.models = models

    def say(self, messages: list[dict[str, Any]], name: str, **fields: Any) -> str:
        return said(post(self.api.http, messages, conversation=name, headers=FULL, **fields))

    @property
    def heard(self) -> list[str]:
        """What the model was asked last."""
        return lines(self.models.last.json)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with (
        ModelServer(Script(reply)) as models,
        served("memory:", agents_at(models, tools=[look])) as server,
        using(server.url) as api,
    ):
        yield Place(api, models)
        left_nothing(server)


def on_its_way(answer: str) -> list[str]:
    """What the model did for an answer of which the client was shown the end."""
    return ["assistant: On it.", 'call: look {"what":"it"}', "result: saw it", f"assistant: {answer}"]


@pytest.mark.parametrize("back", [0, 1, 2])
def test_of_answers_with_a_form_the_one_that_the_client_shows_is_continued_with_all_that_led_to_it(
    place: Place, back: int
) -> None:
    """Of such a turn the client sees the last words alone, so it can be known by nothing else."""
    name = f"form-{back}"
    shown = [place.say([user("look at it")], name, response_format=FORM) for _ in range(3)]
    assert len(set(shown)) == 3
    place.say([user("look at it"), assistant(shown[back]), user("And: 7")], name)
    assert place.heard == ["user: look at it", *on_its_way(shown[back]), "user: And: 7"]
    place.say([user("look at it"), assistant(shown[back]), user("And: 7"), assistant("7"), user("So: 8")], name)
    assert place.heard == ["user: look at it", *on_its_way(shown[back]), "user: And: 7", "assistant: 7", "user: So: 8"]


def test_a_list_that_keeps_the_last_answer_alone_goes_on_behind_it_though_only_its_end_was_shown(place: Place) -> None:
    first = place.say([user("look at it")], "behind", response_format=FORM)
    place.say([user("look at it")], "behind", response_format=FORM)
    place.say([assistant(first), user("And: 7")], "behind")
    assert place.heard == ["user: look at it", *on_its_way(first), "user: And: 7"]


@pytest.mark.parametrize("plain_first", [False, True])
def test_an_answer_that_is_the_same_in_all_its_words_is_nearer_than_one_that_only_ends_so(
    place: Place, plain_first: bool
) -> None:
    """Asked twice, the model once looked before it said ``5``, and once did not. The client shows ``5`` alone."""
    question, name = "look and say: 5", f"words-{plain_first}"
    ways: list[dict[str, Any]] = [{"seed": 1}, {}]
    both = [place.say([user(question)], name, **way) for way in (ways if plain_first else reversed(ways))]
    assert sorted(both) == ["5", "On it.\n\n5"]
    place.say([user(question), assistant("5"), user("And: 7")], name)
    assert place.heard == [f"user: {question}", "assistant: 5", "user: And: 7"]
    place.say([user(question), assistant("On it.\n\n5"), user("And: 7")], name)
    assert place.heard == [f"user: {question}", *on_its_way("5"), "user: And: 7"]


def test_a_branch_that_begins_as_the_list_does_is_continued_though_the_current_one_has_the_same_in_its_midst(
    place: Place,
) -> None:
    """What the client never sent in this list must not come before it."""
    hi = [user("Say: Hello!"), assistant("Hello!")]
    place.say([*hi[:1]], "begins")
    place.say([user("Another: Well?")], "begins")
    place.say([user("Another: Well?"), assistant("Well?"), *hi[:1]], "begins")
    place.say([*hi, user("And: 7")], "begins")
    assert place.heard == ["user: Say: Hello!", "assistant: Hello!", "user: And: 7"]


def test_without_such_a_branch_the_window_is_what_the_client_kept(place: Place) -> None:
    hi = [user("Say: Hello!"), assistant("Hello!")]
    place.say([user("Another: Well?")], "window")
    place.say([user("Another: Well?"), assistant("Well?"), *hi[:1]], "window")
    place.say([*hi, user("And: 7")], "window")
    assert place.heard[0] == "user: Another: Well?"
