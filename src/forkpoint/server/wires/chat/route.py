"""Chat completions, as OpenAI's clients ask for them; and the models that they see.
Tests: tests/server/chat/test_document.py."""

from typing import Annotated

from fastapi import Path, Response

from forkpoint.server.http.call import CallMade, Calls, answer
from forkpoint.server.wires.chat import reply
from forkpoint.server.wires.chat.answer import ChatChunk, ChatCompletion, ModelDocument, ModelsDocument
from forkpoint.server.wires.chat.request import ChatRequest
from forkpoint.server.wires.identity import BRANCH, CREATE, FORK_FROM, HISTORY, IGNORED, RETRIES, SIDE, STATUS, TURN

calls = Calls("chat completions")

NAMED = "X-Conversation-Id"
ASKS = (
    (
        NAMED,
        "The conversation that this is a turn of, which may be new. The server's `conversation_headers` name it.",
        "^([A-Za-z0-9._:-]{1,128})?$",
    ),
    (CREATE, "`true`: a new conversation, whose name the server makes up.", "^(true|false|1|0|yes|no)?$"),
    (
        FORK_FROM,
        "NAME or NAME@TURN: the conversation is to be a fork of that one, at its head or after that turn.",
        "^([A-Za-z0-9._:-]{1,128}(@.*)?)?$",
    ),
    (
        HISTORY,
        "`latest`: only the list's end is new. `full`: all of it holds; what it departs from is kept in a branch.",
        "^(latest|full)?$",
    ),
    (
        SIDE,
        "`true`: this is asked beside the conversation, as a title is. `false`: it is not, whatever `side_rules` say.",
        "^(true|false|1|0|yes|no)?$",
    ),
    (
        "Idempotency-Key",
        "In a conversation, one key is one effect: the same key and body give the same result.",
        "^[!-~]{1,255}$",
    ),
    (RETRIES, "OpenAI's packages count here: from 1 on, the same body joins the turn that it has begun before.", None),
)
SAYS = (
    (NAMED, "The conversation's name, under the header that it was named with.", True),
    (
        STATUS,
        "In a conversation: `created`, `continued`, `branched` (the list goes on elsewhere than at the head), `side`.",
        False,
    ),
    (BRANCH, "The branch that the answer stands on, if the conversation's name does not point there.", False),
    (TURN, "The turn, in a conversation.", True),
    (IGNORED, "Fields of the request that had no effect, if there are any.", False),
)


@calls(
    "POST",
    "/v1/chat/completions",
    role="use",
    openai=True,
    takes=ChatRequest,
    optional=False,
    gives=ChatCompletion,
    streams="chunks until one has a finish reason, which is on disk then, and `[DONE]`; or, if it fails after it has "
    "begun, an error as the last one, without finish reason and `[DONE]`. Only with `stream` in the body",
    chunks=ChatChunk,
    asks=ASKS,
    says=SAYS,
    raises=(
        "bad_name unsupported no_new_user_message call_not_open bad_tool bad_agent bad_position key_reused "
        "model_not_found not_found exists busy turn_open cannot_resume trust_changed guards_lost broken_settings "
        "unsafe_settings turn_cancelled turn_lost too_many missing_key shutting_down turn_handed_over outcome_unknown "
        "turn_failed budget_exceeded"
    ),
)
async def create_chat_completion(call: CallMade) -> Response:
    """Answer a list of messages, as OpenAI's chat completions do.

    With `X-Conversation-Id` it is a turn of that conversation: it commits, or the conversation is as it was. Without,
    nothing is kept. If the agent calls tools of the client's, the answer ends there, and the next request has their
    results.
    """
    return await reply.answer(call, await call.raw_body())


@calls("GET", "/v1/models", role="read", openai=True, gives=ModelsDocument)
async def list_models(call: CallMade) -> Response:
    """The models that can be asked for: the server's agents, and the models that they have; each on the side too."""
    return answer({"object": "list", "data": call.services.chat.models.listed()})


@calls("GET", "/v1/models/{model:path}", role="read", openai=True, gives=ModelDocument, raises="model_not_found")
async def get_model(
    call: CallMade, model: Annotated[str, Path(description="A model's name.", examples=["gpt-5.6"], max_length=512)]
) -> Response:
    """One of the models that can be asked for, by any name that it has."""
    return answer(call.services.chat.models.one(model))
