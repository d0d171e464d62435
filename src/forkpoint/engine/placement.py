"""Placement: in which conversation, on which branch and after which turn a client's request goes on.

A client that speaks a wire (chat completions, responses, messages) holds no conversation. It sends a name, or a point
to fork from, or the whole list of messages that it has seen, and sometimes the same request twice. The rules here find
the place. They change nothing but names of drafts: what a request makes is a draft until its turn commits.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from forkpoint.backend.callbacks import Callback
from forkpoint.backend.messages import Given, MessageBody, request_of
from forkpoint.backend.options import Beside, Draft, ForkOptions
from forkpoint.backend.results import Turn, raise_for
from forkpoint.backend.settings import Settings
from forkpoint.engine.branches.forks import Forks
from forkpoint.engine.resources import Resources
from forkpoint.engine.turns.path import calls_among
from forkpoint.engine.turns.plan import check_open
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.errors import AlreadyExists, BadName, NotFound, Unpaired
from forkpoint.events import Imported, Position, ToolCall, ToolResult, UserMessage
from forkpoint.history.client_view import ClientExchange, Match, Seen, after, cut, first_said, match, seen, told
from forkpoint.ids import id_beside, new_id
from forkpoint.llm.prompt.identity import CacheIdentity
from forkpoint.paging import every
from forkpoint.store.values import IdempotencyKey, Onto, StoredConversation, StoredTurn

_NEWEST = 200  # branches of a family among which a repeated request looks for its own

PathOf: TypeAlias = Callable[[StoredConversation], Awaitable[Sequence[Seen]]]
"""Returns a conversation's path as its client saw it, from memory or with `Placement.path`."""


class ForkPoint(Struct, frozen=True):
    """A point that a conversation can be forked from: a turn of another conversation, or its head."""

    name: str  # of the other conversation, or its id
    turn: str | None = None  # None: its head


class NamedDraft(Struct, frozen=True):
    """The conversation that a request names, as the request would make it."""

    name: str
    title: str | None = None
    tags: Mapping[str, str] = {}
    fork_of: ForkPoint | None = None

    def new(self, settings: Settings) -> Draft:
        """A conversation for a turn to make."""
        return Draft(id=new_id(), name=self.name, settings=settings, title=self.title, tags=dict(self.tags))


class ClientList(Struct, frozen=True, kw_only=True):
    """The messages that a client sent, divided into what was before and what is new."""

    source: str  # the wire, with which imported history is marked
    system: str = ""  # the client's instructions
    before: tuple[MessageBody, ...] = ()
    results: tuple[ToolResult, ...] = ()  # of calls that the client was handed
    message: UserMessage | None = None
    is_whole: bool = False  # the list is all that holds; otherwise only its end is new

    @property
    def said(self) -> tuple[Given, ...]:
        return () if self.message is None else (self.message,)


class StartingPoint(Struct, frozen=True):
    """What a turn begins with, and where."""

    given: tuple[Given, ...]
    onto: Onto | None = None  # None: at the head
    path: Sequence[Seen] = ()  # that it stands on, as the client saw it; only for a whole list
    is_stranger: bool = False  # a whole list that has nothing in common with any branch


