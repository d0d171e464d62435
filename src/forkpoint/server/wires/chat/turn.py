"""One chat completion, from its body to its answer.

Nothing is changed before the turn begins, and nothing but what a committed turn changes: a conversation that is made or
forked for a request is a draft until then; other settings, another place and what they set aside come with the commit.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Literal

from fastapi import Response
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, TurnStarted, Update
from forkpoint.backend.messages import Given
from forkpoint.backend.names import with_title
from forkpoint.backend.protocol import Draft, ForkOptions, How
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import LocalBackend
from forkpoint.engine.turns.plan import check_open
from forkpoint.errors import (
    AlreadyExists,
    BadRequest,
    Busy,
    CallNotOpen,
    ForkpointError,
    KeyReused,
    NotFound,
    Stale,
    TurnCancelled,
    TurnOpen,
)
from forkpoint.events import AssistantMessage, Event, Text, ToolResult
from forkpoint.history.client_view import Match, Seen, after, extended, match, seen, told
from forkpoint.ids import new_id
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.server.api.replies import first_of
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.http.door import GONE
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.stream import EventStream, until_gone
from forkpoint.server.services import Services
from forkpoint.server.wires.chat.answer import Chunks, FinishedAnswer, completion, finish_of, handed, visible
from forkpoint.server.wires.chat.errors import refusal, should_retry
from forkpoint.server.wires.chat.memory import Entry, Key
from forkpoint.server.wires.chat.messages import Listed, as_asked, imported, outline_of, read_list
from forkpoint.server.wires.chat.request import CompletionRequest, digest_of, read_request
from forkpoint.server.wires.chat.service import ChatService, Dressed, Wish
from forkpoint.server.wires.chat.stream import FIRST, ChunkStream
from forkpoint.server.wires.identity import IGNORED, STATUS, TURN, Identity, read_identity
from forkpoint.store.records import ConversationRecord, Onto


class Finding:
    """The conversation of a request's name, and what is in memory of it."""

    def __init__(
        self, chat: ChatService, backend: LocalBackend, tenant: str, identity: Identity, asked: CompletionRequest
    ) -> None:
        self._chat = chat
        self._backend = backend
        self._identity = identity
        self._asked = asked
        self.place: Key = (tenant, identity.name)
        self.is_by_id = False  # named by its id: what is in memory is there under its name

    async def find(self, *, fresh: bool) -> ConversationRecord | None:
        """The conversation of this name, as it is known here or as it is in the store."""
        entry = self._chat.hot.get(self.place)
        known = None if entry is None or fresh else self._backend.known(entry.id)
        if known is not None and known.name == self._identity.name:  # it may have lost its name to another
            return known
        record = await self._backend.named(self._identity.name)
        if record is None:
            self._chat.hot.forget(self.place)
        elif record.name != self._identity.name:
            self.is_by_id = True
        elif entry is None or entry.id != record.id:
            self._chat.hot.put(self.place, Entry(record.id))
        return record

    async def origin(self, record: ConversationRecord | None) -> ConversationRecord | None:
        """The conversation as this request wants it to have begun. A draft that began otherwise makes way for it.

        Raises `NotFound` for a source that is not there, `AlreadyExists` for a conversation that is no fork of it.
        """
        wanted = self._identity.source
        if record is not None and record.draft and record.status != "idle":
            return record  # it is being made right now, and is busy
        if wanted is None:
            if record is None or not record.draft or (record.lineage.kind == "root" and self._is_as_said(record)):
                return record
            await self._backend.unname(record)
            return None
        source = await self._backend.named(wanted.name)
        if source is None or source.draft:
            raise NotFound("source of a fork", wanted.name)
        if record is not None:
            is_fork = record.lineage.kind == "fork" and record.lineage.source == source.id
            if not record.draft:
                if not is_fork:
                    raise AlreadyExists("conversation of another origin", record.name)
                return record
            if is_fork and record.lineage.at == await self._backend.end_of(wanted.turn, source):
                return record
            await self._backend.unname(record)
        options = ForkOptions(id=new_id(), name=self._identity.name, chosen=True, at=wanted.turn)
        await self._backend.fork(source.id, options, draft=True)
        made = await self._backend.named(self._identity.name)
        if made is not None:
            self._chat.hot.put(self.place, Entry(made.id))
        return made

    def draft(self, settings: Settings) -> Draft:
        """A conversation that a turn is to make."""
        title, tags = self._described
        return Draft(id=new_id(), name=self._identity.name, settings=settings, title=title, tags=tags)

    def hot(self, id: str) -> Entry | None:
        """What is in memory of a conversation that is used now, from now on at least; None if nothing is kept."""
        if self.is_by_id:
            return None
        entry = self._chat.hot.get(self.place)
        if entry is None or entry.id != id:
            entry = Entry(id)
            self._chat.hot.put(self.place, entry)
        return entry

    def _is_as_said(self, draft: ConversationRecord) -> bool:
        """Whether a draft has the title and the tags that this request would give it."""
        title, tags = self._described
        return (draft.title, dict(draft.tags)) == (title, tags)

    @property
    def _described(self) -> tuple[str | None, dict[str, str]]:
        tags = dict(self._asked.metadata)
        if self._asked.user:
            tags.setdefault("user", self._asked.user)
        return with_title(None, tags)


