"""One chat completion: a request on its way to a turn.

Nothing changes before the turn begins, and then only what a committed turn changes: a conversation that is made or
forked for a request is a draft until then; other settings, another place and what they set aside come with the commit.
Tests: the files of tests/server/chat that speak HTTP.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.names import with_title
from forkpoint.backend.options import Draft, How, NewTurn
from forkpoint.backend.results import Turn
from forkpoint.backend.settings import Settings
from forkpoint.engine import ClientList, NamedDraft, StartingPoint
from forkpoint.errors import (
    AlreadyExists,
    BadPosition,
    BadRequest,
    Busy,
    ForkpointError,
    KeyReused,
    NotFound,
    Stale,
    TurnOpen,
    Unpaired,
)
from forkpoint.events import AssistantMessage, Event, Text
from forkpoint.history.client_view import Seen, extended
from forkpoint.llm.prompt.identity import own_identity
from forkpoint.server.http.call import JSON, ApiCall
from forkpoint.server.live.feed import Feed
from forkpoint.server.live.runs import Act
from forkpoint.server.wires.answerers import Wish
from forkpoint.server.wires.body import digest_of
from forkpoint.server.wires.chat.answer import handed, visible
from forkpoint.server.wires.chat.memory import Aside, Entry, Key
from forkpoint.server.wires.chat.messages import as_asked, kept, outline_of, read_list
from forkpoint.server.wires.chat.request import read_request
from forkpoint.server.wires.chat.side_rules import SideRule
from forkpoint.server.wires.chat.stream import ChunkStream
from forkpoint.server.wires.errors import should_retry
from forkpoint.server.wires.identity import RETRIES, Identity, read_identity
from forkpoint.server.wires.retries import joined
from forkpoint.store import StoredConversation, StoredTurn
from forkpoint.updates import TurnStarted

_log = logging.getLogger("forkpoint.server")

TRIES = 8
"""How often a request looks again if others move its conversation while it looks."""


class ChatTurn:
    """A request for a chat completion, and the turn that answers it."""

    def __init__(self, call: ApiCall, body: bytes) -> None:
        """Reads the request. Raises what is wrong with it, before anything is looked up."""
        headers = call.request.headers
        if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise BadRequest(f"its Content-Type must be {JSON}")  # any web page can send other types unasked
        self.call = call
        self._services = call.services
        self._settings = call.services.settings
        self._chat = call.services.chat
        self._backend = call.backend
        self._placement = call.backend.placement
        self._key = call.key  # a malformed key is refused, even without a conversation, where it has no effect
        self.request = read_request(body, strict=self._settings.strict)
        self._digest = digest_of(body).hex()
        self._agent_name, is_side = self._chat.models.find(self.request.model)
        key = call.request.scope["forkpoint.key"]
        default = None if key is None else key.history
        self.named = read_identity(headers, self._settings.conversation_headers, default)
        self._rule: SideRule | None = None
        if self.named is not None and not is_side:
            if self.named.is_side is None:
                self._rule = self._chat.side_rules.find(self.request.messages, headers)
            is_side = self.named.is_side or self._rule is not None
        self.is_side = is_side
        has_form = self.request.output or self._services.agents.named(self._agent_name).output
        self.stream = ChunkStream(holds=has_form is not None)
        self._client_retries = RETRIES in headers  # OpenAI's own packages, which retry by themselves, count there
        self.has_begun = False  # whether a stream was begun: then no package retries it
        self.agent: Agent | None = None  # who answers, once that is known
        self.status: Literal["created", "continued", "branched", "side"] = "side" if is_side else "continued"
        self._is_there = False  # whether the conversation was found
        self.is_kept = self.named is not None
        self._is_apart = False  # whether the name's own branch is taken: then the turn has a branch of its own
        self._came = time.monotonic()
        self._aside: Aside | None = None  # a branch of its own, as equal requests find it
        self.branch: str | None = None  # the branch that the turn stands on, if the name does not point there
        self._is_by_id = False  # whether the client names it by its id: memory has it under its name

    async def start(self) -> tuple[Feed, bool]:
        """Begins the turn. Gives its feed, and whether another request began it. Raises what is wrong."""
        try:
            act = self._beside() if self.named is None or self.is_side else self._in_conversation()
            feed, is_joined = await self._services.turns.start(self.call.tenant, act)
        except ForkpointError as error:
            # A machine will send this again, and then it is not the turn that was committed before, even if equal. But
            # nobody knows of a retry whether it has begun when it was sent first.
            is_turn = self.named is not None and not self.is_side
            if is_turn and not self._identity.is_retry and should_retry(error):
                self._chat.refused.put(self._place, self._digest)
            raise
        if not self.is_kept or self._settings.on_disconnect == "cancel":
            # Without a conversation nobody could ever fetch the answer, so that turn always stops with its client.
            feed.stop = partial(self._services.turns.abandon, self.call.tenant, feed, self._backend.turns.cancel)
        return feed, is_joined

    async def see_where_it_stands(self, feed: Feed) -> None:
        """Finds out where a turn stands that was committed before. Its list alone would be a branch by now."""
        is_turn = self.named is not None and not self.is_side
        if not is_turn or feed.joined is None or feed.conversation is None or feed.conversation == self.branch:
            return
        record = await self._placement.by_name(feed.conversation)
        turn = None if record is None else await self._placement.on_path(record, feed.joined)
        if record is not None and turn is not None:
            self.branch, self.status = None, _status_at_head(record, turn)

    # Without a conversation, or beside it.

    def _beside(self) -> Act:
        """Answers the list as it is. The answer is kept as a side of the conversation that the request names.

        Without a name, or if nobody has said anything in that conversation yet, nothing is kept: what is asked beside
        a conversation does not begin it. Raises `Invalid`, `BadTool` or `BadAgent`.
        """
        given = as_asked(self.request.messages)
        wish = self._wish("")
        self.agent, settings = agent, settings = self._chat.wardrobe.dress(wish)
        shared = self.request.prompt_cache_key or agent.manifest.hash
        identity = own_identity(f"{self.call.tenant}\0beside conversations\0{shared}")
        folder = self._chat.wardrobe.workspace(wish)
        how = How(options=self.request.options, final=self.request.stream, retried=self._is_retried)

        async def act(tell: Callback) -> Turn:
            told = self._heard_by(tell)
            record = None if self.named is None else await self._find(fresh=True)
            if record is not None:
                title = None if self._rule is None else f"{self._rule.client}: {self._rule.asks}"
                here = replace(settings, workspace=folder)
                stored = replace(how, settings=here, attended=False, request=self._digest)
                new = NewTurn(given=kept(given), key=self._key, how=stored)
                if (there := await self._of_key(record)) is None:
                    draft = self._placement.side(record, here, identity, title, self._key)
                    new = replace(new, draft=draft)
                self.branch = draft.id if there is None else there.id
                await self._until_left(self.branch)
                return await self._backend.turns.run(self.branch, agent, new, told)
            self.is_kept = False
            workspace = None if folder is None else Path(folder)
            return await self._backend.turns.once(
                agent, given, identity=identity, how=how, workspace=workspace, tell=told
            )

        return act

    async def _until_left(self, conversation: str) -> None:
        """Waits for the end of a turn that is being stopped because its client gave up waiting, and asks again."""
        if self._key is not None:
            await self._services.turns.until_left(self.call.tenant, conversation)

    def _is_retried(self) -> bool:
        """Whether the client sends this request again by itself, if the turn fails now. Each try is then one call."""
        return self._client_retries and not self.has_begun and not self.stream.ran_tools

    def _wish(self, system: str) -> Wish:
        request = self.request
        return Wish(self._agent_name, system, request.tools, request.output, request.reasoning_effort)

    def _heard_by(self, tell: Callback) -> Callback:
        def told(update: Update) -> None:
            self.stream.hear(update)
            tell(update)

        return told

    # In a conversation.

    @property
    def _identity(self) -> Identity:
        assert self.named is not None
        return self.named

    @property
    def _place(self) -> Key:
        return self.call.tenant, self._identity.name

    def _in_conversation(self) -> Act:
        """Runs a turn of the conversation that the request names. Raises `Invalid`."""
        tags = dict(self.request.metadata)
        if self.request.user:
            tags.setdefault("user", self.request.user)
        title, tags = with_title(None, tags)
        self._wanted = NamedDraft(self._identity.name, title, tags, self._identity.fork_of)
        self._list: ClientList = read_list(self.request.messages, is_whole=self._identity.history == "full")
        return self._run

    async def _run(self, tell: Callback) -> Turn:
        """The turn. Raises what kept it from beginning, or what ended it; then the conversation is as it was."""
        begun = supersede = False
        heard = self._heard_by(tell)

        def told(update: Update) -> None:
            nonlocal begun
            self._decide_aside()
            if isinstance(update, TurnStarted):
                begun = True
                if self._aside is not None:
                    self._aside.turn = update.id
                self._chat.refused.pop(self._place)
                if self.branch is None:
                    self._hot(update.conversation)  # also if it fails, and leaves a draft
            heard(update)

        with self._chat.hot.busy(self._place):
            for left in reversed(range(TRIES)):
                try:
                    return await self._try(told, fresh=left < TRIES - 1, supersede=supersede)
                except ForkpointError as error:
                    if begun:
                        raise
                    if not left or not await self._is_worth_another_look(error):
                        raise self._by_its_name(error) from None
                    supersede = supersede or isinstance(error, TurnOpen)
                finally:
                    self._decide_aside()
                    if begun and self._aside is not None:
                        self._aside.ended = time.monotonic()
        raise AssertionError("the last try returns or raises")

    async def _is_worth_another_look(self, error: ForkpointError) -> bool:
        """Whether what was known of the conversation is out of date, or a branch of its own can take the request."""
        match error:
            case Busy(turn=turn) if self._list.is_whole and not self._is_apart:
                self._is_apart = not await self._placement.is_of(turn, self._digest)
                return self._is_apart or self._identity.is_retry  # a retry joins the turn of the same request
            case Busy() if self._is_apart and self._identity.is_retry:
                return True  # the same request has just begun on a branch of its own, and is joined
            case BadPosition():
                return self._is_apart  # the conversation has left the place meanwhile
            case Stale() | AlreadyExists(what="conversation"):
                return True  # somebody was faster
            case KeyReused():
                return not self._is_there  # perhaps this very request used the key, and has made it meanwhile
            case NotFound(what="conversation"):
                return self._chat.hot.get(self._place) is not None
            case TurnOpen(outcome="awaiting_approval") if self._list.is_whole and not self._is_apart:
                self._is_apart = True  # nobody can decide on it through this API, and it stays as it is
                return True
            case TurnOpen(outcome="interrupted"):
                return True  # its process is gone, and nobody can go on with it through this API
            case _:
                return False

    def _by_its_name(self, error: ForkpointError) -> ForkpointError:
        """An error about the conversation, under the name that the client knows."""
        name = self._identity.name
        match error:
            case Stale():
                return Busy(name, "after turn")  # it moves faster than it can be looked at
            case Busy():
                return Busy(**error.fields | {"conversation": name})
            case TurnOpen(turn=turn, outcome=outcome):
                return TurnOpen(name, turn, outcome)
            case Unpaired() if Unpaired.call_not_open.made(error):
                return Unpaired.call_not_open(**error.fields | {"conversation": name})
            case _:
                return error

    async def _try(self, tell: Callback, *, fresh: bool, supersede: bool) -> Turn:
        is_retry, is_fork = self._identity.is_retry, self._identity.fork_of is not None
        record = await self._find(fresh=fresh or bool(self._list.results) or is_retry or is_fork)
        if record is not None and record.draft and not is_retry:
            record = await self._find(fresh=True)
        # From here on this record decides all: if the conversation has moved since, the turn does not begin.
        again = None if record is None or not is_retry else await self._repeated(record)
        if record is not None and is_retry:
            turn = await self._joined(record, again, tell) or await self._joined_aside(record, tell)
            if turn is not None:
                return turn
        self._is_there = record is not None
        there = await self._of_key(record)
        if there is not None:
            record = there
        elif is_fork or (record is not None and record.draft):
            record = await self._placement.claim(self._wanted, record)
            if record is not None:
                self._hot(record.id)
        self._is_there = record is not None
        is_new = record is None or record.draft or record.head.position is None  # sub-agents keep an empty one too
        self.agent, settings = self._dressed(record)
        start = await self._start(record)
        draft = self._wanted.new(settings) if record is None else None
        is_aside = there is None and record is not None and (self._is_apart or start.is_stranger)
        if record is not None and is_aside:
            draft = await self._beside_head(record, start, settings)
            start = replace(start, onto=None)
            self.status = "branched"
        else:
            is_elsewhere = there is not None and there.name != self._identity.name and not self._is_by_id
            self.branch = there.id if there is not None and is_elsewhere else None
            is_branch = is_elsewhere or (start.onto is not None and not is_new)
            self.status = "branched" if is_branch else "created" if is_new else "continued"
        known = draft or record
        assert known is not None
        new = NewTurn(
            given=start.given,
            draft=draft,
            supersede=supersede and record is not None and record.status == "interrupted",  # as it was read just now
            key=self._key,
            if_revision=None if record is None or is_aside else record.revision,
            if_name=None if draft is not None or there is not None or self._is_by_id else self._identity.name,
            how=How(
                settings=settings,
                onto=start.onto,
                options=self.request.options,
                attended=False,
                final=self.request.stream,
                retried=self._is_retried,
                request=self._digest,
            ),
        )
        await self._until_left(known.id)
        if again is None or again.outcome != "interrupted":
            turn = await self._backend.turns.run(known.id, self.agent, new, tell)
        else:
            turn = await self._backend.turns.repeat(again, self.agent, new, tell)
        try:
            await self._remember(turn, start, record)
        except Exception:  # it is committed, and whatever this is does not change that
            _log.exception("what a turn leaves in memory could not be kept")
        return turn

    async def _find(self, *, fresh: bool) -> StoredConversation | None:
        """The conversation of this name, as it is known here, or with ``fresh`` as it is in the store."""
        name, entry = self._identity.name, self._chat.hot.get(self._place)
        known = None if entry is None or fresh else self._placement.known(entry.id)
        if known is not None and known.name == name:  # it may have lost its name to another
            return known
        record = await self._placement.by_name(name)
        if record is None:
            self._chat.hot.forget(self._place)
        elif record.name != name:
            self._is_by_id = True
        else:
            self._hot(record.id)
        return record

    async def _of_key(self, record: StoredConversation | None) -> StoredConversation | None:
        """The conversation in which this very request began its turn with its key; None if it has to begin one.

        ``record`` is what has the name now: that may be another branch of the family since. A request that leaves its
        name to the server gets the name that it was given. Raises `KeyReused`.
        """
        there = None if self._key is None else await self._placement.made_with(self._key, self._digest)
        if there is None:
            return None
        if self._identity.is_made_up:
            self.named = replace(self._identity, name=there.name)
        elif record is None or record.family != there.family:
            return None
        return there

    async def _repeated(self, record: StoredConversation) -> StoredTurn | None:
        """The turn that this very request began when it was sent before. None if it has to be run anew."""
        if self._chat.refused.get(self._place) == self._digest:
            return None  # it was not even begun
        await self._backend.turns.unended.end(record.id)  # then it is known whether it was committed
        return await self._placement.repeated(record, self._digest)

    async def _joined(
        self, record: StoredConversation, same: StoredTurn | None, tell: Callback, *, is_aside: bool = False
    ) -> Turn | None:
        """The turn of this request, once it has ended. None if it has to be run anew, or was interrupted."""
        if same is None or same.outcome == "interrupted":
            return None
        self.branch = record.id if is_aside else None
        self.status = "branched" if is_aside else _status_at_head(record, same)
        return await joined(self.call, same, tell)

    async def _beside_head(self, record: StoredConversation, start: StartingPoint, settings: Settings) -> Draft:
        """A branch for this request alone. Raises `Busy` if the same request is being answered on one."""
        there = await self._answered_aside()
        if there is not None and self._key is None:
            # A request that came while its equal ran is not another one, however long it took us to look.
            was_running = there.ended > self._came and not self._identity.is_retry
            if was_running or self._services.turns.feed(self.call.tenant, there.id) is not None:
                raise Busy(self._identity.name, there.turn or "running")
        draft = self._placement.aside(record, start, settings, self._key)
        self.branch = draft.id
        self._aside = Aside(draft.id, record.revision)
        self._chat.aside.put((*self._place, self._digest), self._aside)
        return draft

    async def _answered_aside(self) -> Aside | None:
        """The branch that answers this very request, or None. If its turn is about to begin, this waits for that.

        Nothing runs between the end of the wait and the return, so of equal requests at once only one begins a turn.
        """
        while (there := self._chat.aside.get((*self._place, self._digest))) is not None:
            if there.is_decided.is_set():
                return there
            await there.is_decided.wait()
        return None

    def _decide_aside(self) -> None:
        """The turn on a branch of its own has begun, or was refused: equal requests need not wait any more."""
        if self._aside is not None:
            self._aside.is_decided.set()

    async def _joined_aside(self, record: StoredConversation, tell: Callback) -> Turn | None:
        """The turn of this very request on a branch of its own, unless the conversation has gone on since."""
        there = await self._answered_aside()
        if there is None or record.revision > there.revision + 1:  # one turn may have run beside it
            return None
        branch = await self._placement.by_name(there.id)
        if branch is None:
            return None
        return await self._joined(branch, await self._repeated(branch), tell, is_aside=True)

    def _dressed(self, record: StoredConversation | None) -> tuple[Agent, Settings]:
        """The agent as it answers here, and the settings that say so."""
        stored = None if record is None else Settings.from_json(record.settings)
        system = self._list.system
        if stored is not None and record is not None and record.head.position is not None:
            follows = self._list.is_whole or (self._settings.system == "follow" and bool(system))
            system = system if follows else stored.system or ""
        wish = self._wish(system)
        agent, settings = self._chat.wardrobe.dress(wish)
        if stored is None:
            return agent, replace(settings, workspace=self._chat.wardrobe.workspace(wish))
        return agent, settings.at(stored)

    async def _start(self, record: StoredConversation | None) -> StartingPoint:
        """Where the turn stands, and with what it begins. Raises `Unpaired`."""
        entry = self._chat.hot.get(self._place)
        if record is not None and entry is not None and self._list.is_whole and not self._list.results:
            left = record.head.digest, outline_of(self._list.before)
            path = self._chat.seen.get((self.call.tenant, record.head.digest)) if entry.expected == left else None
            if path is not None:
                return StartingPoint(self._list.said, path=path)  # as the client was left: there is nothing to compare
        return await self._placement.start(record, self._list, self._path, has_key=self._key is not None)

    async def _path(self, record: StoredConversation) -> Sequence[Seen]:
        """A conversation's path as its client saw it, from memory if it is there."""
        place = (self.call.tenant, record.head.digest)
        known = self._chat.seen.get(place)
        if known is None:
            known = await self._placement.path(record)
            self._chat.seen.put(place, known, len(known) + 1)
        return known

    # What stays in memory.

    def _hot(self, id: str) -> Entry | None:
        """What is in memory of the conversation that is used now; None if memory has it under another name."""
        if self._is_by_id:
            return None
        entry = self._chat.hot.get(self._place)
        if entry is None or entry.id != id:
            entry = Entry(id)
            self._chat.hot.put(self._place, entry)
        return entry

    async def _remember(self, turn: Turn, start: StartingPoint, record: StoredConversation | None) -> None:
        """Keeps what the next request will want to know. ``record`` is how the conversation stood before the turn."""
        entry = self._hot(turn.conversation) if self.branch is None else None
        if record is not None and start.onto is None and self.branch is None:
            self._chat.seen.pop((self.call.tenant, record.head.digest))  # it is a part of what it is now
        if not self._list.is_whole or (entry is None and self.branch is None):
            return
        now = self._placement.known(turn.conversation) or await self._placement.by_name(turn.conversation)
        if now is not None and now.head.turn == turn.id:
            path = extended(start.path, [event for event in turn.events if isinstance(event, Event)])
            self._chat.seen.put((self.call.tenant, now.head.digest), path, len(path) + 1)
            if entry is not None:
                entry.expected = self._expected(now.head.digest, turn)

    def _expected(self, head: bytes, turn: Turn) -> tuple[bytes, int] | None:
        """What a client will send next that changes nothing: its list, its message and what it was shown."""
        has_form = self.agent is not None and self.agent.output is not None
        text, _ = visible(turn.events, only_last=has_form)
        if self._list.message is None or not text or handed(turn.events):
            return None
        outline = outline_of((*self._list.before, self._list.message, AssistantMessage((Text(text),))))
        return None if outline is None else (head, outline)


def _status_at_head(record: StoredConversation, turn: StoredTurn) -> Literal["created", "continued"]:
    """The status of a turn that stands on the path that the name points to."""
    first = record.lineage.at if record.lineage.kind == "fork" else None
    return "created" if turn.base == first else "continued"
