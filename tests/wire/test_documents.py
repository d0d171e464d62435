"""Documents and problems can be read back into what they were made of, without loss: a server's client has what the
server has."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint import errors
from forkpoint.backend.results import Info, SideAnswer, Stats, Turn
from forkpoint.errors import (
    KINDS,
    CannotResume,
    ErrorKind,
    ForkpointError,
    McpFailed,
    ModelError,
    NoSecret,
    ServerError,
    StoreError,
    TurnCancelled,
    TurnFailed,
    class_of,
    fields_of,
)
from forkpoint.events import (
    AnyBody,
    Envelope,
    Event,
    Gone,
    NewEvent,
    Opaque,
    Position,
    StagedEvent,
    ToolResult,
    Usage,
    UserMessage,
    body_of,
    encode_body,
    seal,
)
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.store.values import Flaw, Lineage, Outcome, Status, TurnError, Verification
from forkpoint.wire.documents import (
    EventDocument,
    InfoDocument,
    SideAnswerDocument,
    StatsDocument,
    TurnDocument,
    UsageDocument,
    VerificationDocument,
    event_document,
    event_of,
    info_document,
    info_of_document,
    side_answer_document,
    side_answer_of,
    stats_document,
    stats_of,
    turn_document,
    turn_of,
    usage_document,
    usage_of,
    verification_document,
    verification_of,
)
from forkpoint.wire.problems import ErrorDocument, Problem, decode_problem, error_of, problem_of, public_turn

quick = settings(max_examples=40, deadline=None, database=None)

# Values of all sorts.

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.uuids().map(str)
COUNTS = st.integers(0, 2**62)
st.register_type_strategy(str, TEXTS)
st.register_type_strategy(int, COUNTS)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))

POSITIONS = st.builds(Position, st.integers(1, 2**62), st.integers(1, 2**62))
USAGES = st.builds(Usage)
BODIES = st.one_of(*(st.from_type(kind) for kind in get_args(AnyBody)))
OPAQUE = st.builds(
    lambda kind, more: Opaque(kind, json.dumps({"kind": kind, "later": more}, indent=1)),
    TEXTS.filter(lambda kind: kind not in {str(one.__struct_config__.tag) for one in get_args(AnyBody)}),
    st.recursive(st.none() | st.booleans() | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)


@st.composite
def contents(draw: st.DrawFn) -> tuple[Envelope, Any]:
    """An event's two halves, as a store has them; the body may have been erased since."""
    body = draw(BODIES | OPAQUE)
    new = NewEvent(body, response=draw(st.none() | st.integers(0, 99)), origin=draw(st.none() | TEXTS))
    envelope = seal(new, draw(COUNTS))
    return envelope, draw(st.sampled_from([body, body, body, body_of(envelope, None)]))


STAGED = contents().map(lambda halves: StagedEvent(*halves))
EVENTS = st.builds(lambda at, turn, halves: Event(at, turn, *halves), POSITIONS, IDS, contents())
TURNS = st.builds(
    Turn,
    id=IDS,
    conversation=IDS,
    outcome=st.sampled_from(get_args(Outcome)),
    given=st.lists(st.from_type(UserMessage) | st.from_type(ToolResult), max_size=3).map(tuple),
    events=st.lists(STAGED, max_size=4).map(tuple) | st.lists(EVENTS, max_size=4).map(tuple),
    usage=USAGES,
    error=st.none() | st.builds(TurnError),
    retry_of=st.none() | IDS,
    started=COUNTS,
    ended=st.none() | COUNTS,
    output=st.none(),
)
INFOS = st.builds(
    Info,
    tags=st.dictionaries(TEXTS, TEXTS, max_size=3),
    status=st.sampled_from(get_args(Status)),
    lineage=st.builds(Lineage, at=st.none() | POSITIONS),
    cache=st.builds(CacheIdentity, key=IDS, session=IDS),
)
SIDES = st.builds(SideAnswer, usage=USAGES)
STATS = st.builds(Stats, spent=USAGES, inherited=USAGES, family=USAGES)
FOUND = st.builds(Verification, flaws=st.lists(st.builds(Flaw), max_size=2).map(tuple))


def sent(document: Any, kind: Any) -> Any:
    """A document as it comes out of the wire."""
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)


# Documents.


@quick
@given(EVENTS | STAGED)
def test_an_event_comes_back_as_it_was(event: Event | StagedEvent) -> None:
    assert event_of(sent(event_document(event), EventDocument)) == event


