"""Following a family: one stream with every event that its members commit, each event once.

Branches share history. One branch writes a segment, and the segment only grows. So the ordinal up to which a reader has
each segment says which events it has, whichever branch delivered them. The follower also keeps the path that the reader
has of each branch: after a rewind, that says where the two histories part. As in a conversation's own stream, all
committed events are read from the store.

A cursor says both. For each branch with events of its own it has eight letters that stand for the branch's id, and the
position of its head. For each delivered segment at whose end no head stands, it has the segment and the ordinal. A
cursor has about a dozen letters for each branch.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec
from msgspec import Raw

from forkpoint.backend.results import Info
from forkpoint.engine import info_of
from forkpoint.errors import Invalid, NotFound
from forkpoint.events import Event, Position
from forkpoint.history.paths import Path, common_ancestor
from forkpoint.server.api.public import public_event
from forkpoint.server.live.feed import Encoded, encode
from forkpoint.server.live.follower import Following, StreamReader, confirm
from forkpoint.server.live.stream import frame
from forkpoint.server.live.watch import Watching, members_of
from forkpoint.store import StoredConversation
from forkpoint.wire.documents import info_document

Since: TypeAlias = Sequence[tuple[str, Position]] | None
"""The positions that a reader has, with the tags of conversations. None: all that is committed when it comes."""

_ENTRY = re.compile(r"([A-Za-z0-9_-]{8}|~)([0-9]{1,10})-([0-9]{1,10})")


def read_cursor(param: str, given: str) -> Since:
    """The positions that a cursor names. ``0`` means none, and ``head`` all there are. Raises `Invalid`."""
    if given in ("0", "head"):
        return [] if given == "0" else None
    since: list[tuple[str, Position]] = []
    for entry in given.split("."):
        if (found := _ENTRY.fullmatch(entry)) is None:
            raise Invalid(param, "it is not the id of an event of a family's stream")
        since.append((found[1], Position(int(found[2]), int(found[3]))))
    return since


class FamilyFollower(Following):
    """One reader of a family, or of a conversation and its sub-agents, and how far it has come."""

    def __init__(
        self, reader: StreamReader, watching: Watching, tenant: str, info: Info, since: Since, *, agents: bool
    ) -> None:
        """Follows the family of a conversation; with ``agents`` only the conversation and its sub-agents."""
        super().__init__(reader)
        self._id, self._family, self._tenant = info.id, info.family, tenant
        self._store = watching.store(tenant)
        self._agents = agents
        self._watching = watching
        self._since = since
        self._begun = False
        self._members: dict[str, _Member] = {}
        self._delivered: dict[int, int] = {}  # by segment, the last ordinal that the reader has
        self._has_lost = False  # a member is gone, and perhaps no path has its segments now
        watching.watch_family(tenant, info.family, reader.mailbox)

    # What is committed.

    async def _committed(self) -> AsyncIterator[bytes]:
        while True:
            records, frames = await self._looked()
            try:
                if not self._begun:
                    await self._begin(records)
                    frames = [self._family_frame(records)]
                    self._begun = True
                for some in frames:
                    yield some
                for record in records:
                    async for page in self._news(record):
                        yield page
                self._forget_what_is_gone()
                return
            except _Moved:
                continue  # somebody was rewound or deleted meanwhile: who stands where is read anew

    def _forget_what_is_gone(self) -> None:
        """Forgets segments that are on no member's path: they get no more events, and every cursor would name them.

        Waits until all members were read: a member whose path is not known yet may have such a segment.
        """
        if self._has_lost and all(member.path is not None for member in self._members.values()):
            there = {span.segment for member in self._members.values() if member.path for span in member.path.spans}
            self._delivered = {segment: told for segment, told in self._delivered.items() if segment in there}
            self._has_lost = False

    async def _looked(self) -> tuple[list[StoredConversation], list[bytes]]:
        """All members, sources before their branches, all watched; and frames about new and deleted members."""
        frames: list[bytes] = []
        while True:
            records = await self._listed()
            new = [record for record in records if record.id not in self._members]
            here = {record.id for record in records}
            for gone in [id for id in self._members if id not in here]:
                frames.append(self._frame("deleted", gone, {}))
                self._watching.leave_one(self._tenant, gone, self._mailbox)
                del self._members[gone]
                self._has_lost = True
            if not new:
                return records, frames
            for record in new:  # then all are listed again: from now on the mailbox hears of each commit
                self._members[record.id] = _Member(record)
                self._watching.watch_also(self._tenant, record.id, record.revision, self._mailbox)
                if self._begun:
                    frames.append(self._frame("conversation", record.id, {"info": info_document(info_of(record))}))
                    if self._mailbox.provisional:  # the updates of its turn before it was watched
                        frames.append(self._named(record.id, self._snapshot(record.id)))

    async def _listed(self) -> list[StoredConversation]:
        """All members of the stream now. Raises `NotFound` if the conversation that the client named is gone."""
        records = await members_of(self._store, self._family)
        if all(record.id != self._id for record in records):
            records.append(await self._store.read(self._id))  # a draft is not listed
        return _team(records, self._id) if self._agents else _sources_first(records)

    async def _begin(self, records: Iterable[StoredConversation]) -> None:
        """Works out from the cursor what the reader has."""
        paths = {record.id: await self._path(record) for record in records}
        if self._since is None:
            for id, path in paths.items():
                self._have(id, path)
            return
        for _, told in self._since:
            self._delivered[told.segment] = max(self._delivered.get(told.segment, 0), told.ordinal)
        stood = dict(self._since)
        for id, member in self._members.items():
            if (at := stood.get(member.tag)) is not None:
                # After a rewind another branch has what the reader has, unless somebody deleted that branch.
                had = next((path for path in (paths[id], *paths.values()) if at in path), None)
                member.is_lost = had is None
                member.path = None if had is None else had.upto(at.ordinal)

    async def _news(self, record: StoredConversation) -> AsyncIterator[bytes]:
        """The events on a member's path that the stream has not delivered, for this member or for another."""
        member, head = self._members[record.id], record.head.position
        if member.path is not None and member.path.head == head:
            return
        path = await self._path(record)
        had = member.path
        if member.is_lost or (had is not None and had.head is not None and had.head not in path):
            at = path.at(self._known(path)) if had is None else common_ancestor(had, path)
            member.is_lost = False
            self._have(record.id, path.upto(0 if at is None else at.ordinal))
            said = {"at": None if at is None else str(at)}
            yield self._frame("rewound", record.id, said, cursor=self._cursor())
        after = self._known(path)
        while after < len(path):
            try:
                events = await self._store.events(record.id, at=head, after=after, limit=self._page)
            except NotFound:
                raise _Moved from None
            await confirm(self._store, events)
            page = self._page_of(record.id, events)
            after = events[-1].id.ordinal
            self._have(record.id, path.upto(after))
            self._has(events, len(page))
            yield page
            del page
        self._have(record.id, path)

    async def _path(self, record: StoredConversation) -> Path:
        """The path of a member up to the head in its record. Raises `_Moved` if the member was rewound since."""
        head, had = record.head.position, self._members[record.id].path
        if head is None:
            return Path()
        if had is not None and had.head is not None and had.head.segment == head.segment:
            return had.grown(head) if head.ordinal > had.head.ordinal else had.upto(head.ordinal)
        try:
            path = await self._store.path(record.id)
        except NotFound:
            raise _Moved from None
        if head not in path:
            raise _Moved
        return path.upto(head.ordinal)

    # What the reader has.

    def _have(self, id: str, path: Path) -> None:
        """Notes that the reader has this path of a member. After a rewind it still has what it got before."""
        self._members[id].path = path
        for span in path.spans:
            self._delivered[span.segment] = max(self._delivered.get(span.segment, 0), span.last)

    def _known(self, path: Path) -> int:
        """The ordinal of a path up to which the reader has all events."""
        for span in path.spans:
            if (told := self._delivered.get(span.segment, 0)) < span.last:
                return max(told, span.first - 1)
        return len(path)

    def _cursor(self, but: tuple[str, int] | None = None) -> str:
        """What the reader has, as a cursor. ``but`` names a member and a segment to leave out."""
        entries: list[str] = []
        told = dict(self._delivered)
        if but is not None:
            told.pop(but[1], None)
        for id, member in self._members.items():
            head = None if member.path is None else member.path.head
            if (but is None or id != but[0]) and head is not None and head != member.start:
                entries.append(f"{member.tag}{head}")
                if told.get(head.segment) == head.ordinal:
                    del told[head.segment]
        entries += [f"~{segment}-{ordinal}" for segment, ordinal in told.items()]
        return ".".join(entries) if entries or but is not None else "0"

    # Frames.

    def _page_of(self, id: str, events: Iterable[Event]) -> bytes:
        """The frames of a member's new events. The id of each frame is the cursor after that event."""
        tag, who = self._members[id].tag, self._who(id)
        others, segment = "", 0
        frames = []
        for event in events:
            if self._delivered.get(event.id.segment, 0) >= event.id.ordinal:
                continue
            if event.id.segment != segment:  # the rest of the cursor does not change within a segment
                segment = event.id.segment
                others = self._cursor(but=(id, segment))
            self._delivered[event.id.segment] = event.id.ordinal
            cursor = f"{others}.{tag}{event.id}" if others else f"{tag}{event.id}"
            frames.append(frame("event", _with(who, encode(public_event(event))), id=cursor))
        return b"".join(frames)

    def _family_frame(self, records: Iterable[StoredConversation]) -> bytes:
        """The frame that lists all members. A member that the reader knows and that is not listed is gone."""
        there = [info_document(info_of(record)) for record in records]
        said = {"conversation": self._id, "family": self._family, "conversations": there}
        return frame("family", encode(said), id=self._cursor())

    def _frame(self, event: str, id: str, said: Mapping[str, object], *, cursor: str | None = None) -> bytes:
        return frame(event, encode({**self._who(id), **said}), id=cursor)

    def _who(self, id: str) -> dict[str, str]:
        """The fields with which every frame names its conversation."""
        member = self._members.get(id)
        path = None if member is None else member.name
        return {"conversation": id} if path is None else {"conversation": id, "path": path}

    def _named(self, id: str, said: bytes) -> bytes:
        """A frame of a conversation's own stream, with the conversation named in it."""
        if not said:
            return b""
        head, _, data = said.partition(b"data: ")
        return head + b"data: " + _with(self._who(id), data.rstrip(b"\n")) + b"\n\n"

    def _told(self, item: Encoded) -> bytes:
        return item.frame if item.conversation is None else self._named(item.conversation, item.frame)

    def _stands(self) -> bytes:
        return b"".join(self._named(id, self._snapshot(id)) for id in self._members)

    def _deleted(self) -> bytes:
        return self._frame("deleted", self._id, {})