class Placement:
    """Finds the place for requests of clients, in one store."""

    def __init__(self, resources: Resources, forks: Forks, turns: TurnRunner) -> None:
        self._store = resources.store
        self._records = resources.records
        self._forks = forks
        self._turns = turns

    # Which conversation.

    def known(self, id: str) -> StoredConversation | None:
        """A conversation as this process knows it; another process may have moved it since."""
        return self._records.known(id)

    async def by_name(self, name: str) -> StoredConversation | None:
        """The conversation with this outer name, or else with this id, read now; drafts too. None if there is none."""
        for read in (self._store.find, self._store.read):
            with suppress(NotFound):
                return self._records.know(await read(name))
        return None

    async def claim(self, wanted: NamedDraft, record: StoredConversation | None) -> StoredConversation | None:
        """The conversation as a request wants it to have begun; None if a turn has to make it.

        ``record`` is what has the name now. A draft that began in another way loses the name. Raises `NotFound` if the
        conversation to fork is not there, and `AlreadyExists` if the name belongs to a conversation that is no fork of
        it.
        """
        if record is not None and record.draft and record.status != "idle":
            return record  # another request makes it right now, so it is busy
        if wanted.fork_of is None:
            if record is None or not record.draft or _is_root_as(wanted, record):
                return record
            if await self.set_aside(record.id):
                return record  # what was answered beside it is found through it
            await self._unname(record)
            return None
        source = await self.by_name(wanted.fork_of.name)
        if source is None or source.draft:
            raise NotFound("source of a fork", wanted.fork_of.name)
        if record is not None:
            is_fork = record.lineage.kind == "fork" and record.lineage.source == source.id
            if not record.draft:
                if not is_fork:
                    raise AlreadyExists("conversation of another origin", record.name)
                return record
            if is_fork and record.lineage.at == await self._end_of(wanted.fork_of.turn, source):
                return record
            await self._unname(record)
        fork = ForkOptions(id=new_id(), name=wanted.name, chosen=True, at=wanted.fork_of.turn)
        return self._records.know(await self._forks.fork(source.id, fork, draft=True))

    async def is_abandoned(self, id: str) -> bool:
        """Whether a conversation is only what a request left whose first turn did not commit.

        It is there for the next request of its name, and for nobody else. While a turn is open there it is not
        abandoned: whoever reads that the name is busy can read and cancel that turn. Raises `NotFound`.
        """
        known = self._records.known(id)
        if known is not None and not known.draft:  # it never becomes a draft again
            return False
        record = self._records.know(await self._store.read(id))
        if not record.draft or record.open_turn is not None:
            return False
        page = await self._store.turns(id, limit=1)
        return any(request_of(turn.input) is not None for turn in page.items)

    async def check_free(self, name: str, id: str) -> None:
        """Raises `AlreadyExists` if a name is the id of another conversation, which is found by that."""
        if name != id:
            with suppress(NotFound):
                raise AlreadyExists("conversation", (await self._store.read(name)).id)

    async def free_name(self, name: str) -> bool:
        """Takes a name from an abandoned draft, so that another conversation can have it. Returns whether it did."""
        there = await self.by_name(name)
        if there is None or not await self.is_abandoned(there.id):
            return False
        await self._unname(there)
        return True

    async def _unname(self, record: StoredConversation) -> None:
        """Takes a conversation's outer name away. Raises `Stale` or `Busy`."""
        self._records.forget(record.id)
        await self._store.rename(record.id, None, if_revision=record.revision)

    async def _end_of(self, turn: str | None, record: StoredConversation) -> Position | None:
        """Where a turn ends, or the conversation's head if ``turn`` is None. Raises `NotFound`."""
        return record.head.position if turn is None else (await self._store.turn(turn)).end

    # After a turn.

    async def ended_turn(self, id: str) -> tuple[StoredTurn, StoredConversation]:
        """A committed turn by its id, and a conversation whose path has its end. Raises `NotFound`.

        That is the turn's own conversation, or a branch of the family if the conversation was rewound since.
        """
        turn = await self.turn(id)
        if turn.end is None or turn.kind != "turn":
            raise NotFound("turn", id)
        own = self._records.know(await self._store.read(turn.conversation))
        if own.head.turn == id or turn.end in await self._store.path(own.id):
            return turn, own
        async for record in every(partial(self._store.conversations, family=own.family)):
            if turn.end in await self._store.path(record.id):
                return turn, record
        raise NotFound("turn", id)

    async def turn(self, id: str) -> StoredTurn:
        """A turn or note of any conversation, by its id. Raises `NotFound`."""
        try:
            return await self._store.turn(id)
        except BadName:  # it is no id at all
            raise NotFound("turn", id) from None

    def fork_after(
        self, record: StoredConversation, turn: StoredTurn, settings: Settings, tags: Mapping[str, str]
    ) -> Draft:
        """A fork that its first turn makes, after a turn on a conversation's path. It waits for nobody."""
        beside = Beside("fork", record.id, record.family, onto=Onto(record.id, turn.end))
        return Draft(id=new_id(), name=None, settings=settings, tags=tags, beside=beside)

    # Beside a conversation.

    def aside(self, record: StoredConversation, start: StartingPoint, settings: Settings, key: str | None) -> Draft:
        """A branch of its own for a request that does not go on where the name points, or cannot right now.

        With a key the branch always has the same id, so that the same request finds it again.
        """
        onto = start.onto
        if onto is None and record.head.position is not None:
            is_fork = record.draft and record.lineage.source is not None  # nothing can stand on a draft
            onto = Onto((record.lineage.source or "") if is_fork else record.id, record.head.position)
        beside = Beside("aside", record.id, record.family, onto=onto)
        return Draft(id=_branch_id(record, key), name=None, settings=settings, beside=beside)

    def side(
        self, record: StoredConversation, settings: Settings, cache: CacheIdentity, title: str | None, key: str | None
    ) -> Draft:
        """A branch for what a client asks beside a conversation: it begins empty, and takes no name."""
        beside = Beside("side", record.id, record.family, at=record.head.position, cache=cache)
        return Draft(id=_branch_id(record, key), name=None, settings=settings, title=title, beside=beside)

    async def is_of(self, turn: str, request: str) -> bool:
        """Whether a turn is of this very request. ``request`` is a digest."""
        with suppress(NotFound):
            return request_of((await self._store.turn(turn)).input) == request
        return False

    # Whether the request came before.

    async def made_with(self, key: str, request: str) -> StoredConversation | None:
        """The conversation in which a request with this key began its turn; None if the key is free.

        ``request`` is a digest. The name that the request has may point elsewhere by now. Raises `KeyReused`.
        """
        made = await self._store.made_with(IdempotencyKey(key, bytes.fromhex(request)), "turn")
        if not isinstance(made, StoredTurn):
            return None
        with suppress(NotFound):
            return self._records.know(await self._store.read(made.conversation))
        return None

    async def repeated(self, record: StoredConversation, request: str) -> StoredTurn | None:
        """The turn of this very request, if it runs, was interrupted, or was committed last. ``request`` is a digest.

        None if a later turn of the same request did not commit: then the request means that one, and is run anew.
        """
        if record.open_turn is not None:
            turn = await self._store.turn(record.open_turn)  # it may have ended since the record was read
            is_same = turn.outcome in {"running", "interrupted", "committed"} and request_of(turn.input) == request
            return turn if is_same else None
        last = await self._turns.reader.last(record)
        if last is None or request_of(last.input) != request:
            return None
        since = 0 if last.base is None else last.base.ordinal
        async for one in self._turns.reader.all(
            record.id, since=since
        ):  # a client that wants another answer asks again
            if one.outcome != "committed" and one.id > last.id and request_of(one.input) == request:
                return None
        return last

    async def repeated_after(
        self, record: StoredConversation, turn: StoredTurn, request: str
    ) -> tuple[StoredConversation, StoredTurn] | None:
        """The turn of this very request on a fork after a turn, as `repeated` finds it, and that fork.

        The newest fork that the request made decides. Only the newest branches of the family are looked at: whoever
        loses an answer asks again soon.
        """
        newest = await self._store.conversations(family=record.family, limit=_NEWEST, drafts=True)
        for branch in newest.items:
            if branch.lineage.kind == "fork" and (branch.draft or branch.lineage.at == turn.end):
                last = (await self._store.turns(branch.id, limit=1, newest_first=True)).items
                if last and request_of(last[0].input) == request:
                    same = await self.repeated(branch, request)
                    return None if same is None else (branch, same)
        return None

    async def on_path(self, record: StoredConversation, turn: str) -> StoredTurn | None:
        """A committed turn that stands on a conversation's path; None for any other turn."""
        with suppress(NotFound):
            found = await self._store.turn(turn)
            if found.end is not None and found.end in await self._store.path(record.id):
                return found
        return None

    async def join(self, turn: StoredTurn, tell: Callback) -> Turn:
        """Waits for a turn that `repeated` found."""
        return raise_for(await self._turns.active.join(turn, tell))

    # Where in the conversation.

    async def start(
        self, record: StoredConversation | None, listed: ClientList, path_of: PathOf, *, has_key: bool
    ) -> StartingPoint:
        """What a turn is given in a conversation, and where it stands. Raises `Unpaired`.

        With ``has_key`` the request may have been answered before, so results of calls that are no longer open pass:
        whoever runs the turn looks for the key first.
        """
        has_branches = record is not None and (record.head.position is not None or bool(listed.before))
        if record is None or (record.head.position is None and not (listed.is_whole and has_branches)):
            return StartingPoint((*_imported(listed, listed.before), *listed.said))
        if listed.is_whole:
            return await self._on_a_branch(record, listed, path_of, has_key)
        return StartingPoint((*await self._new_results(record, listed, has_key), *listed.said))

    async def path(self, record: StoredConversation) -> list[Seen]:
        """A conversation's path, as its client could see it."""
        return [] if record.head.position is None else seen(await self._store.events(record.id))

    async def set_aside(self, id: str) -> list[StoredConversation]:
        """The branches that were set aside from a conversation, the newest first."""
        family = (await self._store.read(id)).family
        records = every(partial(self._store.conversations, family=family))
        return [one async for one in records if one.lineage.kind == "aside" and one.lineage.source == id]

    async def _on_a_branch(
        self, record: StoredConversation, listed: ClientList, path_of: PathOf, has_key: bool
    ) -> StartingPoint:
        """Where in the family a whole list goes on, and what of the list is not there yet."""
        exchanges = told(listed.before)
        branches, paths = [record], [await path_of(record)]
        found = _match(listed, exchanges, paths)
        is_plain = found.is_exact and not found.start if exchanges else found.is_head
        if not is_plain or found.length < len(exchanges):  # another branch may be nearer to it
            for branch in await self.set_aside(record.id):
                branches.append(branch)
                paths.append(await path_of(branch))
            found = _match(listed, exchanges, paths)
        branch, path = branches[found.branch], paths[found.branch]
        is_stranger = bool(paths[0]) and not found.length and not found.start and _is_stranger(listed, paths[0])
        found = cut(found, path)
        known = 0  # messages before the question that the branch has
        if found.length:
            known = exchanges[found.length - 1].upto
        elif found.start and not exchanges:
            known = len(listed.before)
        rest = listed.before[known:]
        if found.is_head and found.branch == 0:
            given = _imported(listed, rest) if rest else await self._new_results(record, listed, has_key)
            return StartingPoint((*given, *listed.said), path=path)
        given = _imported(listed, rest) if rest else listed.results
        onto = Onto(branch.id, branch.head.position if found.is_head else found.at)  # notes at the end belong to it
        return StartingPoint((*given, *listed.said), onto, path[: found.start + found.length], is_stranger)

    async def _new_results(
        self, record: StoredConversation, listed: ClientList, has_key: bool
    ) -> tuple[ToolResult, ...]:
        """The tool results to add. If a user message follows, results of calls already answered are skipped.

        Raises `Unpaired` for a result without a call.
        """
        open, given = record.head.open_calls.client, [one.call_id for one in listed.results]
        if listed.message is None:
            if not has_key:
                check_open(record.name, open, given)
            return listed.results
        if others := [id for id in given if id not in open]:
            asked = await calls_among(self._store, record.id, record.head.position, others)
            check_open(record.name, [event.envelope.call_id or "" for event in asked], others)
        return tuple(one for one in listed.results if one.call_id in open)