@quick
@given(BODIES | OPAQUE)
def test_a_payload_is_sent_to_the_byte_whatever_version_wrote_it(body: AnyBody | Opaque) -> None:
    wire = msgspec.json.encode(event_document(StagedEvent(seal(NewEvent(body), 0), body)))
    assert encode_body(body).encode() in wire
    again = event_of(msgspec.json.decode(wire, type=EventDocument)).body
    assert not isinstance(again, Gone)
    assert encode_body(again) == encode_body(body)


def test_the_numbers_and_the_order_of_what_a_newer_version_wrote_are_kept() -> None:
    payload = '{"z":1.0,"kind":"later",  "a":1e2,"big":123456789012345678901234567890}'
    event = StagedEvent(Envelope("later", 1), Opaque("later", payload))
    assert event_of(sent(event_document(event), EventDocument)).body == Opaque("later", payload)


@quick
@given(TURNS)
def test_a_turn_comes_back_as_it_was_however_it_ended(turn: Turn) -> None:
    again = turn_of(sent(turn_document(turn, events=True), TurnDocument))
    assert again == turn
    assert (again.text, again.calls, again.waiting, again.cost) == (turn.text, turn.calls, turn.waiting, turn.cost)


@quick
@given(TURNS)
def test_a_turn_in_a_list_says_the_same_without_its_events(turn: Turn) -> None:
    short, whole = (sent(turn_document(turn, events=has), TurnDocument) for has in (False, True))
    assert short.events is msgspec.UNSET
    assert msgspec.structs.replace(whole, events=msgspec.UNSET) == short


@quick
@given(INFOS)
def test_a_conversation_comes_back_as_it_was(info: Info) -> None:
    assert info_of_document(sent(info_document(info), InfoDocument)) == info


@quick
@given(STATS)
def test_figures_come_back_as_they_were(stats: Stats) -> None:
    again = stats_of(sent(stats_document(stats), StatsDocument))
    assert again == stats
    assert (again.total, again.cost, again.cached_share) == (stats.total, stats.cost, stats.cached_share)


@quick
@given(USAGES, SIDES, FOUND)
def test_usage_side_answers_and_verifications_come_back_as_they_were(
    usage: Usage, side: SideAnswer, found: Verification
) -> None:
    assert usage_of(sent(usage_document(usage), UsageDocument)) == usage
    assert side_answer_of(sent(side_answer_document(side), SideAnswerDocument)) == side
    assert verification_of(sent(verification_document(found), VerificationDocument)) == found


def test_a_price_that_nobody_knows_is_null_and_not_nothing() -> None:
    document = usage_document(Usage(calls=2, nanodollars=5_000_000, unpriced=1))
    assert (document.dollars, document.nanodollars) == (None, 5_000_000)
    assert usage_of(sent(document, UsageDocument)).dollars is None
    assert usage_document(Usage(calls=1)).dollars == 0


# Errors.


ALL = [
    made
    for made in KINDS.values()
    if class_of(made).__module__.startswith(errors.__name__) and made is not ForkpointError
]
SAMPLES: dict[str, Any] = {
    "str": "sample",
    "int": 1234567,
    "int | str": 1234567,
    "bool": True,
    "float": 1.5,
    "float | None": 2.5,
    "str | None": "model",
}
SCRUBBED = (StoreError, CannotResume, McpFailed, NoSecret)  # they tell of files and programs


def sample(made: ErrorKind, text: str = "sample") -> ForkpointError:
    fields: dict[str, Any] = {}
    for field in fields_of(made).values():
        sort = field.annotation
        name = getattr(sort, "__name__", None) if isinstance(sort, type) else str(sort)
        if name in SAMPLES:
            fields[field.name] = text if SAMPLES[name] == "sample" else SAMPLES[name]
    return made(**fields)


def again_of(error: BaseException) -> ForkpointError:
    """The error that a client gets."""
    return error_of(decode_problem(msgspec.json.encode(problem_of(error, request_id="r"))))


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.code)
def test_an_error_is_raised_at_the_client_as_what_it_is(made: ErrorKind) -> None:
    error = sample(made)
    again = again_of(error)
    assert (type(again), again.code) == (class_of(made), made.code)
    if not issubclass(class_of(made), SCRUBBED):
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.code)
def test_an_error_can_be_told_whatever_its_fields_hold(made: ErrorKind) -> None:
    for text in ("\ud800", "\0", "{x}", "x" * 10_000):
        error = sample(made, text)
        assert again_of(error).code == made.code


