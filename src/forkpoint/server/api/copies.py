"""Copies: conversations as a file, and a file as conversations.

All of it needs the role `operate`. A file has a conversation's whole settings: of an agent of the server these say
which programs it starts and where its secrets are, which no tenant is told otherwise; and whoever imports a file says
which agent and which standing approvals a conversation has. Tests: tests/server/test_copies.py.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Query, Response
from starlette.responses import StreamingResponse

from forkpoint.backend.options import ExportOptions
from forkpoint.engine import FORMATS
from forkpoint.errors import BadRequest
from forkpoint.server.api.conversations import tags_of
from forkpoint.server.http.call import ApiCall, CallMade, Calls, Conversation, answer
from forkpoint.wire.documents import ImportDocument, import_document

calls = Calls("copies")

EXPORT = FORMATS["forkpoint"].media_type
_TYPES = tuple(format.media_type.partition(";")[0] for format in FORMATS.values())
_FORMAT = Query(description=f"How it is written: {', '.join(FORMATS)}.")


@calls(
    "GET", "/api/conversations/{id}/export", role="operate", texts=_TYPES, raises="not_found bad_argument secret_inside"
)
async def export_conversation(
    call: CallMade,
    id: Conversation,
    scope: Annotated[
        Literal["conversation", "family"], Query(description="With its sub-agents and sides, or with all its family.")
    ] = "conversation",
    format: Annotated[str, _FORMAT] = "forkpoint",
) -> Response:
    """Get a conversation as a file, or its whole family.

    The file is written while it is sent. It is whole if its last line is there, as `forkpoint verify FILE` checks.
    Each conversation in it gets a record that says who exported it.
    """
    info, _ = await call.found(id)
    return await _streamed(call, ExportOptions(scope=scope, id=info.id, format=format), info.name)


@calls("GET", "/api/export", role="operate", texts=_TYPES, raises="bad_argument secret_inside")
async def export_all(
    call: CallMade,
    tag: Annotated[list[str] | None, Query(description="Only conversations with this tag: KEY=VALUE.")] = None,
    format: Annotated[str, _FORMAT] = "forkpoint",
) -> Response:
    """Get all your conversations as a file, family by family, or those with some tags."""
    tags = tags_of(tag or ())
    wanted = ExportOptions(scope="tags" if tags else "all", tags=tags, format=format)
    return await _streamed(call, wanted, "conversations")


@calls(
    "POST",
    "/api/import",
    role="operate",
    uploads=EXPORT,
    gives=ImportDocument,
    raises="bad_export import_refused exists busy turn_open too_large encoded_body",
)
async def import_export(
    call: CallMade,
    rename: Annotated[bool, Query(description="Give a conversation another name if its own is taken.")] = False,
) -> Response:
    """Bring the conversations of an export into the store, with their ids, costs and digests.

    All of it is checked first. Each family comes whole or not at all, and the same file again changes nothing. It needs
    the role `operate`, since a file says which agent and which standing approvals a conversation has.
    """
    sort = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != EXPORT:  # a web page of anybody can send other types here without being asked
        raise BadRequest(f"its Content-Type must be {EXPORT}")
    encoding = call.request.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"", "identity"}:
        raise BadRequest.encoded_body(encoding[:100])
    done = await call.backend.import_(call.request.stream(), rename=rename)
    for id in (*done.new, *done.grown):
        call.services.watching.moved(call.tenant, id)
    return answer(import_document(done))


async def _streamed(call: ApiCall, wanted: ExportOptions, name: str) -> Response:
    """An export as the answer. What refuses it does so before the answer begins."""
    chunks = call.backend.export(wanted)
    first = await anext(chunks, b"")
    about = FORMATS[wanted.format]
    named = {"content-disposition": f'attachment; filename="{name}{about.suffix}"', "cache-control": "no-store"}
    return StreamingResponse(_whole(first, chunks), media_type=about.media_type, headers=named)


async def _whole(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk
