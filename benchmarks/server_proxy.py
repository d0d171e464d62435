"""The floor under a server of conversations: a bare FastAPI app that passes a request on to the model, and no more.

It stores nothing, checks nothing and counts nothing; its client sends the whole history each time. Once with OpenAI's
client, as most would write it, and once with a bare HTTP client that hands on the bytes.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import openai
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from benchmarks.server_model import MODEL

_STREAM = "text/event-stream"


def create_app(model_url: str) -> FastAPI:
    """The app. ``/openai`` asks the model with OpenAI's client, ``/bytes`` with a bare one."""
    app = FastAPI()
    patient = openai.Timeout(600, connect=60)  # the defaults give up when the machine is busy
    client = openai.AsyncOpenAI(base_url=model_url, api_key="any", max_retries=0, timeout=patient)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=1000)
    bare = httpx2.AsyncClient(limits=limits, timeout=600)

    @app.post("/openai")
    async def with_openai(request: Request) -> Response:
        asked: Any = msgspec.json.decode(await request.body())
        if _STREAM not in request.headers.get("accept", ""):
            answer = await client.chat.completions.create(model=MODEL, messages=asked["messages"])
            return Response(msgspec.json.encode({"text": answer.choices[0].message.content}))

        async def frames() -> AsyncIterator[bytes]:
            pieces: Any = await client.chat.completions.create(model=MODEL, messages=asked["messages"], stream=True)
            async for piece in pieces:
                if piece.choices and (text := piece.choices[0].delta.content):
                    yield b"data: " + msgspec.json.encode({"text": text}) + b"\n\n"

        return StreamingResponse(frames(), media_type=_STREAM)

    @app.post("/bytes")
    async def with_bytes(request: Request) -> Response:
        asked: Any = msgspec.json.decode(await request.body())
        streamed = _STREAM in request.headers.get("accept", "")
        body = msgspec.json.encode({"model": MODEL, "messages": asked["messages"], "stream": streamed})
        said = {"content-type": "application/json"}
        if not streamed:
            answer = await bare.post(f"{model_url}/chat/completions", content=body, headers=said)
            return Response(answer.content)

        async def frames() -> AsyncIterator[bytes]:
            async with bare.stream("POST", f"{model_url}/chat/completions", content=body, headers=said) as answer:
                async for some in answer.aiter_bytes():
                    yield some

        return StreamingResponse(frames(), media_type=_STREAM)

    return app


class _Told(uvicorn.Server):
    """Says where it listens, and stops when whoever started it has gone."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)
        self._watch = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        self.should_exit = True


def listen(app: FastAPI) -> None:
    """Serves an app on a free port until whoever started this process has gone; says where."""
    config = uvicorn.Config(app, port=0, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    _Told(config).run()


if __name__ == "__main__":
    listen(create_app(sys.argv[1]))
