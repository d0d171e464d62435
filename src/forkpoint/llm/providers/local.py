"""The models ``local/...``: llama.cpp in this process. Tests: tests/llm/local/test_engine.py."""

import msgspec

from forkpoint.errors import NoWeights
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.local.engine import Progress, engine_for, leave
from forkpoint.llm.local.weights import check_ready, find
from forkpoint.llm.request import Request
from forkpoint.llm.streams.chat import ChatStream


class LocalProvider:
    """Asks an engine of this process. Providers share the engines; the last one that closes frees them."""

    def __init__(self, *, progress: Progress | None = None) -> None:
        self._progress = progress

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        llm = request.llm
        try:
            path = find(llm.name)
        except NoWeights:
            path = check_ready(llm.name)  # says what else is missing, and that first
        engine = engine_for(path, self, model=llm.model, context_tokens=llm.context_tokens, progress=self._progress)
        stream = ChatStream(origin=request.rendering.manifest.origin, model=request.model, hearing=hearing)

        def heard(chunk: object) -> None:
            hearing.alive()
            stream.feed(chunk)

        await engine.chat(msgspec.json.decode(request.body), heard)
        return stream.answer()

    async def aclose(self) -> None:
        """Frees the models that no other provider of this process uses. A later call loads them again."""
        await leave(self)
