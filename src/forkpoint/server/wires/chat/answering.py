"""One chat completion, from its body to its answer: whole, as a stream, or refused in OpenAI's own words."""

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path

from fastapi import Response

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.protocol import How
from forkpoint.backend.results import Turn
from forkpoint.errors import BadRequest, ForkpointError
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.server.api.replies import first_of
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.http.door import GONE
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.stream import EventStream, until_gone
from forkpoint.server.wires.chat.answers import Chunks, Said, completion, finish_of, handed, visible
from forkpoint.server.wires.chat.asked import Asked, digest_of, read_request
from forkpoint.server.wires.chat.conversing import Conversing
from forkpoint.server.wires.chat.dressing import Dressed, Wish
from forkpoint.server.wires.chat.identity import IGNORED, STATUS, TURN, Identity, read_identity
from forkpoint.server.wires.chat.lists import as_asked
from forkpoint.server.wires.chat.problems import refusal, should_retry
from forkpoint.server.wires.chat.streaming import FIRST, Speech


class Answering:
    """A request for a chat completion, and how it is answered."""

    def __init__(self, call: ApiCall, body: bytes) -> None:
        self._call = call
        self._body = body
        self._services = call.services
        self._chat = call.services.chat
        self._identity: Identity | None = None
        self._conversing: Conversing | None = None
        self._dressed: Dressed | None = None  # without a conversation
        self._feed: Feed | None = None
        self._speech: Speech | None = None

    async def answer(self) -> Response:
        """The answer, or why there is none."""
        try:
            return await self._answer()
        except ForkpointError as error:
            # A machine will send this again. Then it is not the turn that was committed before, though it may be equal;
            # but of a retry nobody knows whether it has begun when it was sent first.
            if self._identity is not None and not self._identity.is_retry and should_retry(error):
                request = digest_of(self._body).hex()
                self._chat.refused.put((self._call.tenant, self._identity.name), request, 1)
            return self._refused(error)

    async def _answer(self) -> Response:
        call, settings = self._call, self._services.settings
        sort = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if sort != JSON:  # a web page of anybody can send other types here without being asked
            raise BadRequest(f"its Content-Type must be {JSON}")
        once = call.key  # one that is none is refused, also where it has no effect
        asked = read_request(self._body, strict=settings.strict)
        agent, on_the_side = self._chat.models.find(asked.model)
        if not on_the_side:
            key = call.request.scope["forkpoint.key"]
            default = None if key is None else key.history
            self._identity = read_identity(call.request.headers, settings.conversation_headers, default)
        has_form = asked.output is not None or self._services.agents.named(agent).output is not None
        self._speech = speech = Speech(holds=has_form)
        feed, _ = await self._begin(asked, agent, speech, once)
        self._feed = feed
        feed.waiters += 1
        if asked.stream:
            return await self._stream(asked, feed, speech)
        if await self._is_gone(feed.ended.wait()):
            self._leave(feed)
            return Response(status_code=GONE)
        return self._whole(asked, feed, only_last=speech.holds)

    @property
    def _stops(self) -> bool:
        """Whether a turn stops when its client goes. Without a conversation nobody could ever fetch it."""
        return self._identity is None or self._services.settings.on_disconnect == "cancel"

    async def _begin(self, asked: Asked, agent: str, speech: Speech, key: str | None) -> tuple[Feed, bool]:
        """The turn that answers, once it has begun; and whether another request began it."""
        backend, tenant = self._call.backend, self._call.tenant
        if self._identity is not None:
            self._conversing = conversing = Conversing(
                self._services,
                tenant,
                asked,
                self._identity,
                agent,
                request=digest_of(self._body).hex(),
                key=key,
            )
            return await self._services.turns.start(tenant, lambda tell: conversing.run(_both(tell, speech)))
        given = as_asked(asked.messages)
        wish = Wish(agent=agent, tools=asked.tools, output=asked.output, effort=asked.reasoning_effort)
        self._dressed = dressed = self._chat.wardrobe.dress(wish)
        shared = asked.prompt_cache_key or dressed.agent.manifest.hash
        identity = own_identity(f"{tenant}\0beside conversations\0{shared}")
        how = How(options=asked.options, final=asked.stream)
        folder = self._chat.wardrobe.workspace(wish)
        workspace = None if folder is None else Path(folder)

        async def act(tell: Callback) -> Turn:
            told = _both(tell, speech)
            return await backend.once(dressed.agent, given, identity=identity, how=how, workspace=workspace, tell=told)

        return await self._services.turns.start(tenant, act)

    def _leave(self, feed: Feed) -> None:
        """The client has gone. The last one to go stops the turn, unless that is to be finished for nobody."""
        feed.waiters -= 1
        if self._stops:
            self._services.turns.abandon(self._call.tenant, feed, self._call.backend.cancel)

    async def _is_gone(self, *waits: Awaitable[object]) -> bool:
        """Waits for one of these, or for the client to go. Says whether it went."""
        gone = False

        async def watch() -> None:
            nonlocal gone
            await until_gone(self._call.request.receive)
            gone = True

        await first_of(*waits, watch())
        return gone and not (self._feed is not None and self._feed.ended.is_set())

    # How it is answered.

    async def _stream(self, asked: Asked, feed: Feed, speech: Speech) -> Response:
        """A stream. Until a model speaks, or for a few seconds, it can still be refused with a status of its own."""
        if await self._is_gone(speech.spoke.wait(), feed.ended.wait(), asyncio.sleep(FIRST)):
            self._leave(feed)
            return Response(status_code=GONE)
        if feed.error is not None:
            return self._refused(feed.error)
        shown = self._services.settings.reasoning != "off"
        id = f"chatcmpl-{feed.turn or feed.joined}"
        chunks = Chunks(id, asked.model, int(time.time()), include_usage=asked.include_usage, reasoning=shown)
        frames = speech.frames(feed, chunks, self._agent, self._call.id, usage=asked.include_usage)
        answer = EventStream(frames, gone=lambda: self._leave(feed))
        answer.raw_headers += [(name.lower().encode(), value.encode()) for name, value in self._headers(asked).items()]
        return answer

    def _whole(self, asked: Asked, feed: Feed, *, only_last: bool) -> Response:
        if feed.error is not None:
            return self._refused(feed.error)
        turn = feed.result
        assert isinstance(turn, Turn)
        text, reasoning = visible(turn.events, only_last=only_last)
        said = Said(
            id=f"chatcmpl-{turn.id}",
            model=asked.model,
            created=turn.started // 1_000_000,
            text=text,
            reasoning=reasoning,
            calls=handed(turn.events),
            finish=finish_of(turn.events),
            usage=turn.usage,
        )
        body = completion(said, self._services.settings.reasoning != "off")
        return Response(body, headers=self._headers(asked), media_type=JSON)

    def _refused(self, error: BaseException) -> Response:
        status, body, headers = refusal(error, self._call.id)
        if self._speech is not None and self._speech.ran_tools:  # no machine shall repeat what they did
            headers["x-should-retry"] = "false"
        return Response(body, status, headers | self._named())

    @property
    def _agent(self) -> Agent | None:
        """Who answers, once that is known."""
        if self._conversing is not None:
            return self._conversing.answers
        return None if self._dressed is None else self._dressed.agent

    def _named(self) -> dict[str, str]:
        """Which conversation and which turn this is about, as far as that is known."""
        named = {} if self._identity is None else {self._identity.header: self._identity.name}
        turn = None if self._feed is None else self._feed.turn or self._feed.joined
        return named if turn is None or self._identity is None else named | {TURN: turn}

    def _headers(self, asked: Asked) -> dict[str, str]:
        headers = self._named()
        if self._conversing is not None:
            headers[STATUS] = self._conversing.status
        if ignored := self._ignored(asked):
            headers[IGNORED] = ", ".join(ignored)
        return headers

    def _ignored(self, asked: Asked) -> list[str]:
        """Fields that had no effect."""
        agent = self._agent
        ignored = [*asked.ignored, *(() if agent is None else asked.options.unsent(agent.llm.wire))]
        if self._identity is None and asked.store:
            ignored.append("store")
        if self._identity is not None and asked.prompt_cache_key is not None:
            ignored.append("prompt_cache_key")
        return ignored


def _both(tell: Callback, speech: Speech) -> Callback:
    def told(update: Update) -> None:
        speech.hear(update)
        tell(update)

    return told
