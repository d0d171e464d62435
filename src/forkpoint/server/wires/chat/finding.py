"""Which conversation a chat completion is for: found by its name, made, or forked, as a draft until a turn commits."""

from forkpoint.backend.names import with_title
from forkpoint.backend.protocol import Draft, ForkOptions
from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import LocalBackend
from forkpoint.errors import AlreadyExists, NotFound
from forkpoint.ids import new_id
from forkpoint.server.wires.chat.asked import Asked
from forkpoint.server.wires.chat.hot import Entry, Key
from forkpoint.server.wires.chat.identity import Identity
from forkpoint.server.wires.chat.service import ChatService
from forkpoint.store.records import ConversationRecord


class Finding:
    """The conversation of a request's name, and what is in memory of it."""

    def __init__(self, chat: ChatService, backend: LocalBackend, tenant: str, identity: Identity, asked: Asked) -> None:
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
