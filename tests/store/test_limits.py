"""What the outside may say: names, ids, sizes and texts that do not fit are refused, with nothing changed."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from forkpoint.errors import BadName, BadPosition, ErrorKind, ForkpointError, NotFound, NotWhole, TooLarge
from forkpoint.events import NewEvent, Opaque, Position, StateChange, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteSettings, SqliteStore
from forkpoint.store.sqlite.connection import Database, connect
from forkpoint.store.values import (
    IdempotencyKey,
    Lineage,
    NewConversation,
    NewFork,
    Onto,
    OpenTurn,
    StoreLimits,
    TurnError,
    check_name,
)
from forkpoint.testing.samples import answers, exchange, says

pytestmark = pytest.mark.anyio

MB = 1 << 20
SURROGATE = "half a pair: \ud800"

Attempt: TypeAlias = Callable[[SqliteStore, str], Awaitable[Any]]
"""Something to try with a store and a conversation in it."""


databases: dict[SqliteStore, Database] = {}


@asynccontextmanager
async def opened(limits: StoreLimits = StoreLimits()) -> AsyncIterator[SqliteStore]:
    """A store in memory whose whole database can be looked at."""
    made: list[Database] = []

    def remember(path: str) -> Database:
        made.append(connect(path))
        return made[-1]

    async with await SqliteStore.open(None, settings=SqliteSettings(limits=limits), connect=remember) as store:
        databases[store] = made[0]
        yield store
        del databases[store]


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    async with opened() as store:
        yield store


@pytest.fixture
async def conversation(store: SqliteStore) -> str:
    return (await store.create(NewConversation(id=new_id(), name="c"), exchange("hi"))).id


def contents(store: SqliteStore) -> list[str]:
    """All that is in a database, row by row; heartbeats aside, which say nothing of conversations."""
    return [line for line in databases[store].iterdump() if not line.startswith('INSERT INTO "holder"')]


@contextmanager
def unchanged(store: SqliteStore) -> Iterator[None]:
    before = contents(store)
    yield
    assert contents(store) == before, "it was refused, and something was changed"


async def refused(attempt: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> ForkpointError:
    """The error that a call meets, which must be one of ours."""
    try:
        result = await attempt(*arguments, **options)
    except ForkpointError as error:
        return error
    except Exception as raw:
        pytest.fail(f"the caller gets a bare {type(raw).__name__}, not an error with a code: {raw!a}")
    pytest.fail(f"it was accepted: {result!a:.300}")


async def begun(store: SqliteStore, conversation: str, **options: Any) -> OpenTurn:
    turn = await store.begin(conversation, new_id(), **options)
    assert isinstance(turn, OpenTurn)
    return turn


# Names.

BAD_NAMES = [
    *("", " ", "a b", "a/b", "../a", "a\\b", "C:\\a", "~", "a\0b", "\0", "a\n", "\na", "a\tb", "\x1b[31m"),
    *("naïve", "а", "ｆｕｌｌ", "a\u200bb", "a\u202eb", "é", "e\u0301", "①", "\ud800", "😀", "a\u2024b", "a∶b", "a‐b"),
    *("a*", "a?", "a%00", "a;b", "a'b", 'a"b', "<a>", "a@b", "a,b", "a=b", "a|b", "$a", "a#b", "a+b", "(a)"),
    *("a" * 129, "a" * 10_000),
]
GOOD_NAMES = ["a", "A", "0", "-", "_", "a.b", "a:b-c_d.e", "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", "a" * 128]

good_names = pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])


async def test_a_conversation_cannot_have_a_name_that_does_not_fit(store: SqliteStore, conversation: str) -> None:
    with unchanged(store):
        for name in BAD_NAMES:
            for attempt in (
                partial(store.create, NewConversation(id=new_id(), name=name)),
                partial(store.fork, conversation, NewFork(id=new_id(), cache="{}", name=name)),
                partial(store.rewind, conversation, NewFork(id=new_id(), cache="{}", name=name), before="1-1"),
                partial(store.keep, conversation, new_id(), NewFork(id=new_id(), cache="{}", name=name)),
                partial(store.describe, conversation, name=name),
                partial(store.begin, id := new_id(), new_id(), create=NewConversation(id=id, name=name)),
            ):
                error = await refused(attempt)
                assert isinstance(error, BadName), f"{name[:50]!a} was refused as {error!r}"
                assert len(str(error)) < 1000, "an error does not repeat 10,000 characters"
                str(error).encode()


async def test_a_tenant_cannot_have_a_name_that_does_not_fit(store: SqliteStore) -> None:
    for name in BAD_NAMES:
        with pytest.raises(BadName) as refusal:
            store.within(name)
        assert refusal.value.what == "tenant"
        assert isinstance(await refused(SqliteStore.open, None, tenant=name), BadName)


async def test_a_name_that_does_not_fit_is_not_found(store: SqliteStore) -> None:
    for name in BAD_NAMES:
        error = await refused(store.find, name)
        assert isinstance(error, NotFound), f"{name[:50]!a} was refused as {error!r}"


@good_names
async def test_a_name_that_fits_is_kept_and_found(store: SqliteStore, name: str) -> None:
    assert check_name("name", name) == name
    tenant = store.within(name)
    made = await tenant.create(NewConversation(id=new_id(), name=name))
    assert made.name == name
    assert made.tenant == name
    assert (await tenant.find(name)).id == made.id


# Ids.

BAD_IDS = [
    *("", "x", "c", "0", "-" * 36, "x" * 36, "\0" * 36, "\ud800" * 36, "x" * 10_000, "' OR 1=1 --"),
    *("0190A1B2-C3D4-7E5F-8A6B-7C8D9E0F1A2B", "0190a1b2c3d47e5f8a6b7c8d9e0f1a2b", "1-1", "null", "/../"),
]


async def test_what_is_not_an_id_is_not_found_wherever_something_is_looked_up(store: SqliteStore) -> None:
    with unchanged(store):
        for id in BAD_IDS:
            for attempt in (
                *(partial(look, id) for look in (store.read, store.delete, store.path, store.events, store.state)),
                *(partial(look, id) for look in (store.turns, store.verify, store.turn, store.steps, store.usage)),
                *(partial(act, id) for act in (store.resume, store.discard, store.settle, store.describe)),
                partial(store.events, id, last=1),
                partial(store.conversations, family=id),
                partial(store.fork, id, NewFork(id=new_id(), cache="{}")),
                partial(store.rewind, id, NewFork(id=new_id(), cache="{}")),
                partial(store.keep, id, new_id(), NewFork(id=new_id(), cache="{}")),
                partial(store.keep, new_id(), id, NewFork(id=new_id(), cache="{}")),
                partial(store.note, id, new_id(), exchange("hi")),
                partial(store.begin, id, new_id()),
            ):
                error = await refused(attempt)
                assert isinstance(error, NotFound), f"{id[:50]!a} was refused as {error!r}"
                assert len(str(error)) < 1000, "an error does not repeat 10,000 characters"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda store, c, given: store.create(NewConversation(id=given)),
        lambda store, c, given: store.create(NewConversation(id=new_id(), family=given or "x")),
        lambda store, c, given: store.create(NewConversation(id=new_id(), lineage=Lineage("fork", given))),
        lambda store, c, given: store.fork(c, NewFork(id=given, cache="{}")),
        lambda store, c, given: store.rewind(c, NewFork(id=given, cache="{}"), before="1-1"),
        lambda store, c, given: store.note(c, given, exchange("hi")),
        lambda store, c, given: store.begin(c, given),
        lambda store, c, given: store.begin(c, new_id(), retry_of=given),
        lambda store, c, given: store.begin(new_id(), new_id(), create=NewConversation(id=given)),
    ],
    ids=["create", "family", "lineage", "fork", "rewind", "note", "begin", "retry of", "begin and create"],
)
async def test_what_is_not_an_id_cannot_become_one(
    store: SqliteStore, conversation: str, attempt: Callable[[SqliteStore, str, str], Awaitable[Any]]
) -> None:
    with unchanged(store):
        for id in BAD_IDS:
            await refused(attempt, store, conversation, id)


async def test_a_draft_is_made_under_the_id_that_is_begun_or_not_at_all(store: SqliteStore) -> None:
    """Two ids for one conversation: only a slip can mean that, and it must not leave a stray draft behind."""
    with unchanged(store):
        await refused(store.begin, new_id(), new_id(), create=NewConversation(id=new_id()))


# Positions and cursors.


@pytest.mark.parametrize(
    "at",
    [
        *("", "x", "1", "1-", "-1", "1-2-3", "0-0", "1-0", "1-3", "2-1", "99-99", "+1-2", "１-１"),
        *("\0", "\ud800", f"{2**70}-1", f"1-{2**70}", "9" * 5000 + "-1", "x" * 36, "x" * 10_000),
    ],
    ids=lambda at: ascii(at[:20]),
)
async def test_what_is_not_a_position_on_the_path_is_no_place_to_fork_or_rewind(
    store: SqliteStore, conversation: str, at: str
) -> None:
    with unchanged(store):
        for attempt in (
            partial(store.fork, conversation, NewFork(id=new_id(), cache="{}"), at=at),
            partial(store.fork, conversation, NewFork(id=new_id(), cache="{}"), before=at),
            partial(store.rewind, conversation, NewFork(id=new_id(), cache="{}"), at=at),
        ):
            error = await refused(attempt)
            assert isinstance(error, BadPosition | NotFound), f"refused as {error!r}"
            assert len(str(error)) < 1000, "an error does not repeat 10,000 characters"


@pytest.mark.parametrize(
    "at",
    [
        *(Position(99, 1), Position(1, 99), Position(2**70, 1), Position(1, 2**70), Position(-1, 5)),
        *(Position(0, 1 << 32 | 1), Position(1, 1 << 32 | 1)),  # packed into one number, these would be 1-1
    ],
    ids=str,
)
async def test_events_up_to_a_position_that_is_not_on_the_path_are_refused_as_such(
    store: SqliteStore, conversation: str, at: Position
) -> None:
    error = await refused(store.events, conversation, at=at)
    assert isinstance(error, BadPosition | NotFound), f"a wrong argument is reported as {error!r}"


@pytest.mark.parametrize("number", [-(2**70), -1, 0, 3, 2**31, 2**63, 2**70])
async def test_numbers_out_of_all_proportion_read_nothing_or_everything(
    store: SqliteStore, conversation: str, number: int
) -> None:
    everything = await store.events(conversation)
    assert await store.events(conversation, after=number) == everything[max(number, 0) :]
    assert await store.events(conversation, limit=number) == everything[: max(number, 0)]
    assert await store.events(conversation, last=number) == (everything if number > 0 else [])
    assert (await store.conversations(limit=number)).items
    assert (await store.turns(conversation, limit=number)).items


async def test_a_limit_counts_from_the_first_event_that_is_read(store: SqliteStore, conversation: str) -> None:
    everything = await store.events(conversation)
    assert await store.events(conversation, after=-5, limit=1) == everything[:1], "a negative start is the start"


@pytest.mark.parametrize("revision", [-1, 99, 2**63, 2**70])
async def test_a_revision_that_never_was_is_stale(store: SqliteStore, conversation: str, revision: int) -> None:
    with unchanged(store):
        for attempt in (
            partial(store.begin, conversation, new_id(), if_revision=revision),
            partial(store.note, conversation, new_id(), exchange("hi"), if_revision=revision),
            partial(store.fork, conversation, NewFork(id=new_id(), cache="{}"), if_revision=revision),
            partial(store.rewind, conversation, NewFork(id=new_id(), cache="{}"), if_revision=revision),
        ):
            assert (await refused(attempt)).code == "stale"


@pytest.mark.parametrize(
    "cursor",
    ["", "x", ":", "1", "x:y", "-1:x", "１:x", "9" * 5000 + ":x", "\0", "\ud800", "x" * 10_000],
    ids=lambda cursor: ascii(cursor[:20]),
)
async def test_what_is_not_a_cursor_is_refused(store: SqliteStore, conversation: str, cursor: str) -> None:
    for attempt in (store.conversations, partial(store.turns, conversation)):
        error = await refused(attempt, cursor=cursor)
        assert BadName.bad_cursor.made(error), f"refused as {error!r}"
        assert len(str(error)) < 1000, "an error does not repeat 10,000 characters"


# Payloads.


async def test_a_payload_of_no_bytes_is_refused_and_the_turn_goes_on(store: SqliteStore, conversation: str) -> None:
    turn = await begun(store, conversation)
    with unchanged(store):
        for attempt in (store.journal, store.commit, store.wait):
            assert isinstance(await refused(attempt, turn, [NewEvent(Opaque("new", ""))]), NotWhole)
    assert (await store.commit(turn, exchange("still here"))).revision == 2


async def test_a_payload_of_50_mb_is_refused_by_default_and_the_turn_goes_on(
    store: SqliteStore, conversation: str
) -> None:
    big = says("x" * (50 * MB))
    turn = await begun(store, conversation)
    with unchanged(store):
        for attempt, events in ((store.journal, [big]), (store.commit, [says("small"), big])):
            error = await refused(attempt, turn, events)
            assert isinstance(error, TooLarge)
            assert error.what == "payload"
            assert error.size > 50 * MB
            assert error.limit == StoreLimits().payload
    turn = await store.journal(turn, [says("small")])
    done = await store.commit(turn, [answers("fine")])
    assert done.head.ordinal == 4
    assert (await store.verify()).flaws == ()


async def test_a_payload_of_50_mb_is_accepted_with_a_raised_limit_and_comes_back_exactly() -> None:
    text = "é" * (25 * MB)
    async with opened(StoreLimits(payload=60 * MB)) as store:
        made = await store.create(NewConversation(id=new_id()))
        turn = await begun(store, made.id)
        await store.commit(turn, [says(text)])
        (event,) = await store.events(made.id)
    assert isinstance(event.body, UserMessage)
    (part,) = event.body.parts
    assert isinstance(part, Text)
    assert part.text == text, "50 MB came back as another text"


async def test_a_conversation_that_would_begin_with_too_much_is_not_made(store: SqliteStore) -> None:
    with unchanged(store):
        error = await refused(store.create, NewConversation(id=new_id()), [says("x" * (33 * MB))])
    assert isinstance(error, TooLarge)


def at_the_limit(limit: int, mark: str) -> NewEvent:
    """A message whose payload has exactly so many bytes."""
    overhead = len('{"kind":"user_message","parts":[{"type":"text","text":""}]}')
    room = limit - overhead
    size = len(mark.encode())
    return says(mark * (room // size) + "x" * (room % size))


@pytest.mark.parametrize("mark", ["x", "é", "😀"])
async def test_the_limit_of_a_payload_counts_bytes_and_includes_the_last(mark: str) -> None:
    async with opened(StoreLimits(payload=1000)) as store:
        made = await store.create(NewConversation(id=new_id()))
        await store.note(made.id, new_id(), [at_the_limit(1000, mark)])
        error = await refused(store.note, made.id, new_id(), [at_the_limit(1001, mark)])
    assert isinstance(error, TooLarge)
    assert (error.size, error.limit) == (1001, 1000)


@pytest.mark.parametrize("mark", ["x", "é", "😀"])
async def test_the_limit_of_a_commit_counts_bytes_whatever_the_text(mark: str) -> None:
    async with opened(StoreLimits(payload=1000, commit=4000)) as store:
        made = await store.create(NewConversation(id=new_id()))
        with unchanged(store):
            error = await refused(store.note, made.id, new_id(), [at_the_limit(1000, mark)] * 5)
        assert isinstance(error, TooLarge)
        assert error.what == "commit"
        assert error.size >= 5000, f"five payloads of 1,000 bytes are counted as {error.size} bytes"


# Documents, titles, tags.


@pytest.mark.parametrize(
    ("what", "attempt"),
    [
        ("settings", lambda store, c: store.create(NewConversation(id=new_id(), settings="x" * (4 * MB + 1)))),
        ("cache identity", lambda store, c: store.create(NewConversation(id=new_id(), cache="x" * (4 * MB + 1)))),
        ("settings", lambda store, c: store.fork(c, NewFork(id=new_id(), cache="{}", settings="é" * (3 * MB)))),
        ("cache identity", lambda store, c: store.fork(c, NewFork(id=new_id(), cache="x" * (5 * MB)))),
        ("settings", lambda store, c: store.note(c, new_id(), exchange("a"), settings="x" * (5 * MB))),
        ("cache identity", lambda store, c: store.note(c, new_id(), exchange("a"), cache="x" * (5 * MB))),
        ("input", lambda store, c: store.begin(c, new_id(), input="x" * (65 * MB))),
        ("approvals", lambda store, c: store.change_approvals(c, "x" * (5 * MB), if_approvals="[]")),
        ("title", lambda store, c: store.describe(c, title="x" * 1025)),
        ("title", lambda store, c: store.describe(c, title="é" * 513)),
        ("title", lambda store, c: store.create(NewConversation(id=new_id(), title="x" * 1025))),
        ("tag", lambda store, c: store.describe(c, tags=(("key", "x" * 1022),))),
        ("tag", lambda store, c: store.describe(c, tags=(("x" * 1025, ""),))),
        ("tag", lambda store, c: store.rewind(c, NewFork(id=new_id(), cache="{}", tags=(("a", "x" * 5000),)))),
        ("settings", lambda store, c: store.begin(c, new_id(), create=NewConversation(id=c, settings="x" * (5 * MB)))),
    ],
)
async def test_what_is_over_its_limit_is_refused(
    store: SqliteStore, conversation: str, what: str, attempt: Attempt
) -> None:
    with unchanged(store):
        error = await refused(attempt, store, conversation)
    assert isinstance(error, TooLarge)
    assert error.what == what
    assert error.size > error.limit


async def test_too_many_tags_are_refused_and_counted_as_tags(store: SqliteStore, conversation: str) -> None:
    tags = tuple((f"key{n}", "value") for n in range(65))
    with unchanged(store):
        error = await refused(store.describe, conversation, tags=tags)
    assert isinstance(error, TooLarge)
    assert (error.size, error.limit) == (65, 64)
    assert "65 bytes" not in str(error), f"65 tags are not 65 bytes: {error}"
    assert (await store.describe(conversation, tags=tags[:64])).tags == tags[:64]


async def test_what_is_at_its_limit_is_kept_exactly(store: SqliteStore, conversation: str) -> None:
    title, value, document = "é" * 512, "x" * 1021, '"' + "x" * (4 * MB - 2) + '"'
    record = await store.describe(conversation, title=title, tags=(("key", value),))
    assert record.title == title
    assert record.tags == (("key", value),)
    await store.note(conversation, new_id(), exchange("a"), settings=document, cache=document)
    record = await store.read(conversation)
    assert record.settings == document
    assert record.cache == document
    turn = await begun(store, conversation, input=document)
    assert (await store.turn(turn.id)).input == document


@pytest.mark.parametrize("text", ["\ufeff", "\u2028", "\x1b[31m", "é", "e\u0301", "😀", " a "], ids=ascii)
async def test_every_valid_text_comes_back_exactly(store: SqliteStore, conversation: str, text: str) -> None:
    record = await store.describe(conversation, title=text, tags=((text, text),))
    assert record.title == text
    assert record.tags == ((text, text),)
    assert [item.id for item in (await store.conversations(tags=((text, text),))).items] == [conversation]
    document = json.dumps(text, ensure_ascii=False)
    await store.note(conversation, new_id(), [says(f".{text}.")], settings=document, cache=document)
    record = await store.read(conversation)
    assert (record.settings, record.cache) == (document, document)
    assert (await store.events(conversation, last=1))[0].body == UserMessage((Text(f".{text}."),))


# Text that is not valid Unicode: half a surrogate pair, as a cut-off JSON escape or a file name gives it.

WITH_SURROGATES: dict[str, Attempt] = {
    "create settings": lambda store, c: store.create(NewConversation(id=new_id(), settings=SURROGATE)),
    "create cache": lambda store, c: store.create(NewConversation(id=new_id(), cache=SURROGATE)),
    "create title": lambda store, c: store.create(NewConversation(id=new_id(), title=SURROGATE)),
    "create tag": lambda store, c: store.create(NewConversation(id=new_id(), tags=(("key", SURROGATE),))),
    "create event": lambda store, c: store.create(NewConversation(id=new_id()), [says(SURROGATE)]),
    "create key": lambda store, c: store.create(NewConversation(id=new_id()), key=IdempotencyKey(SURROGATE, b"")),
    "lineage call": lambda store, c: store.create(
        NewConversation(id=new_id(), lineage=Lineage("sub_agent", c, None, new_id(), SURROGATE))
    ),
    "describe title": lambda store, c: store.describe(c, title=SURROGATE),
    "approvals": lambda store, c: store.change_approvals(c, f'["{SURROGATE}"]', if_approvals="[]"),
    "describe tag": lambda store, c: store.describe(c, tags=((SURROGATE, "value"),)),
    "list by tag": lambda store, c: store.conversations(tags=(("key", SURROGATE),)),
    "fork settings": lambda store, c: store.fork(c, NewFork(id=new_id(), cache="{}", settings=SURROGATE)),
    "fork cache": lambda store, c: store.fork(c, NewFork(id=new_id(), cache=SURROGATE)),
    "rewind title": lambda store, c: store.rewind(c, NewFork(id=new_id(), cache="{}", title=SURROGATE), before="1-1"),
    "note settings": lambda store, c: store.note(c, new_id(), exchange("a"), settings=SURROGATE),
    "note cache": lambda store, c: store.note(c, new_id(), exchange("a"), cache=SURROGATE),
    "note event": lambda store, c: store.note(c, new_id(), [says(SURROGATE)]),
    "state key": lambda store, c: store.note(c, new_id(), [NewEvent(StateChange(((SURROGATE, "1"),)))]),
    "opaque kind": lambda store, c: store.note(c, new_id(), [NewEvent(Opaque(SURROGATE, '{"kind":"x"}'))]),
    "origin": lambda store, c: store.note(c, new_id(), [NewEvent(UserMessage((Text("a"),)), origin=SURROGATE)]),
    "begin input": lambda store, c: store.begin(c, new_id(), input=SURROGATE),
    "begin key": lambda store, c: store.begin(c, new_id(), key=IdempotencyKey(SURROGATE, b"")),
    "begin onto": lambda store, c: store.begin(c, new_id(), onto=Onto(SURROGATE, None)),
    "rename": lambda store, c: store.rename(c, SURROGATE),
}


@pytest.mark.parametrize("attempt", WITH_SURROGATES.values(), ids=list(WITH_SURROGATES))
async def test_text_that_is_not_valid_unicode_is_refused_cleanly(
    store: SqliteStore, conversation: str, attempt: Attempt
) -> None:
    with unchanged(store):
        error = await refused(attempt, store, conversation)
    str(error).encode()
    assert (await store.read(conversation)).status == "idle"


WITH_NUL: dict[str, Attempt] = {
    "create title": lambda store, c: store.create(NewConversation(id=new_id(), title="a\0b")),
    "create key": lambda store, c: store.create(NewConversation(id=new_id()), key=IdempotencyKey("a\0b", b"")),
    "lineage call": lambda store, c: store.create(
        NewConversation(id=new_id(), lineage=Lineage("sub_agent", c, None, new_id(), "a\0b"))
    ),
    "describe tag": lambda store, c: store.describe(c, tags=(("key", "a\0b"),)),
    "list by tag": lambda store, c: store.conversations(tags=(("key", "a\0b"),)),
    "hold": lambda store, c: store.hold(c, new_id(), "a\0b"),
}


@pytest.mark.parametrize("attempt", WITH_NUL.values(), ids=list(WITH_NUL))
async def test_text_with_a_nul_is_refused_on_every_database(
    store: SqliteStore, conversation: str, attempt: Attempt
) -> None:
    """PostgreSQL takes none in its texts. In messages and documents it is escaped, as in all of JSON."""
    with unchanged(store):
        await refused(attempt, store, conversation)


async def test_messages_and_documents_may_have_a_nul(store: SqliteStore, conversation: str) -> None:
    document = json.dumps("a\0b")
    await store.note(conversation, new_id(), [says("a\0b")], settings=document)
    assert (await store.read(conversation)).settings == document
    assert (await store.events(conversation, last=1))[0].body == UserMessage((Text("a\0b"),))


async def test_a_turn_whose_error_is_not_valid_unicode_can_be_ended(store: SqliteStore, conversation: str) -> None:
    """A tool's output cut in half is a likely reason to fail; it must not keep the turn from ending."""
    turn = await begun(store, conversation)
    try:
        record = await store.fail(turn, TurnError("tool_failed", SURROGATE))
    except ForkpointError:
        record = await store.fail(turn, TurnError("tool_failed", "cut off"))
    except UnicodeError as raw:
        pytest.fail(f"the turn is still running, and its caller gets a bare {raw!a}")
    assert record.outcome == "failed"
    assert (await store.read(conversation)).status == "idle"


