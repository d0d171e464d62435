"""`RemoteBackend`: conversations behind a server, the same as those in a store of one's own.

It holds nothing but the connection: what is asked for is read from the server, and the errors are the server's. Agents
are sent as data. What a server sends is never imported, bound or run here.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.context import AgentState
from forkpoint.agent.standing_approval import StandingApproval
from forkpoint.backend.options import ConversationFilter, Draft, ErasureOptions, ExportOptions
from forkpoint.backend.results import ImportReport, Info, RemovedWorkspace, Stats
from forkpoint.backend.settings import Settings
from forkpoint.errors import BadArgument, BadPosition, CopyRefused, NotFound
from forkpoint.events import Event, Usage
from forkpoint.history.anchors import Anchor
from forkpoint.ids import new_id
from forkpoint.paging import Page
from forkpoint.remote import requests
from forkpoint.remote.branches import RemoteBranches
from forkpoint.remote.budgets import RemoteBudgets
from forkpoint.remote.connection import EXPORT, Delivery, Lost, ServerConnection, ServerRequest, quoted
from forkpoint.remote.questions import RemoteQuestions
from forkpoint.remote.requests import given, made_of, page_of, page_size, path_of, with_settings
from forkpoint.remote.team import RemoteTeam
from forkpoint.remote.turns import RemoteTurns
from forkpoint.store.erasure import Receipt
from forkpoint.store.values import (
    Backup,
    Collected,
    CopyProgress,
    Hold,
    ListOrder,
    Record,
    Verification,
    VerifyProgress,
)
from forkpoint.wire.documents import (
    ApprovalsDocument,
    DeletedDocument,
    EventsDocument,
    HoldsDocument,
    ImportDocument,
    InfoDocument,
    PageDocument,
    ReceiptsDocument,
    SpendingDocument,
    StateDocument,
    StatsDocument,
    VerificationDocument,
    event_of,
    import_of,
    info_of_document,
    spending_of,
    stats_of,
    verification_of,
)


class _PageOfEvents(Struct, frozen=True):
    events: list[Event]
    next: int | None
    head: str | None


class RemoteBackend:
    """Conversations behind a server, whose address is given. The key is taken from FORKPOINT_API_KEY."""

    def __init__(self, url: str | ServerConnection) -> None:
        self._connection = ServerConnection(url) if isinstance(url, str) else url
        self.turns = RemoteTurns(self._connection)
        self.branches = RemoteBranches(self._connection)
        self.budgets = RemoteBudgets(self._connection)
        self.questions = RemoteQuestions(self._connection)
        self.team = RemoteTeam(self._connection)

    async def close(self) -> None:
        """Cancels the turns that are followed here, and lets go of the server."""
        await self.turns.stop()
        await self._connection.close()

    def check_closable(self) -> None:
        """A turn that runs elsewhere can be stopped from anywhere."""

    # Conversations.

    async def prepared(self, draft: Draft, agent: Agent | None) -> tuple[Draft, Agent | None]:
        return replace(draft, asked=draft.settings), agent  # the server does that

    async def trust(self, family: str, workspace: str, trusted: bool) -> None:
        why = "it is said when a conversation is made there, and later by whoever runs the server: `forkpoint trust`"
        raise BadArgument("trust", repr(trusted), why)

    def trust_warning(self, family: str) -> str | None:
        return None  # it is in the server's log

    async def create(self, draft: Draft, *, key: str | None = None) -> Info:
        body = {"id": draft.id, "chosen": draft.chosen} | made_of(draft)
        request = ServerRequest(method="POST", path="/api/conversations", body=body, key=key or new_id())
        return await self._info(request)

    async def find(self, id_or_name: str) -> tuple[Info, Settings]:
        return with_settings(await self._info(ServerRequest(method="GET", path=path_of(id_or_name))))

    async def conversations(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        order: ListOrder = "created",
        wanted: ConversationFilter = ConversationFilter(),
        glance: bool = False,
    ) -> Page[Info]:
        query = [("limit", page_size(limit)), *(("tag", f"{key}={value}") for key, value in wanted.tags.items())]
        named = (("cursor", cursor), ("status", wanted.status), ("parent", wanted.parent))
        query += [(name, value) for name, value in named if value is not None]
        query += [("order", order)] if order != "created" else []
        query += [("sub_agents", "true")] if wanted.sub_agents else []
        query += [("sides", "true")] if wanted.sides else []
        query += [] if wanted.asides else [("asides", "false")]
        query += [("drafts", "true")] if wanted.drafts else []
        query += [("glance", "true")] if glance else []
        request = ServerRequest(method="GET", path="/api/conversations", query=query)
        return await self._connection.read(request, PageDocument[InfoDocument], page_of(info_of_document))

    async def describe(
        self,
        id: str,
        *,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        if_info: Info | None = None,
    ) -> Info:
        said: dict[str, Any] = {"title": title, "tags": None if tags is None else dict(tags), "name": name}
        version = None if if_info is None else if_info.version
        return await self._info(ServerRequest(method="PATCH", path=path_of(id), body=given(said), revision=version))

    async def delete(self, id: str, *, if_revision: int | None = None) -> RemovedWorkspace | None:
        sending = Delivery()
        request = ServerRequest(method="DELETE", path=path_of(id), revision=if_revision)
        try:
            body = await self._connection.call(request, sending)
        except NotFound as error:
            if not sending.repeated or error.code != "not_found":
                raise
            return None  # the first of our requests did it
        return self._connection.understood(body, DeletedDocument).workspace if body else None

    async def change(self, id: str, settings: Settings, agent: Agent | None, *, if_revision: int | None = None) -> Info:
        request = ServerRequest(
            method="PUT", path=f"{path_of(id)}/agent", body={"agent": settings.agent}, revision=if_revision
        )
        return await self._info(request, twice=if_revision is None)

    # Standing approvals.

    async def approvals(self, id: str, *, revoked: bool = False) -> tuple[StandingApproval, ...]:
        query = [("revoked", "true")] if revoked else []
        request = ServerRequest(method="GET", path=f"{path_of(id)}/approvals", query=query)
        return await self._connection.read(request, ApprovalsDocument, lambda found: found.items)

    async def revoke_approval(self, id: str, approval: str, *, by: str | None = None) -> StandingApproval:
        path = f"{path_of(id)}/approvals/{quoted(approval, 'standing approval')}"
        request = ServerRequest(method="DELETE", path=path, query=[] if by is None else [("by", by)])
        return await self._connection.read(request, StandingApproval)

    # Holds and erasures.

    async def hold(self, id: str, hold: str, reason: str) -> Hold:
        request = ServerRequest(method="POST", path=f"{path_of(id)}/holds", body={"id": hold, "reason": reason})
        return await self._connection.read(request, Hold)

    async def holds(self, id: str | None) -> tuple[Hold, ...]:
        path = "/api/holds" if id is None else f"{path_of(id)}/holds"
        return await self._connection.read(
            ServerRequest(method="GET", path=path), HoldsDocument, lambda found: found.items
        )

    async def release(self, id: str, hold: str | None) -> tuple[Hold, ...]:
        one = "" if hold is None else f"/{quoted(hold, 'hold')}"
        request = ServerRequest(method="DELETE", path=f"{path_of(id)}/holds{one}")
        return await self._connection.read(request, HoldsDocument, lambda found: found.items, twice=False)

    async def erase(self, id: str, options: ErasureOptions) -> Receipt:
        event = None if options.event is None else str(options.event)
        body = given({"turn": options.turn, "event": event, "keep_summaries": options.keep_summaries})
        everything = options.turn is None and options.event is None
        body |= _erasing(options) | ({"everything": True} if everything else {})
        request = ServerRequest(method="POST", path=f"{path_of(id)}/erase", body=body, read=None)
        return await self._connection.read(request, Receipt, twice=options.preview)

    async def erase_all(self, tags: Mapping[str, str] | None, options: ErasureOptions) -> tuple[Receipt, ...]:
        body = _erasing(options) | ({"everything": True} if tags is None else {"tags": dict(tags)})
        request = ServerRequest(method="POST", path="/api/erase", body=body, read=None)
        return await self._connection.read(request, ReceiptsDocument, lambda found: found.items)

    async def erasures(self, *, cursor: str | None = None, limit: int = 50) -> Page[Receipt]:
        query = [("limit", str(limit))] + ([] if cursor is None else [("cursor", cursor)])
        request = ServerRequest(method="GET", path="/api/erasures", query=query)
        return await self._connection.read(request, PageDocument[Receipt], page_of(lambda one: one))

    # Reading.

    async def events(
        self, id: str, *, after: int = 0, limit: int | None = None, kinds: Sequence[str] = ()
    ) -> list[Event]:
        if limit is not None and limit <= 0:
            return []
        after = max(after, 0)
        while True:
            with suppress(_Rewound):
                return await self._events(id, after, limit, kinds)

    async def _events(self, id: str, after: int, limit: int | None, kinds: Sequence[str]) -> list[Event]:
        """All pages of one path. Raises `_Rewound` if the conversation has left that path meanwhile."""
        found: list[Event] = []
        upto = None if limit is None else after + limit
        at: str | None = None  # where the path ends that the first page was of
        while True:
            most = requests.PAGE if upto is None else min(upto - after, requests.PAGE)
            query = [("after", str(after)), ("limit", str(most)), *(("kind", kind) for kind in kinds)]
            query += [] if at is None else [("at", at)]
            try:
                request = ServerRequest(method="GET", path=f"{path_of(id)}/events", query=query)
                page = await self._connection.read(request, EventsDocument, partial(_events_of, after))
            except (NotFound, BadPosition):
                if at is None:
                    raise
                raise _Rewound from None
            found += page.events
            if page.next is None or (upto is not None and page.next >= upto):
                return found
            after, at = page.next, page.head

    async def stats(self, id: str) -> Stats:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/stats")
        return await self._connection.read(request, StatsDocument, stats_of)

    async def usage(self) -> tuple[Usage, Usage]:
        return await self._connection.read(
            ServerRequest(method="GET", path="/api/usage"), SpendingDocument, spending_of
        )

    async def state(self, id: str) -> dict[str, Any]:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/state")
        return await self._connection.read(request, StateDocument, lambda found: found.state)

    async def update_state(
        self, id: str, set: Mapping[str, Any], removed: Collection[str], *, if_revision: int | None = None
    ) -> None:
        checked = AgentState()
        for key, value in set.items():
            checked[key] = value  # raises for what has no JSON form; NaN would be sent as null
        request = ServerRequest(
            method="PATCH",
            path=f"{path_of(id)}/state",
            body={"set": dict(set), "remove": sorted(removed)},
            revision=if_revision,
        )
        await self._connection.call(request, twice=if_revision is None)

    async def verify(
        self,
        id: str | None,
        *,
        head_digest: str | None,
        anchors: Sequence[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        """A server answers once it is done, so ``progress`` hears only of the end."""
        path = "/api/verify" if id is None else f"{path_of(id)}/verify"
        kept = {"anchors": to_builtins(anchors) if anchors else None, "since": to_builtins(since)}
        body = given({"head_digest": head_digest, **kept})
        request = ServerRequest(method="POST", path=path, body=body, read=None)
        found = await self._connection.read(request, VerificationDocument, verification_of)
        if progress is not None:
            progress(found.events + found.records, found.events + found.records)
        return found

    async def records(self, id: str, *, cursor: str | None = None, limit: int = 50) -> Page[Record]:
        query = [("limit", page_size(limit)), *([] if cursor is None else [("cursor", cursor)])]
        request = ServerRequest(method="GET", path=f"{path_of(id)}/records", query=query)
        return await self._connection.read(request, PageDocument[Record], page_of(_as_it_is))

    async def backup(self, path: str, *, force: bool, progress: CopyProgress | None) -> Backup:
        raise CopyRefused.on_a_server(self._connection.url)

    async def anchor(self, *, all_tenants: bool) -> Anchor:
        if all_tenants:
            why = "a server gives its callers the anchor of their tenant; ask for this one where its store is"
            raise BadArgument("anchor()", "all_tenants=True", why)
        return await self._connection.read(ServerRequest(method="GET", path="/api/anchor"), Anchor)

    async def collect(self, *, dry_run: bool = False, compact: bool = False) -> Collected:
        if compact:
            why = "nobody could write meanwhile; whoever runs the server does it there: forkpoint collect --compact"
            raise BadArgument("collect()", "compact=True", why)
        request = ServerRequest(method="POST", path="/api/collect", body={"dry_run": dry_run}, read=None)
        return await self._connection.read(request, Collected, lambda found: found)

    # Copies.

    async def export(self, wanted: ExportOptions) -> AsyncGenerator[bytes, None]:
        query = [("format", wanted.format), *(("tag", f"{key}={value}") for key, value in wanted.tags.items())]
        path = "/api/export"
        if wanted.id is not None:
            path, query = f"{path_of(wanted.id)}/export", [*query, ("scope", wanted.scope)]
        request = ServerRequest(
            method="GET", path=path, query=query, read=None, accepts=(EXPORT, "text/markdown", "application/json")
        )
        try:
            opened = self._connection.opened(request, Delivery())
            async with opened as response, aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Lost as lost:  # a file that has begun is not begun again
            raise lost.error from lost.__cause__

    async def import_(self, chunks: AsyncIterator[bytes], *, rename: bool) -> ImportReport:
        query = [("rename", "true")] if rename else []
        request = ServerRequest(method="POST", path="/api/import", query=query, upload=chunks, read=None)
        try:
            async with self._connection.opened(request, Delivery()) as response:
                body = await response.aread()
        except Lost as lost:  # the pieces are gone; the same file again does no harm
            raise lost.error from lost.__cause__
        return self._connection.understood(body, ImportDocument, import_of)

    async def _info(self, request: ServerRequest, *, twice: bool = True) -> Info:
        return await self._connection.read(request, InfoDocument, info_of_document, twice=twice)


class _Rewound(Exception):
    """The path that was being read is no longer the conversation's."""


def _as_it_is(record: Record) -> Record:
    return record


def _events_of(after: int, page: EventsDocument) -> _PageOfEvents:
    events = [event for event in map(event_of, page.items) if isinstance(event, Event)]
    next = None if page.next is None else int(page.next)
    if next is not None and next <= after:
        raise ValueError("a page leads to itself")
    return _PageOfEvents(events, next, page.head)


def _erasing(options: ErasureOptions) -> dict[str, Any]:
    """What all bodies of erasures have."""
    return {"reason": options.reason, "dry_run": options.preview, "cancel": options.cancel}
