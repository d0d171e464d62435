"""One chat completion in a conversation: which one it is for, where in it, with what, and then the turn.

Nothing is changed before the turn begins, and nothing but what a committed turn changes: a conversation that is made or
forked for a request is a draft until then; other settings, another place and what they set aside come with the commit.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.conversation.backend import Draft, ForkOptions, How
from forkpoint.conversation.messages import Given
from forkpoint.conversation.naming import with_title
from forkpoint.conversation.planning import check_open
from forkpoint.conversation.results import Turn
from forkpoint.conversation.settings import Settings
from forkpoint.conversation.updates import Callback, TurnStarted, Update
from forkpoint.errors import AlreadyExists, Busy, CallNotOpen, KeyReused, NotFound, Stale, TurnCancelled, TurnOpen
from forkpoint.events import AssistantMessage, Event, Text, ToolResult
from forkpoint.history.seen import Match, Seen, after, extended, match, seen, told
from forkpoint.ids import new_id
from forkpoint.server.chat.answers import handed, visible
from forkpoint.server.chat.asked import Asked
from forkpoint.server.chat.dressing import Dressed, Wish
from forkpoint.server.chat.hot import Entry, Key
from forkpoint.server.chat.identity import Identity
from forkpoint.server.chat.lists import Listed, imported, outline_of, read_list
from forkpoint.server.services import Services
from forkpoint.store.records import ConversationRecord, Onto

TRIES = 8
"""How often a request looks again when others move its conversation while it looks."""


class Begun(Struct, frozen=True):
    """What a turn is begun with."""

    given: tuple[Given, ...]
    onto: Onto | None = None
    seen: Sequence[Seen] | None = None  # of the path that it stands on, where that matters


class Conversing:
    """A request for a conversation, on its way to a turn."""

    def __init__(
        self,
        services: Services,
        tenant: str,
        asked: Asked,
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
        self._place: Key = (tenant, identity.name)
        self._is_full = identity.history == "full"
        self._is_there = False  # whether the conversation was found
        self._is_by_id = False  # and whether by its id: what is in memory is there under its name
        self.status: Literal["created", "continued"] = "continued"
        self.answers: Agent | None = None  # who does, once that is known

    async def run(self, tell: Callback) -> Turn:
        """The turn. Raises what kept it from beginning, or what ended it; then the conversation is as it was."""
        begun = supersede = False

        def told(update: Update) -> None:
            nonlocal begun
            if isinstance(update, TurnStarted):
                begun = True
                self._chat.refused.forget(self._place)
                if not self._is_by_id:
                    self._is_hot(update.conversation)  # also if it fails, and leaves a draft
            tell(update)

        with self._chat.hot.busy(self._place):
            for left in reversed(range(TRIES)):
                try:
                    return await self._try(told, fresh=left < TRIES - 1, supersede=supersede)
                except Stale as stale:
                    if begun:
                        raise
                    if not left:  # it moves faster than it can be looked at
                        raise Busy(self._identity.name, "another") from stale
                except AlreadyExists as error:  # somebody was faster
                    if begun or not left or error.what != "conversation":
                        raise
                except CallNotOpen as error:
                    raise CallNotOpen(error.call, self._identity.name, error.why) from None
                except KeyReused:  # perhaps by this very request, which has made the conversation meanwhile
                    if begun or not left or self._is_there:
                        raise
                except Busy as busy:  # which the client knows by another name
                    raise Busy(self._identity.name, busy.turn) from None
                except NotFound as error:  # what was known of it is out of date
                    if begun or not left or error.what != "conversation" or self._chat.hot.get(self._place) is None:
                        raise
                except TurnOpen as open:  # nobody can go on with it through this API, if its process is gone
                    if begun or not left or open.outcome != "interrupted":
                        raise TurnOpen(self._identity.name, open.turn, open.outcome) from None
                    supersede = True
        raise AssertionError("the last try returns or raises")

    async def _try(self, tell: Callback, *, fresh: bool, supersede: bool) -> Turn:
        record = await self._find(fresh=fresh or bool(self._list.results) or self._identity.is_retry)
        if record is not None and self._identity.is_retry:
            if (turn := await self._joined(record, tell)) is not None:
                return turn
            record = await self._find(fresh=True)
        if self._identity.source is not None or (record is not None and record.draft):
            record = await self._origin(await self._find(fresh=True))
        self._is_known(record)
        dressed, settings = self._dressed(record)
        self.answers = dressed.agent
        begun = await self._begin(record)
        draft = self._draft(settings) if record is None else None
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
        if record is not None and begun.onto is None:  # what it was is a part of what it is now
            self._chat.seen.forget((self._tenant, record.head.digest))
        await self._remember(turn, begun.seen)
        return turn

    async def _joined(self, record: ConversationRecord, tell: Callback) -> Turn | None:
        """The turn that this very request began when it was sent before. None if it has to be run anew.

        A client that gave up waiting has gone, and its turn is being stopped: that one is not joined, but waited for.
        """
        if self._chat.refused.get(self._place) == self._request:
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

    # Which conversation.

    async def _find(self, *, fresh: bool) -> ConversationRecord | None:
        """The conversation of this name, as it is known here or as it is in the store."""
        entry = self._chat.hot.get(self._place)
        known = None if entry is None or fresh else self._backend.known(entry.id)
        if known is not None and known.name == self._identity.name:  # it may have lost its name to another
            return known
        record = await self._backend.named(self._identity.name)
        if record is None:
            self._chat.hot.forget(self._place)
        elif record.name != self._identity.name:
            self._is_by_id = True
        elif entry is None or entry.id != record.id:
            self._chat.hot.put(self._place, Entry(record.id))
        return record

    async def _origin(self, record: ConversationRecord | None) -> ConversationRecord | None:
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
            self._chat.hot.put(self._place, Entry(made.id))
        return made

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

    def _is_known(self, record: ConversationRecord | None) -> None:
        self._is_there = record is not None
        self.status = "created" if record is None or record.draft else "continued"

    def _draft(self, settings: Settings) -> Draft:
        title, tags = self._described
        return Draft(id=new_id(), name=self._identity.name, settings=settings, title=title, tags=tags)

    # Who answers, and with what.

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
        return dressed, dressed.settings(workspace)

    async def _begin(self, record: ConversationRecord | None) -> Begun:
        said: tuple[Given, ...] = () if self._list.message is None else (self._list.message,)
        if record is None or record.head.position is None:
            return Begun((*self._taken_over(), *said), seen=())
        if self._is_full:
            return await self._where(record, said)
        self._check_open(record)
        return Begun((*await self._results(record), *said))

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
        if self._key is None and self._list.message is None:
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

    # What a client has seen.

    async def _seen(self, record: ConversationRecord) -> Sequence[Seen]:
        """The exchanges of a path, from memory if they are there."""
        place = (self._tenant, record.head.digest)
        known = self._chat.seen.get(place)
        if known is None:
            known = seen(await self._backend.events(record.id)) if record.head.position is not None else []
            self._chat.seen.put(place, known, len(known) + 1)
        return known

    def _is_hot(self, id: str) -> Entry:
        """What is in memory of a conversation that is used now."""
        entry = self._chat.hot.get(self._place)
        if entry is None or entry.id != id:
            entry = Entry(id)
            self._chat.hot.put(self._place, entry)
        return entry

    async def _remember(self, turn: Turn, before: Sequence[Seen] | None) -> None:
        """Keeps what the next request will want to know."""
        if self._is_by_id:
            return
        entry = self._is_hot(turn.conversation)
        if before is None or not self._is_full:
            return
        record = self._backend.known(turn.conversation) or await self._backend.named(self._identity.name)
        if record is not None and record.head.turn == turn.id:
            events = [event for event in turn.events if isinstance(event, Event)]
            path = extended(before, events)
            self._chat.seen.put((self._tenant, record.head.digest), path, len(path) + 1)
            entry.expected = self._expected(record.head.digest, turn)

    def _expected(self, head: bytes, turn: Turn) -> tuple[bytes, int] | None:
        """What a client will send next that changes nothing: its list, its message and what it was shown."""
        only_last = self.answers is not None and self.answers.output is not None
        text, _ = visible(turn.events, only_last=only_last)
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
