"""The edge of the Python API: a wrong argument is a typed error that names it, and errors speak of a conversation by
the name that its user gave."""

import inspect
import pickle
import types
import typing
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.conversation.support.agents import agent_of, asks, call
from tests.conversation.support.homes import Home

from forkpoint import Agent, AsyncConversation, AsyncConversations, Conversation, Conversations, tool
from forkpoint.errors import (
    BadArgument,
    BadName,
    BadPosition,
    ConversationClosed,
    ForkpointError,
    NoSuchTurn,
    NotFound,
    Stale,
    TurnFailed,
    UseWith,
)
from forkpoint.testing import Fault, Reply

pytestmark = pytest.mark.anyio

ECHO = Agent("scripted/echo")


class Wrong:
    """What nothing takes."""


# What methods need besides the argument that is tried, by its name. A text will do for all others.
NEEDED: dict[str, Any] = {"agent": "scripted/echo", "messages": [{"role": "user", "content": "hi"}], "budget": None}
INSIDE = {"over"}  # for whoever has a backend


def public_parameters() -> Iterator[tuple[type, str, str]]:
    for face in (Conversation, Conversations):
        for method, member in [("__init__", face.__init__), *inspect.getmembers(face, callable)]:
            if (method.startswith("_") and method != "__init__") or method in INSIDE:
                continue
            for name in inspect.signature(member).parameters:
                if name not in {"self", "cls"}:
                    yield face, method, name


def takes_anything(face: type, method: str, name: str) -> bool:
    twin = {Conversation: AsyncConversation, Conversations: AsyncConversations}[face]
    function = getattr(twin, method)
    return typing.get_type_hints(getattr(function, "__func__", function)).get(name) is Any


def _is_needed(name: str, parameter: inspect.Parameter) -> bool:
    is_one = parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    return name not in {"self", "cls"} and is_one and parameter.default is parameter.empty


@pytest.mark.parametrize(("face", "method", "name"), list(public_parameters()))
def test_a_wrong_argument_of_any_public_method_is_an_error_that_names_it(face: type, method: str, name: str) -> None:
    assert not takes_anything(face, method, name)
    parameters = inspect.signature(getattr(face, method)).parameters
    needed = {one: NEEDED.get(one, "a") for one, its in parameters.items() if _is_needed(one, its)}
    made: Any = Conversation(ECHO, store="memory:") if face is Conversation else Conversations("memory:")
    call = face if method == "__init__" else getattr(made, method)
    given = {**needed, name: Wrong()}
    several = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
    with made, pytest.raises(ForkpointError, match=rf"\b{name}=<.*Wrong object.*: it is ") as refused:
        call(Wrong()) if several else call(**given)
    assert isinstance(refused.value, BadArgument)


def test_every_method_of_a_face_is_tried() -> None:
    tried = {f"{face.__name__}.{method}" for face, method, _ in public_parameters()}
    assert len(tried) > 50


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fork", {"at": 0}, "at=0"),
    ("fork", {"before": 1.5}, "before=1.5"),
    ("fork", {"title": 5}, "title=5"),
    ("fork", {"tags": ["a"]}, "tags=['a']"),
    ("fork", {"tags": {"a": 1}}, "tags={'a': 1}"),
    ("fork", {"tags": {1: "a"}}, "tags={1: 'a'}"),
    ("fork", {"cache": "none"}, "own or inherit"),
    ("fork", {"callbacks": 5}, "callbacks=5"),
    ("fork", {"callbacks": [5]}, "callbacks=[5]"),
    ("fork", {"callbacks": "ab"}, "callbacks='ab'"),
    ("fork", {"workspace": 5}, "workspace=5"),
    ("fork", {"reset_metrics": "no"}, "reset_metrics='no'"),
    ("rewind", {"at": 0}, "at=0"),
    ("turns", {"limit": 0}, "limit=0: it is 1 at least"),
    ("turns", {"limit": True}, "limit=True: it is a whole number"),
    ("turns", {"limit": -1}, "1 at least"),
    ("turns", {"newest_first": 1}, "newest_first=1: it is True or False"),
    ("records", {"limit": 0}, "limit=0"),
    ("run", {"message": 5}, "message=5"),
    ("run", {"message": [5]}, "message=[5]"),
    ("run", {"if_revision": "3"}, "if_revision='3'"),
    ("events", {"kinds": "tool_call"}, "kinds='tool_call': it is a list of texts"),
    ("describe", {"title": 5}, "title=5: it is a text or None"),
    ("set_budget", {"budget": 5}, "budget=5: it is a Budget or None"),
    ("bring", {"branch": "a", "what": "all"}, "answer, summary or turns"),
]