def imported(before: Sequence[MessageBody], results: Sequence[ToolResult], source: str) -> list[Given]:
    """History that a client brings along, as events that say so; with new ``results`` of the calls that it ends with.

    Raises `Unpaired` for results whose calls are not there.
    """
    given = paired([*before, *results])
    taken = {id(one) for one in given}
    if strangers := [one for one in results if id(one) not in taken]:
        raise Unpaired.call_not_open(strangers[0].call_id[:200], "(new)", "the list does not end with such a call")
    if not given:
        return []
    left_out = len(before) + len(results) - sum(not _is_missing(body) for body in given)
    marked = f"{source} ({left_out} results without their calls left out)" if left_out else source
    return [Imported(marked, len(given)), *given]


def paired(bodies: Sequence[MessageBody]) -> list[Given]:
    """The same messages with a result for each call: a call without a result was not answered.

    A result whose call was trimmed away is left out, for no model would take it.
    """
    given: list[Given] = []
    open: dict[str, ToolCall] = {}
    for body in bodies:
        if isinstance(body, ToolResult):
            if open.pop(body.call_id, None) is None:
                continue
        elif open and not (isinstance(body, ToolCall) and isinstance(given[-1], ToolCall)):
            given += _missing(open)
        if isinstance(body, ToolCall):
            open[body.call_id] = body
        given.append(body)
    return given + _missing(open)