def test_a_key_or_a_password_in_the_words_of_an_error_does_not_leave() -> None:
    said = "POST https://me:hunter2@models.example/v1 with Bearer abcdefgh12345678: sk-proj-12345678abc is not valid"
    told = "POST https://me:***@models.example/v1 with Bearer ***: sk-*** is not valid"
    cause = errors.ModelUnavailable.model_connection("openai/gpt-5.6", said)
    turn = Turn("t", "c", "failed", (), (), Usage(), error=TurnError(cause.code, str(cause)))
    for problem in (problem_of(cause), problem_of(TurnFailed("t", str(cause), turn=turn, cause=cause))):
        wire = msgspec.json.encode(problem).decode()
        assert told in wire
        for secret in ("hunter2", "abcdefgh12345678", "sk-proj"):
            assert secret not in wire


STORE = [made for made in ALL if issubclass(class_of(made), StoreError) and made is not StoreError]


@pytest.mark.parametrize("made", STORE, ids=lambda made: made.code)
def test_where_the_store_is_stays_with_the_server(made: ErrorKind) -> None:
    error = sample(made)
    for name in ("path", "detail", "kind"):
        if hasattr(error, name):
            setattr(error, name, "/srv/secret/forkpoint.db")
    assert b"/srv/secret" not in msgspec.json.encode(problem_of(error))


def test_functions_of_an_agent_that_are_missing_are_not_told_by_their_files() -> None:
    error = CannotResume("the tool tools.py:wipe in /srv/secret/tools.py")
    assert b"secret" not in msgspec.json.encode(problem_of(error))


@quick
@given(TURNS, st.sampled_from([TurnFailed, TurnCancelled]))
def test_a_failed_turn_brings_the_turn_and_its_cause(turn: Turn, made: type[TurnFailed]) -> None:
    cause = errors.RateLimited("openai/gpt-5.6", "slow down", retry_after=2.5)
    turn = msgspec.structs.replace(turn, error=TurnError(cause.code, str(cause)))
    again = again_of(made(turn.id, "it failed.", turn=turn, cause=cause))
    assert isinstance(again, made)
    assert (type(again), again.code) == (class_of(made), made.code)
    assert again.turn == turn
    assert type(again.cause) is errors.RateLimited
    assert again.__cause__ is again.cause
    assert vars(again.cause) == vars(cause)
    assert str(again) == str(made(turn.id, "it failed."))


def test_a_cause_within_a_cause_comes_too() -> None:
    inner = TurnFailed("a", "the child failed.", cause=ModelError("scripted/x", "no"))
    again = again_of(TurnFailed("b", "its sub-agent failed.", cause=inner))
    assert isinstance(again, TurnFailed)
    assert isinstance(again.cause, TurnFailed)
    assert type(again.cause.cause) is ModelError


def test_what_nobody_foresaw_is_told_without_its_words() -> None:
    for error in (ValueError("/srv/secret"), KeyError("sk-secret"), ForkpointError(), OSError(2, "x", "/srv/secret")):
        problem = problem_of(error, request_id="r-1")
        assert problem.error.code == "internal"
        assert b"secret" not in msgspec.json.encode(problem)
        again = again_of(error)
        assert isinstance(again, ServerError)
        assert again.server_code == "internal"
        assert again.request_id == "r"


def test_a_turn_that_failed_of_what_nobody_foresaw_is_shown_without_the_words() -> None:
    for code in ("error", "store_error", "disk_full", "a_code_of_a_plugin"):
        said = TurnError(code, "/srv/secret/forkpoint.db")
        turn = Turn("t", "c", "failed", (), (), Usage(), error=said)
        assert b"secret" not in msgspec.json.encode(public_turn(turn, events=True))
        failed = TurnFailed("t", "/srv/secret/forkpoint.db", turn=turn, cause=ValueError("/srv/secret"))
        assert b"secret" not in msgspec.json.encode(problem_of(failed))


@pytest.mark.parametrize(
    "document",
    [
        ErrorDocument("of_the_future", "It says so.", None, "r"),
        ErrorDocument("stale", "It says so.", None, "r", {"conversation": "c"}),
        ErrorDocument("stale", "It says so.", None, "r", {"conversation": "c", "expected": 1, "actual": 2, "more": 3}),
        ErrorDocument("error", "It says so.", None, "r"),
        ErrorDocument("too_large", "It says so.", None, "r", {"what": "x", "size": "large", "limit": None}),
    ],
    ids=["code", "fields missing", "fields added", "base", "types"],
)
def test_an_error_of_another_version_is_told_in_its_own_words(document: ErrorDocument) -> None:
    again = error_of(sent(Problem(document), Problem))
    assert isinstance(again, ServerError)
    assert (again.server_code, again.server_message, again.request_id) == (document.code, "It says so.", "r")
    assert "It says so." in str(again)