async def test_a_turn_goes_on_after_text_that_was_refused(store: SqliteStore, conversation: str) -> None:
    turn = await begun(store, conversation)
    with unchanged(store):
        for attempt in (store.journal, store.commit, store.wait):
            assert isinstance(await refused(attempt, turn, [says(SURROGATE)]), NotWhole)
    assert (await store.commit(turn, exchange("valid"))).revision == 2


async def test_what_a_commit_brings_besides_events_is_checked_too(store: SqliteStore, conversation: str) -> None:
    turn = await begun(store, conversation)
    aside = NewFork(id=new_id(), cache="{}")
    refusals: list[tuple[dict[str, object], ErrorKind]] = [
        ({"settings": "x" * (5 * MB)}, TooLarge),
        ({"settings": "{"}, NotWhole),
        ({"settings": SURROGATE}, NotWhole),
        ({"aside": replace(aside, id="no-id")}, BadName.bad_id),
        ({"aside": replace(aside, name="a b")}, BadName),
        ({"aside": replace(aside, title="x" * 1025)}, TooLarge),
        ({"aside": replace(aside, cache="{")}, NotWhole),
    ]
    for more, kind in refusals:
        with unchanged(store):
            assert (await refused(store.commit, turn, exchange("valid"), **more)).code == kind.code, more
    assert (await store.commit(turn, exchange("valid"), aside=aside)).revision == 2