def _imported(listed: ClientList, before: Sequence[MessageBody]) -> list[Given]:
    """Part of a list as history. If a user message follows, results may lack their calls and are then left out."""
    if listed.message is not None:
        return imported((*before, *listed.results), (), listed.source)
    return imported(before, listed.results, listed.source)


def _match(listed: ClientList, exchanges: Sequence[ClientExchange], paths: Sequence[Sequence[Seen]]) -> Match:
    return match(exchanges, paths) if exchanges else after(listed.before, paths)


def _is_stranger(listed: ClientList, path: Sequence[Seen]) -> bool:
    """Whether a list that continues no branch does not even begin with the same question as the current path."""
    said = first_said((*listed.before, *listed.said))
    return said is not None and said != path[0].said


def _branch_id(record: StoredConversation, key: str | None) -> str:
    return new_id() if key is None else id_beside(record.id, key)


def _is_root_as(wanted: NamedDraft, draft: StoredConversation) -> bool:
    """Whether a draft is no fork and has the title and tags that the request would give it."""
    return draft.lineage.kind == "root" and (draft.title, dict(draft.tags)) == (wanted.title, wanted.tags)


def _missing(open: dict[str, ToolCall]) -> list[ToolResult]:
    made = [ToolResult(call.call_id, call.tool, (), "not_answered") for call in open.values()]
    open.clear()
    return made


def _is_missing(body: Given) -> bool:
    return isinstance(body, ToolResult) and body.status == "not_answered"
