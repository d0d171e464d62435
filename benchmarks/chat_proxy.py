"""The floor under chat completions: a bare FastAPI app that passes a request on to the model, and no more.

It stores nothing, checks nothing and counts nothing. Once with a bare HTTP client that hands on the bytes, and once
with OpenAI's client, as most would write it.
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import openai
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import Struct

from benchmarks.server_proxy import listen

BYTES, CLIENT = "/bytes", "/openai"
_STREAM, _JSON = "text/event-stream", "application/json"


class _Asked(Struct):
    """The one thing that a proxy must know of a request."""

    stream: bool = False


_decoder = msgspec.json.Decoder(_Asked)


def create_app(model_url: str) -> FastAPI:
    """The app. ``/bytes`` asks the model with a bare client, ``/openai`` with OpenAI's."""
    app = FastAPI()
    url = f"{model_url}/chat/completions"
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1000)
    bare = httpx2.AsyncClient(limits=limits, timeout=600)
    patient = openai.Timeout(600, connect=60)  # the defaults give up when the machine is busy
    client = openai.AsyncOpenAI(base_url=model_url, api_key="any", max_retries=0, timeout=patient)

    @app.post(BYTES)
    async def with_bytes(request: Request) -> Response:
        body = await request.body()
        if not _decoder.decode(body).stream:
            answer = await bare.post(url, content=body, headers={"content-type": _JSON})
            return Response(answer.content, answer.status_code, media_type=_JSON)

        async def frames() -> AsyncIterator[bytes]:
            async with bare.stream("POST", url, content=body, headers={"content-type": _JSON}) as answer:
                async for some in answer.aiter_bytes():
                    yield some

        return StreamingResponse(frames(), media_type=_STREAM)

    @app.post(CLIENT)
    async def with_client(request: Request) -> Response:
        asked: Any = msgspec.json.decode(await request.body())
        if not asked.get("stream"):
            answer = await client.chat.completions.create(**asked)
            return Response(answer.model_dump_json(), media_type=_JSON)

        async def frames() -> AsyncIterator[bytes]:
            async for piece in await client.chat.completions.create(**asked):
                yield f"data: {piece.model_dump_json()}\n\n".encode()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type=_STREAM)

    return app


if __name__ == "__main__":
    listen(create_app(sys.argv[1]))
