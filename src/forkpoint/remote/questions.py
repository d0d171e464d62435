"""Side questions to a conversation behind a server, and a look at what its turns send.
Tests: tests/remote/test_backend.py."""

from collections.abc import Sequence

from forkpoint.agent.agent import Agent
from forkpoint.backend.allowance import NOTHING
from forkpoint.backend.callbacks import Callback
from forkpoint.backend.options import Draft
from forkpoint.backend.results import SideAnswer
from forkpoint.errors import NotFound
from forkpoint.events import UserMessage
from forkpoint.llm.prompt.inspection import Inspection
from forkpoint.llm.prompt.misses import CacheReport
from forkpoint.remote.connection import Delivery, Lost, ServerConnection, ServerRequest, quoted
from forkpoint.remote.requests import asked, created, path_of, streamed, update_of, without
from forkpoint.sse import Frame
from forkpoint.wire.documents import SideAnswerDocument, side_answer_of


class RemoteQuestions:
    """Asks a server. A side question is never asked twice: it costs money, and its answer cannot be read again."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def ask(
        self,
        id: str,
        agent: Agent | None,
        messages: Sequence[UserMessage],
        *,
        allow: frozenset[str] = NOTHING,
        tell: Callback,
    ) -> SideAnswer:
        request = streamed(f"{path_of(id)}/ask", asked(messages) | without(allow, agent))
        sending, patience = Delivery(), self._connection.patience()

        def each(frame: Frame) -> SideAnswer | Exception | None:
            if frame.event == "answer":
                return self._connection.understood(frame.data, SideAnswerDocument, side_answer_of)
            if frame.event == "error":
                return self._connection.told(frame.data)
            if (update := update_of(self._connection, frame)) is not None:
                tell(update)
            return None

        while True:
            try:
                async with self._connection.opened(request, sending) as response:
                    outcome: SideAnswer | Exception = await self._connection.hear(response, each)
                    if isinstance(outcome, Exception):
                        raise outcome
                    return outcome
            except Lost as lost:
                if sending.received:  # it costs money, and its answer cannot be asked for again
                    raise lost.error from lost.__cause__
                await patience.again(lost)

    async def request(
        self,
        id: str,
        agent: Agent | None,
        messages: Sequence[UserMessage],
        *,
        draft: Draft | None = None,
        allow: frozenset[str] = NOTHING,
    ) -> Inspection:
        body = asked(messages) | created(draft) | without(allow, agent)
        request = ServerRequest(method="POST", path=f"{path_of(id)}/request", body=body)
        return await self._connection.read(request, Inspection)

    async def sent(
        self, id: str, agent: Agent | None, turn: str | None, *, allow: frozenset[str] = NOTHING
    ) -> Inspection:
        query = [("allow", one) for one in sorted(allow)] + ([] if turn is None else [("turn", turn)])
        request = ServerRequest(method="GET", path=f"{path_of(id)}/request", query=query)
        return await self._connection.read(request, Inspection)

    async def why(self, id: str, turn: str | None) -> CacheReport:
        if turn == "newest":  # a server's word for the newest turn, and nobody's id
            raise NotFound("turn", turn)
        named = "newest" if turn is None else quoted(turn, "turn")
        place = f"{path_of(id)}/turns/{named}/cache"
        return await self._connection.read(ServerRequest(method="GET", path=place), CacheReport)
