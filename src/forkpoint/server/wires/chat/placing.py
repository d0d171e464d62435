"""Where in a conversation a chat completion goes on, and what its turn is given there."""

from collections.abc import Sequence

from msgspec import Struct

from forkpoint.backend.messages import Given
from forkpoint.backend.results import Turn
from forkpoint.engine.engine import LocalBackend
from forkpoint.engine.turns.plan import check_open
from forkpoint.events import AssistantMessage, Event, Text, ToolResult
from forkpoint.history.client_view import Match, Seen, after, extended, match, seen, told
from forkpoint.server.wires.chat.answers import handed, visible
from forkpoint.server.wires.chat.hot import Entry, Key
from forkpoint.server.wires.chat.lists import Listed, imported, outline_of
from forkpoint.server.wires.chat.service import ChatService
from forkpoint.store.records import ConversationRecord, Onto


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
