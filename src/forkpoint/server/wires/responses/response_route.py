"""The calls of responses. Tests: tests/server/responses/test_background.py, test_removal.py."""

from typing import Annotated, Literal

from fastapi import Path, Query, Response
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import NoSuchTurn
from forkpoint.server.http.call import JSON, CallMade, Calls
from forkpoint.server.http.call import answer as document
from forkpoint.server.live.feed import tell_end
from forkpoint.server.wires.chat.route import NAMED
from forkpoint.server.wires.identity import CREATE, FORK_FROM, IGNORED, RETRIES, STATUS, TURN
from forkpoint.server.wires.responses import reply
from forkpoint.server.wires.responses.document import ResponseDocument, encode
from forkpoint.server.wires.responses.items.output import given_of, input_of
from forkpoint.server.wires.responses.items.paging import After, Include, ItemList, Limit, Order, page_of
from forkpoint.server.wires.responses.removal import remove_response
from forkpoint.server.wires.responses.request import ENCRYPTED, SERVER_CALLS, Echo, ResponseRequest
from forkpoint.server.wires.responses.socket import is_warm_up, warm_up

calls = Calls("responses")

_ID = Annotated[str, Path(description="A response's id.", examples=["resp_01a8f6e06c327e5a8b234dbf807c6e9d"])]
ASKS = (
    (NAMED, "The conversation that this is a turn of, by its name; it may be new.", "^([A-Za-z0-9._:-]{1,128})?$"),
    (CREATE, "`true`: a new conversation, whose name the server makes up.", "^(true|false|1|0|yes|no)?$"),
    (
        FORK_FROM,
        "NAME or NAME@TURN: the conversation is to be a fork of that one, at its head or after that turn.",
        "^([A-Za-z0-9._:-]{1,128}(@.*)?)?$",
    ),
    ("Idempotency-Key", "One key is one effect: the same key and body give the same response.", "^[!-~]{1,255}$"),
    (RETRIES, "OpenAI's packages count here: from 1 on, the same body joins the response that it began before.", None),
)
SAYS = (
    (NAMED, "The name of the conversation that the response is a turn of, or its id.", True),
    (STATUS, "`created`, `continued`, or `branched`: it stands on a fork.", False),
    (TURN, "The turn that the response is.", True),
    (IGNORED, "Fields and tools of the request that had no effect, if there are any.", False),
)


class ResponseEvent(Struct, frozen=True):
    """An event of a response's stream. Its other fields are those of its type, as OpenAI's clients know them."""

    type: str
    sequence_number: int


class ResponseDeleted(Struct, frozen=True):
    """A response that is not to be had any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


@calls(
    "POST",
    "/v1/responses",
    role="use",
    openai=True,
    takes=ResponseRequest,
    optional=False,
    gives=ResponseDocument,
    streams="events of a response, numbered from 0 on, until `response.completed` or `response.incomplete`, which is "
    "on disk then, or `response.failed`. Only with `stream` in the body",
    chunks=ResponseEvent,
    named_chunks=True,
    asks=ASKS,
    says=SAYS,
    raises=(
        "bad_name unsupported call_not_open bad_tool bad_agent bad_position key_reused previous_response_not_found "
        "model_not_found not_found exists conversation_locked turn_open cannot_resume trust_changed guards_lost "
        "broken_settings unsafe_settings turn_cancelled turn_lost too_many missing_key shutting_down turn_handed_over "
        "outcome_unknown turn_failed budget_exceeded"
    ),
)
async def create_response(call: CallMade) -> Response:
    """Answer an input, as OpenAI's Responses do.

    With `previous_response_id` it goes on after that response, on a fork if anything else stands there. With
    `conversation` it is a turn of that conversation. It commits, or nothing has moved.
    """
    body = await call.raw_body()
    return await warm_up(call, body) if is_warm_up(call) else await reply.answer(call, body)


@calls(
    "GET",
    "/v1/responses/{response}",
    role="read",
    openai=True,
    gives=ResponseDocument,
    streams="the events of the response after `starting_after`. Only with `stream`",
    chunks=ResponseEvent,
    named_chunks=True,
    raises="not_found",
)
async def get_response(
    call: CallMade,
    response: _ID,
    include: Include = None,
    stream: Annotated[bool, Query(description="Whether its events are told.")] = False,
    starting_after: Annotated[
        int, Query(ge=-1, le=2**53, description="The number of the last event that was read.")
    ] = -1,
    include_obfuscation: Annotated[bool | None, Query(description="No effect: no event is obfuscated.")] = None,
) -> Response:
    """A response that is stored, as it stands; or its events."""
    turn, echo = await reply.found_response(call, response)
    echo = _including(echo, include)
    if stream:
        return reply.streamed_again(call, turn, echo, starting_after)
    return Response(encode(reply.found_document(call, turn, echo)), media_type=JSON)


@calls(
    "DELETE",
    "/v1/responses/{response}",
    role="operate",
    openai=True,
    gives=ResponseDeleted,
    raises="not_found conversation_locked held",
)
async def delete_response(call: CallMade, response: _ID) -> Response:
    """Delete a response: its id is not known any more.

    If it is the end of a branch that nobody named, it is removed. In the middle of a history it stays, unseen.
    """
    turn, _ = await reply.found_response(call, response)
    await remove_response(call, turn)
    return document(ResponseDeleted(response))


@calls(
    "POST",
    "/v1/responses/{response}/cancel",
    role="use",
    openai=True,
    gives=ResponseDocument,
    raises="not_found outcome_unknown",
)
async def cancel_response(call: CallMade, response: _ID) -> Response:
    """Cancel a response, and give it as it ended. One that came to an end before is given as it is."""
    turn, echo = await reply.found_response(call, response)
    try:
        if turn.outcome in {"running", "interrupted"}:
            turn = await call.backend.turns.cancel(turn.conversation, turn.id)
        elif turn.outcome == "awaiting_approval":
            turn = await call.backend.turns.discard(turn.conversation, turn.id)
            tell_end(turn, call.services.watching.mailboxes(call.tenant, turn.conversation))
    except NoSuchTurn:
        turn, echo = await reply.found_response(call, response)
    return Response(encode(reply.found_document(call, turn, echo)), media_type=JSON)


@calls("GET", "/v1/responses/{response}/input_items", role="read", openai=True, gives=ItemList, raises="not_found")
async def list_input_items(
    call: CallMade,
    response: _ID,
    limit: Limit = 20,
    order: Order = "desc",
    after: After = None,
    include: Include = None,
) -> Response:
    """The items that a response was given by its own request, the last one first."""
    turn, echo = await reply.found_response(call, response)
    echo = _including(echo, include)
    items = input_of(turn.id, turn.events, echo)
    if not items and turn.outcome != "committed":  # nothing of it is on disk yet but what was asked
        items = given_of(turn.id, turn.given, echo)
    return document(page_of(items, limit=limit, order=order, after=after))


def _including(echo: Echo, include: list[str] | None) -> Echo:
    wanted = tuple(name for name in include or () if name in {ENCRYPTED, SERVER_CALLS})
    return echo if not wanted else replace(echo, include=(*echo.include, *wanted))