class Begun(Struct, frozen=True):
    """What a turn is begun with."""

    given: tuple[Given, ...]
    onto: Onto | None = None
    seen: Sequence[Seen] = ()  # of the path that it stands on, where the list is the client's truth


class Placing:
    """A client's list, and the conversation that it is for. ``has_key``: it may be one that was answered before."""

    def __init__(
        self, chat: ChatService, backend: LocalBackend, place: Key, listed: Listed, *, is_full: bool, has_key: bool
    ) -> None:
        self._chat = chat
        self._backend = backend
        self._place = place
        self._tenant, _ = place
        self._list = listed
        self._is_full = is_full
        self._has_key = has_key

    async def begin(self, record: ConversationRecord | None) -> Begun:
        """What a turn is given there, and where it stands. Raises `CallNotOpen`."""
        said: tuple[Given, ...] = () if self._list.message is None else (self._list.message,)
        if record is None or record.head.position is None:
            return Begun((*self._taken_over(), *said))
        if self._is_full:
            return await self._where(record, said)
        self._check_open(record)
        return Begun((*await self._results(record), *said))

    async def remember(
        self, turn: Turn, begun: Begun, record: ConversationRecord | None, entry: Entry | None, *, has_form: bool
    ) -> None:
        """Keeps what the next request will want to know. ``record`` is how the conversation stood before the turn."""
        if record is not None and begun.onto is None:  # what it was is a part of what it is now
            self._chat.seen.forget((self._tenant, record.head.digest))
        if entry is None or not self._is_full:
            return
        now = self._backend.known(turn.conversation) or await self._backend.named(turn.conversation)
        if now is not None and now.head.turn == turn.id:
            events = [event for event in turn.events if isinstance(event, Event)]
            path = extended(begun.seen, events)
            self._chat.seen.put((self._tenant, now.head.digest), path, len(path) + 1)
            entry.expected = self._expected(now.head.digest, turn, has_form=has_form)

    async def _results(self, record: ConversationRecord) -> tuple[ToolResult, ...]:
        """The results that are news: before a new message, those of calls that were answered before are none.

        Raises `CallNotOpen` for one of a call that never was.
        """
        open = record.head.open_calls.client
        others = [one.call_id for one in self._list.results if one.call_id not in open]
        if self._list.message is None or not others:
            return self._list.results
        asked = await self._backend.events(record.id, kinds=("tool_call",))
        check_open(record.name, [event.envelope.call_id or "" for event in asked], others)
        return tuple(one for one in self._list.results if one.call_id in open)

    def _taken_over(self) -> list[Given]:
        """The whole list before the new message. Results that end it must be of calls in it."""
        if self._list.message is not None:
            return imported((*self._list.before, *self._list.results))
        return imported(self._list.before, self._list.results)

    def _check_open(self, record: ConversationRecord) -> None:
        """Raises `CallNotOpen` if there is nothing but results of calls that are not open.

        With a key it may be a request that was answered before, which is looked for first.
        """
        if not self._has_key and self._list.message is None:
            check_open(record.name, record.head.open_calls.client, [one.call_id for one in self._list.results])

    async def _where(self, record: ConversationRecord, said: tuple[Given, ...]) -> Begun:
        """Where in the conversation the client's list goes on, and what of the list is not there."""
        entry = self._chat.hot.get(self._place)
        outline = outline_of(self._list.before)
        if entry is not None and entry.expected == (record.head.digest, outline) and not self._list.results:
            known = self._chat.seen.get((self._tenant, record.head.digest))
            if known is not None:
                return Begun(said, seen=known)  # the list is as it was left, and nothing has to be compared
        exchanges = told(self._list.before)
        branches = [record]
        paths = [await self._seen(record)]
        found = match(exchanges, paths) if exchanges else after(self._list.before, paths)
        is_plain = found.is_head if not exchanges else found.is_exact and not found.start
        is_plain = is_plain and found.length == len(exchanges)
        if not is_plain:  # another branch may be nearer to it
            for branch in await self._backend.set_aside(record.id):
                branches.append(branch)
                paths.append(await self._seen(branch))
            found = match(exchanges, paths) if exchanges else after(self._list.before, paths)
        branch, path = branches[found.branch], paths[found.branch]
        upto = exchanges[found.length - 1].upto if found.length else len(self._list.before) if found.start else 0
        rest = self._list.before[upto:]
        onto = None if found.is_head and found.branch == 0 else _onto(found, branch)
        given = _continued(self._list, rest)
        if not rest and onto is None:
            self._check_open(record)
            given = await self._results(record)
        return Begun((*given, *said), onto, path[: found.start + found.length] if onto else path)

    async def _seen(self, record: ConversationRecord) -> Sequence[Seen]:
        """The exchanges of a path, from memory if they are there."""
        place = (self._tenant, record.head.digest)
        known = self._chat.seen.get(place)
        if known is None:
            known = seen(await self._backend.events(record.id)) if record.head.position is not None else []
            self._chat.seen.put(place, known, len(known) + 1)
        return known

    def _expected(self, head: bytes, turn: Turn, *, has_form: bool) -> tuple[bytes, int] | None:
        """What a client will send next that changes nothing: its list, its message and what it was shown."""
        text, _ = visible(turn.events, only_last=has_form)
        if self._list.message is None or not text or handed(turn.events):
            return None
        outline = outline_of((*self._list.before, self._list.message, AssistantMessage((Text(text),))))
        return None if outline is None else (head, outline)


