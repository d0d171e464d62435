"""`AsyncConversations`: all conversations of a store.

::

    async with AsyncConversations("sqlite:///forkpoint.db") as conversations:
        for info in (await conversations.list(tags={"team": "build"})).items:
            print(info.name, info.title)
        spending = await conversations.usage()

`AsyncConversation` is the face of one conversation, this class that of a store: what a server does without an id, and
what a command does without a name.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Self

import anyio.from_thread

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Visualizer
from forkpoint.backend.diff import LIMIT, Diff, check_limit
from forkpoint.backend.names import Id, Named, as_name, as_text
from forkpoint.backend.options import ConversationFilter, ErasureOptions, ExportOptions
from forkpoint.backend.protocol import Backend
from forkpoint.backend.results import ExportReport, ImportReport, Info, Spending
from forkpoint.conversation.conversation import AsyncConversation
from forkpoint.conversation.copies import Progress, Target, read_export, write_export
from forkpoint.conversation.edge import edge
from forkpoint.conversation.handle import NewOptions, OpenOptions, created, opened
from forkpoint.conversation.place import Place, Where
from forkpoint.errors import BadArgument, StoreUnavailable
from forkpoint.history.anchors import Anchor
from forkpoint.history.budgets import Budget
from forkpoint.llm.model import LLM
from forkpoint.paging import Page
from forkpoint.parameters import Count
from forkpoint.store.erasure import Receipt, check_reason
from forkpoint.store.restoring import restore
from forkpoint.store.values import (
    Backup,
    Collected,
    CopyProgress,
    CopyStep,
    Hold,
    ListOrder,
    Restored,
    Status,
    Verification,
    VerifyProgress,
)


@edge()
class AsyncConversations:
    """All conversations of a store, or all that a key may see at a server. Making the object does no I/O.

    ``store`` says where they live, as in `AsyncConversation`: ``sqlite:///file.db``, ``memory:``, a path, an open
    `Store`, or ``http://host:8008`` for a server. Default: FORKPOINT_STORE, else a file in the user's data folder.

    The store is opened by the first call and stays open until `close`. Conversations that come from here share it, and
    each of them is closed on its own. A child made by ``os.fork`` opens the store again.
    """

    def __init__(self, store: Where = None) -> None:
        self._where = store
        self._place = Place(store)
        self._process = os.getpid()
        self._closed = False

    # Opening and closing.

    async def open(
        self,
        id: Id,
        *,
        agent: Agent | LLM | str | None = None,
        create: Agent | LLM | str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        bind: bool = True,
        allow: str | Collection[str] = (),
        trust: bool | None = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> AsyncConversation:
        """Opens a conversation that exists, by its id or name. Everything is as in `AsyncConversation.open`."""
        await self._backend()
        options = OpenOptions(
            agent=agent, create=create, workspace=workspace, title=title, tags=tags, bind=bind, allow=allow, trust=trust
        )
        return AsyncConversation._around(await opened(self._place.also(), as_text(id), options), callbacks, visualizer)

    async def create(
        self,
        agent: Agent | LLM | str,
        *,
        conversation_id: Id | None = None,
        workspace: str | os.PathLike[str] | None = None,
        trust: bool | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        family_budget: Budget | None = None,
        callbacks: Iterable[Callback] = (),
        visualizer: Visualizer | None = None,
    ) -> AsyncConversation:
        """Makes a conversation at once. It stays, even if no turn ever commits. Raises `AlreadyExists`.

        The arguments are those of `AsyncConversation`, which makes a conversation with its first turn only.
        """
        await self._backend()
        options = NewOptions(agent, conversation_id, workspace, trust, title, tags, budget, family_budget)
        return AsyncConversation._around(await created(self._place.also(), options), callbacks, visualizer)

    async def close(self) -> None:
        """Lets go of the store. The last user of the store closes it, which cancels turns that still run there."""
        at_rest, self._closed = self._is_at_rest, True
        if not at_rest:
            await self._place.leave()

    @property
    def _is_at_rest(self) -> bool:
        """Whether closing has nothing to wait for."""
        return self._closed or not self._place.is_open or os.getpid() != self._process

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # All of them.

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: Count = 50,
        order: ListOrder = "created",
        tags: Mapping[str, str] | None = None,
        status: Status | None = None,
        sub_agents: bool = False,
        sides: bool = False,
        asides: bool = True,
        drafts: bool = False,
        glance: bool = False,
        parent: Id | None = None,
    ) -> Page[Info]:
        """A page of conversations. ``cursor`` is `Page.next` of the page before, in the same order.

        - ``order``: ``created`` lists the newest first, ``used`` the last used first: when a turn began, to the minute.
        - ``tags``: only conversations that have all of these tags.
        - ``status``: only conversations with this status.
        - ``sub_agents``: with sub-agents.
        - ``sides``: with what clients asked beside conversations, such as titles.
        - ``asides``: with branches that a rewind or a keep has set aside.
        - ``drafts``: with conversations in which no turn has committed yet, such as one whose first turn failed.
        - ``glance``: with `Info.glance`: the first words of each, and how many asides and sides it has.
        - ``parent``: only the sub-agents of this conversation, by its id or name.
        """
        wanted = ConversationFilter(
            tags=tags or {},
            status=status,
            sub_agents=sub_agents,
            sides=sides,
            asides=asides,
            drafts=drafts,
            parent=None if parent is None else as_text(parent),
        )
        backend = await self._backend()
        return await backend.conversations(cursor=cursor, limit=limit, order=order, wanted=wanted, glance=glance)

    async def diff(self, a: Named, b: Named, *, limit: int = LIMIT) -> Diff:
        """How two conversations differ, each given as a conversation, an id or a name: `AsyncConversation.diff`."""
        check_limit(limit)
        backend = await self._backend()
        info, _ = await backend.find(as_name(a))
        return await backend.branches.diff(info.id, as_name(b), limit=limit)

    async def usage(self) -> Spending:
        """All that was ever spent, each token once, in deleted conversations too. A server counts the key's tenant."""
        return Spending(*await (await self._backend()).usage())

    async def holds(self) -> tuple[Hold, ...]:
        """All holds, the oldest first. `Conversation.hold` sets one."""
        return await (await self._backend()).holds(None)

    async def erase(
        self,
        *,
        reason: str,
        tags: Mapping[str, str] | None = None,
        tenant: bool = False,
        preview: bool = False,
        cancel: bool = False,
    ) -> tuple[Receipt, ...]:
        """Erases everything in many conversations: in those that have all ``tags``, or in all of the ``tenant``.

        Each family is erased whole or not at all, one after the other: after an error, call it again. Returns a receipt
        for each family. ``preview`` and ``cancel`` are as in `Conversation.erase`.
        """
        if bool(tags) == tenant:
            raise BadArgument("erase()", "what", "say one of tags= and tenant=True")
        check_reason(reason)
        options = ErasureOptions(reason=reason, preview=preview, cancel=cancel)
        return await (await self._backend()).erase_all(None if tenant else tags, options)

    async def erasures(self, *, cursor: str | None = None, limit: Count = 50) -> Page[Receipt]:
        """The receipts of all erasures, the oldest first: what a restored copy needs to erase the same."""
        return await (await self._backend()).erasures(cursor=cursor, limit=limit)

    async def verify(
        self,
        *,
        head_digest: str | None = None,
        anchors: Iterable[Anchor] = (),
        since: Anchor | None = None,
        progress: VerifyProgress | None = None,
    ) -> Verification:
        """Checks that nobody changed anything that is kept of any conversation.

        ``head_digest`` is an earlier `Info.digest` of one of them, kept elsewhere. ``anchors`` are what `anchor` gave
        earlier, kept elsewhere too: `read_anchors` reads them from lines of JSON. Only an anchor finds out whoever
        rewrote all history since, with all its digests.

        ``since`` is an anchor too: only what was recorded after it is looked at, which takes as long as there is of it,
        and no older payload. `Verification.since` says so. It cannot be combined with ``head_digest``.

        ``progress`` is called now and then, from another thread, with how many events and records were looked at and
        how many there are. Of a check by a server it hears only the end. Raises `StoreDamaged` if the file itself is
        damaged.
        """
        backend, kept = await self._backend(), tuple(anchors)
        return await backend.verify(None, head_digest=head_digest, anchors=kept, since=since, progress=progress)

    async def anchor(self, *, all_tenants: bool = False) -> Anchor:
        """Puts all that was recorded under a seal, and returns the anchor that names it: keep it elsewhere.

        It is less than 500 bytes as JSON (`Anchor.to_json`), however much it covers. If nothing is new, it is the same
        anchor as before. ``all_tenants``: of the whole store and not of one tenant, for whoever operates it.
        """
        return await (await self._backend()).anchor(all_tenants=all_tenants)

    # Copies.

    async def backup(
        self, path: str | os.PathLike[str], *, force: bool = False, progress: CopyProgress | None = None
    ) -> Backup:
        """Writes a copy of the whole store to a file, while others write. Checks the copy before it gets its name.

        ``force`` replaces a file that is there; without it that raises `CopyRefused`. ``progress`` is told how far the
        copy has come, from another thread. A server's store is copied on the machine that has its file.
        """
        return await (await self._backend()).backup(os.fspath(path), force=force, progress=progress)

    async def restore(
        self,
        backup: str | os.PathLike[str],
        *,
        erasures: str | os.PathLike[str] | None = None,
        forget_erasures: bool = False,
        force: bool = False,
        progress: CopyProgress | None = None,
    ) -> Restored:
        """Makes this store of a backup, which is checked first. No process may have the store open.

        What was erased after the backup was made would come back with it, so one of two has to be given:

        - ``erasures``: a file of receipts, one on a line. What they name is erased in the new store too.
        - ``forget_erasures``: nothing was erased since, or it may come back.

        ``force`` replaces a store that is there, which is kept under a dated name (`Restored.kept`).
        """

        def tell(step: CopyStep) -> None:
            anyio.from_thread.check_cancelled()  # between two steps it can be given up
            if progress is not None:
                progress(step)

        return await self._place.restore(
            partial(restore, backup, erasures=erasures, forget_erasures=forget_erasures, force=force, progress=tell)
        )

    async def collect(self, *, dry_run: bool = False, compact: bool = False) -> Collected:
        """Removes from the disk what was deleted or kept long enough. A server does so for the key's tenant.

        This happens by itself: a store does it when it is closed, a server every few minutes and after deletions.
        `Collected.pending` says what could not be finished now, and why.

        - ``dry_run``: only say what would be removed.
        - ``compact``: also write the whole file anew, without gaps. Nobody can write meanwhile; not at a server.
        """
        return await (await self._backend()).collect(dry_run=dry_run, compact=compact)

    async def export(
        self,
        to: Target,
        *,
        tags: Mapping[str, str] | None = None,
        format: str = "forkpoint",
        progress: Progress | None = None,
    ) -> ExportReport:
        """Writes all conversations into a file: its path, or an open file that takes bytes. docs/export.md has more.

        - ``tags``: only conversations that have all of these tags, with their sub-agents and sides.
        - ``format``: ``forkpoint``, which `import_` reads, or ``md``, for people.
        - ``progress``: called with the number of bytes that were written so far.
        """
        wanted = ExportOptions(scope="all" if tags is None else "tags", tags=tags or {}, format=format)
        return await write_export((await self._backend()).export(wanted), to, progress)

    async def import_(self, source: Target, *, rename: bool = False, progress: Progress | None = None) -> ImportReport:
        """Brings the conversations of an export into the store, with their ids, turns, costs and digests.

        Everything is checked first. Each family comes whole or not at all, and once: the same file again changes
        nothing. A conversation that is here already goes on if the file has more of it. Raises `BadExport` if the file
        is not as it was written, and `ImportRefused` if a conversation has gone another way here. Raises
        `AlreadyExists` if another conversation has the name of one, unless ``rename`` is set: then that one gets
        another name. ``progress`` is called with the number of bytes that were read so far.
        """
        backend = await self._backend()
        async with aclosing(read_export(source, progress)) as chunks:
            return await backend.import_(chunks, rename=rename)

    async def _backend(self) -> Backend:
        """The backend of the store, opened by the first call. Raises `StoreUnavailable` after `close`."""
        if self._closed:
            raise StoreUnavailable.store_closed(self._place.address)
        if os.getpid() != self._process:  # what the parent of this process has open cannot be used here
            self._place, self._process = Place(self._where), os.getpid()
        return await self._place.backend()