@pytest.mark.parametrize(("method", "given", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_told_with_what_it_should_be(method: str, given: dict[str, Any], said: str) -> None:
    with Conversation(ECHO, store="memory:") as conversation, pytest.raises(BadArgument) as refused:
        getattr(conversation, method)(**given)
    assert said in str(refused.value)
    assert f"{method}()" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tags": {"": "a"}}, "it is empty"),
        ({"title": "a\0b"}, "NUL"),
        ({"tags": {"a": "\0"}}, "NUL"),
        ({"tags": {"\0": "a"}}, "NUL"),
        ({"tags": {"title": "\0"}}, "NUL"),
    ],
)
async def test_titles_and_tags_can_be_shown_and_named(home: Home, given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadName, match=why):
        AsyncConversation(home.agent(ECHO), store=home.store, **given)
    async with AsyncConversation(home.agent(ECHO), store=home.store) as conversation:
        with pytest.raises(BadName, match=why):
            await conversation.describe(**given)


def test_a_store_that_is_none_is_refused_at_once() -> None:
    faces: list[Any] = [lambda **given: Conversation(ECHO, **given), Conversations]
    for face in faces:
        with pytest.raises(BadArgument, match=r"store=5: it is a text, a path, a Store or None"):
            face(store=5)


async def test_an_id_may_be_a_uuid_everywhere(home: Home) -> None:
    id = uuid4()
    async with AsyncConversation(home.agent(ECHO), conversation_id=id, store=home.store) as conversation:
        turn = await conversation.run("one")
        assert conversation.id == str(id)
        named = UUID(turn.id)
        assert (await conversation.turn(named)).id == turn.id
        fork = await conversation.fork(at=named, conversation_id=(other := uuid4()))
        assert fork.id == str(other)
        assert not (await conversation.diff(other)).b.turns
        assert await conversation.rewind(at=named) is None
        assert (await conversation.rename(renamed := uuid4())).name == str(renamed)
        await fork.close()
    async with await AsyncConversation.open(id, store=home.store) as again:
        assert again.id == str(id)
    page = await AsyncConversation.list(store=home.store, parent=id)
    assert page.items == ()


# Names.


async def test_errors_speak_of_a_conversation_by_its_name_and_keep_its_id(home: Home) -> None:
    broken = Reply("never heard", fault=Fault("overloaded"))
    agent = home.agent(agent_of(["one", *[broken] * 8]))
    conversation = AsyncConversation(agent, conversation_id="build-1234", store=home.store)
    await conversation.run("hi")
    errors: list[ForkpointError] = []

    async def refused(call: Any) -> None:
        with pytest.raises(ForkpointError) as raised:
            await call
        errors.append(raised.value)

    await refused(conversation.run("again", if_revision=77))
    await refused(conversation.cancel())
    await refused(conversation.turn(str(uuid4())))
    await refused(conversation.run("and again"))
    async with conversation.run_stream("again", if_revision=77) as stream:
        await refused(anext(stream))
    await conversation.close()
    await refused(conversation.info())
    assert [type(error) for error in errors] == [Stale, NoSuchTurn, NotFound, TurnFailed, Stale, ConversationClosed]
    for error in errors:
        assert conversation.id not in str(error)
        assert conversation.id not in error.message("Command line")
    for error in errors:
        if not isinstance(error, NotFound | TurnFailed):
            assert "build-1234" in str(error)
            assert vars(error)["conversation"] == conversation.id, "a program has the id"
            assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_the_nearest_safe_places_are_ids_that_can_be_used(home: Home, places: None) -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "seen"

    agent = home.agent(agent_of([asks(call("look", "c1")), "Done."], tools=[look]))
    async with AsyncConversation(agent, store=home.store) as conversation:
        await conversation.run("Look.")
        inside = next(event for event in await conversation.events() if event.kind == "tool_call")
        with pytest.raises(BadPosition) as refused:
            await conversation.fork(at=inside)
        error = refused.value
        assert len(error.nearest) == 2
        assert f"The nearest safe positions: {' and '.join(error.nearest)}." in str(error)
        for place in error.nearest:
            async with await conversation.fork(at=place) as fork:
                assert str((await fork.events())[-1].id) == place
        with pytest.raises(BadPosition, match=r"The nearest safe positions: the start and \d+-\d+"):
            await conversation.fork(at="nonsense")


# Streams.


def test_a_stream_without_with_says_what_to_write() -> None:
    with Conversation(ECHO, store="memory:") as conversation:
        for stream in (conversation.run_stream("hi"), conversation.go_on_stream()):
            for used in (iter, next, list):
                with pytest.raises(UseWith, match=r"Use it so: with conversation\.\w+\(\.\.\.\) as stream"):
                    used(stream)  # type: ignore[call-overload]
        assert conversation.turns().items == (), "nothing was run"


async def test_an_async_stream_without_with_says_what_to_write() -> None:
    async with AsyncConversation(ECHO, store="memory:") as conversation:
        with pytest.raises(UseWith, match=r"Use it so: async with conversation\.run_stream\(\.\.\.\) as stream"):
            async for _ in conversation.run_stream("hi"):  # type: ignore[attr-defined]
                pass
        with pytest.raises(UseWith, match=r"async with conversation\.go_on_stream"):
            await conversation.go_on_stream()  # type: ignore[misc]
        assert isinstance(AsyncConversation.run_stream, types.FunctionType)