@pytest.mark.parametrize("position", [Position(0, 0), Position(-1, -1), Position(1 << 40, 1), Position(1, 1 << 70)])
async def test_a_place_that_no_event_can_have_is_no_place_for_a_turn(
    store: SqliteStore, conversation: str, position: Position
) -> None:
    with unchanged(store):
        error = await refused(store.begin, conversation, new_id(), onto=Onto(conversation, position))
    assert isinstance(error, BadPosition)


# What was accepted can be read.


@pytest.mark.parametrize("payload", ["3", "null", "[]", '"text"', "{}", '{"kind": 7}'])
async def test_an_opaque_event_never_makes_a_conversation_unreadable(
    store: SqliteStore, conversation: str, payload: str
) -> None:
    try:
        await store.note(conversation, new_id(), [NewEvent(Opaque("new", payload))])
    except NotWhole:
        return
    try:
        await store.events(conversation)
    except Exception as raw:
        pytest.fail(f"{payload} was committed, and no event of the conversation can be read any more: {raw!r}")
    assert (await store.verify(conversation)).flaws == ()


async def test_a_key_for_idempotency_has_a_limit_too(store: SqliteStore) -> None:
    with unchanged(store):
        error = await refused(store.create, NewConversation(id=new_id()), key=IdempotencyKey("x" * (5 * MB), b""))
    assert error.code in ("too_large", "bad_name")