class _Member:
    """A conversation of the family, as far as a reader knows it."""

    def __init__(self, record: StoredConversation) -> None:
        self.tag = _tag(record.id)
        self.start = record.lineage.at  # a member that ends here has no events of its own, and is in no cursor
        self.name = info_of(record).path  # of a sub-agent
        self.path: Path | None = None  # what the reader has of it; None: nothing yet
        self.is_lost = False  # the reader has events of it that no branch has any more


class _Moved(Exception):
    """A member is not where it was when the family was listed."""


def _sources_first(records: Iterable[StoredConversation]) -> list[StoredConversation]:
    """The family's members, ordered so that shared events are reported for the branch that wrote them.

    Branches that were set aside come before other branches, because they keep what their source had.
    """
    records = sorted(records, key=lambda record: (record.lineage.kind != "aside", record.id))
    here = {record.id for record in records}
    by_source: dict[str | None, list[StoredConversation]] = {}
    for record in records:
        source = record.lineage.source
        by_source.setdefault(source if source in here else None, []).append(record)
    order = by_source.get(None, [])
    for record in order:  # grows while it is walked
        order += by_source.get(record.id, ())
    return order


def _team(records: Iterable[StoredConversation], id: str) -> list[StoredConversation]:
    """A conversation, its sub-agents and theirs."""
    by_parent: dict[str | None, list[StoredConversation]] = {}
    order: list[StoredConversation] = []
    for record in sorted(records, key=lambda record: record.id):
        if record.id == id:
            order.append(record)
        elif record.lineage.kind == "sub_agent":
            by_parent.setdefault(record.lineage.source, []).append(record)
    for record in order:  # grows while it is walked
        order += by_parent.get(record.id, ())
    return order


def _tag(id: str) -> str:
    return urlsafe_b64encode(blake2b(id.encode(), digest_size=6).digest()).decode()


def _with(who: Mapping[str, str], data: bytes) -> bytes:
    """A JSON object with the fields that name its conversation in front."""
    return encode({**who, **msgspec.json.decode(data, type=dict[str, Raw])})