def _onto(found: Match, branch: ConversationRecord) -> Onto:
    """A place in the family. At the end of a branch, its notes belong to it too."""
    return Onto(branch.id, branch.head.position if found.is_head else found.at)


def _continued(listed: Listed, rest: Sequence[object]) -> tuple[Given, ...]:
    """What a turn is given before the new message: what the path lacks of the list, and results of open calls."""
    if not rest:
        return listed.results
    before = listed.before[len(listed.before) - len(rest) :]
    if listed.message is not None:
        return tuple(imported((*before, *listed.results)))
    return tuple(imported(before, listed.results))


_log = logging.getLogger("forkpoint.server")

TRIES = 8
"""How often a request looks again when others move its conversation while it looks."""


class Conversing:
    """A request for a conversation, on its way to a turn."""

    def __init__(
        self,
        services: Services,
        tenant: str,
        asked: CompletionRequest,
        identity: Identity,
        agent: str,
        *,
        request: str,
        key: str | None,
    ) -> None:
        self._chat = services.chat
        self._turns = services.turns
        self._backend = services.tenants.backend(tenant)
        self._settings = services.settings
        self._tenant = tenant
        self._asked = asked
        self._identity = identity
        self._agent = agent
        self._request = request
        self._key = key
        self._list = read_list(asked.messages)
        self._is_full = identity.history == "full"
        self._finding = Finding(self._chat, self._backend, tenant, identity, asked)
        self._placing = Placing(
            self._chat, self._backend, self._finding.place, self._list, is_full=self._is_full, has_key=key is not None
        )
        self._is_there = False  # whether the conversation was found
        self.status: Literal["created", "continued"] = "continued"
        self.answers: Agent | None = None  # who does, once that is known

    async def run(self, tell: Callback) -> Turn:
        """The turn. Raises what kept it from beginning, or what ended it; then the conversation is as it was."""
        begun = supersede = False

        def told(update: Update) -> None:
            nonlocal begun
            if isinstance(update, TurnStarted):
                begun = True
                self._chat.refused.forget(self._finding.place)
                self._finding.hot(update.conversation)  # also if it fails, and leaves a draft
            tell(update)

        with self._chat.hot.busy(self._finding.place):
            for left in reversed(range(TRIES)):
                try:
                    return await self._try(told, fresh=left < TRIES - 1, supersede=supersede)
                except ForkpointError as error:
                    if begun:
                        raise
                    if not left or not self._is_worth_another_look(error):
                        raise self._by_its_name(error) from None
                    supersede = supersede or isinstance(error, TurnOpen)
        raise AssertionError("the last try returns or raises")

    def _is_worth_another_look(self, error: ForkpointError) -> bool:
        """Whether what was known of the conversation is out of date."""
        match error:
            case Stale() | AlreadyExists(what="conversation"):
                return True  # somebody was faster
            case KeyReused():
                return not self._is_there  # perhaps by this very request, which has made it meanwhile
            case NotFound(what="conversation"):
                return self._chat.hot.get(self._finding.place) is not None
            case TurnOpen(outcome="interrupted"):
                return True  # its process is gone, and nobody can go on with it through this API
            case _:
                return False

    def _by_its_name(self, error: ForkpointError) -> ForkpointError:
        """An error about the conversation, as the client knows it."""
        name = self._identity.name
        match error:
            case Stale():
                return Busy(name, "after turn")  # it moves faster than it can be looked at
            case Busy(turn=turn):
                return Busy(name, turn)
            case TurnOpen(turn=turn, outcome=outcome):
                return TurnOpen(name, turn, outcome)
            case CallNotOpen(call=call, why=why):
                return CallNotOpen(call, name, why)
            case _:
                return error

    async def _try(self, tell: Callback, *, fresh: bool, supersede: bool) -> Turn:
        is_retry, wants_origin = self._identity.is_retry, self._identity.source is not None
        record = await self._finding.find(fresh=fresh or bool(self._list.results) or is_retry or wants_origin)
        if record is not None and record.draft and not is_retry:
            record = await self._finding.find(fresh=True)
        # From here on it is this record that all is decided by: if it has moved since, the turn does not begin.
        if record is not None and is_retry and (turn := await self._joined(record, tell)) is not None:
            return turn
        if wants_origin or (record is not None and record.draft):
            record = await self._finding.origin(record)
        self._is_known(record)
        dressed, settings = self._dressed(record)
        self.answers = dressed.agent
        begun = await self._placing.begin(record)
        draft = self._finding.draft(settings) if record is None else None
        known: Draft | ConversationRecord | None = draft or record
        assert known is not None
        turn = await self._backend.run(
            known.id,
            dressed.agent,
            begun.given,
            draft=draft,
            supersede=supersede,
            key=self._key,
            if_revision=None if record is None else record.revision,
            how=How(
                settings=settings,
                onto=begun.onto,
                options=self._asked.options,
                attended=False,
                final=self._asked.stream,
                request=self._request,
            ),
            tell=tell,
        )
        try:
            entry, has_form = self._finding.hot(turn.conversation), dressed.agent.output is not None
            await self._placing.remember(turn, begun, record, entry, has_form=has_form)
        except Exception:  # it is committed, and whatever this is does not change that
            _log.exception("what a turn leaves in memory could not be kept")
        return turn

    async def _joined(self, record: ConversationRecord, tell: Callback) -> Turn | None:
        """The turn that this very request began when it was sent before. None if it has to be run anew.

        A client that gave up waiting has gone, and its turn is being stopped: that one is not joined, but waited for.
        """
        if self._chat.refused.get(self._finding.place) == self._request:
            return None  # it was not even begun
        await self._backend.end_what_could_not_be_ended(record.id)  # then it is known whether it was committed
        same = await self._backend.turn_of_request(record, self._request)
        if same is None:
            return None
        first = record.lineage.at if record.lineage.kind == "fork" else None
        self.status = "created" if same.base == first else "continued"
        here = self._turns.feed(self._tenant, record.id)
        if here is not None and here.is_left:
            await here.ended.wait()
            return None
        try:
            return await self._backend.join(same, tell)
        except TurnCancelled:
            if here is not None:
                raise  # it was not for want of a client
            return None

    def _is_known(self, record: ConversationRecord | None) -> None:
        self._is_there = record is not None
        is_new = record is None or record.draft or record.head.position is None  # sub-agents keep what else is a draft
        self.status = "created" if is_new else "continued"

    def _dressed(self, record: ConversationRecord | None) -> tuple[Dressed, Settings]:
        """The agent as it answers here, and the settings that say so."""
        now = None if record is None or record.head.position is None else Settings.from_json(record.settings)
        follows = self._is_full or now is None or (self._settings.system == "follow" and bool(self._list.system))
        wish = Wish(
            agent=self._agent,
            system=self._list.system if follows or now is None else now.system or "",
            tools=self._asked.tools,
            output=self._asked.output,
            effort=self._asked.reasoning_effort,
        )
        dressed = self._chat.wardrobe.dress(wish)
        if record is not None:
            workspace = Settings.from_json(record.settings).workspace if now is None else now.workspace
        else:
            workspace = self._chat.wardrobe.workspace(wish)
        settings = dressed.settings(workspace)
        if record is not None:
            stored = Settings.from_json(record.settings)
            settings = replace(settings, made=stored.made, placed=stored.placed)
        return dressed, settings


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
        self._speech: ChunkStream | None = None

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
        self._speech = speech = ChunkStream(holds=has_form)
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

    async def _begin(
        self, asked: CompletionRequest, agent: str, speech: ChunkStream, key: str | None
    ) -> tuple[Feed, bool]:
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

    async def _stream(self, asked: CompletionRequest, feed: Feed, speech: ChunkStream) -> Response:
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

    def _whole(self, asked: CompletionRequest, feed: Feed, *, only_last: bool) -> Response:
        if feed.error is not None:
            return self._refused(feed.error)
        turn = feed.result
        assert isinstance(turn, Turn)
        text, reasoning = visible(turn.events, only_last=only_last)
        said = FinishedAnswer(
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

    def _headers(self, asked: CompletionRequest) -> dict[str, str]:
        headers = self._named()
        if self._conversing is not None:
            headers[STATUS] = self._conversing.status
        if ignored := self._ignored(asked):
            headers[IGNORED] = ", ".join(ignored)
        return headers

    def _ignored(self, asked: CompletionRequest) -> list[str]:
        """Fields that had no effect."""
        agent = self._agent
        ignored = [*asked.ignored, *(() if agent is None else asked.options.unsent(agent.llm.wire))]
        if self._identity is None and asked.store:
            ignored.append("store")
        if self._identity is not None and asked.prompt_cache_key is not None:
            ignored.append("prompt_cache_key")
        return ignored


def _both(tell: Callback, speech: ChunkStream) -> Callback:
    def told(update: Update) -> None:
        speech.hear(update)
        tell(update)

    return told
