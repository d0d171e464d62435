"""`EngineBranches`: the branches of a store's conversations, as callers see them.
Tests: tests/conversation/test_fork.py, test_rewind.py, test_keep.py, test_family.py."""

from collections.abc import Sequence
from functools import partial

from forkpoint.agent.agent import Agent
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.backend.diff import LIMIT, Diff
from forkpoint.backend.options import ForkOptions
from forkpoint.backend.results import Branch, Info, tree_of
from forkpoint.backend.settings import Settings
from forkpoint.engine.branches.brings import Brings
from forkpoint.engine.branches.comparison import BranchComparison
from forkpoint.engine.branches.forks import Forks
from forkpoint.engine.branches.keeps import Keeps
from forkpoint.engine.resources import Resources
from forkpoint.engine.turns.runner import TurnRunner
from forkpoint.engine.views import info_of
from forkpoint.events import NewEvent, Position
from forkpoint.paging import every
from forkpoint.store.values import StoredConversation


class EngineBranches:
    """Branches the conversations of an open store, and finds their families."""

    def __init__(self, resources: Resources, turns: TurnRunner) -> None:
        self._store = resources.store
        self._records = resources.records
        self._turns = turns
        self.forks = Forks(resources)
        self._keeps = Keeps(resources)
        self._comparison = BranchComparison(resources.store, resources.records)
        self._brings = Brings(resources)

    async def fork(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None = None,
        *,
        key: str | None = None,
        if_revision: int | None = None,
        draft: bool = False,
    ) -> tuple[Info, Settings]:
        """A fork. A ``draft`` is not listed before its first turn commits."""
        made = await self.forks.fork(source, options, agent, key=key, if_revision=if_revision, draft=draft)
        return _with_settings(self._records.know(made))

    async def rewind(
        self,
        id: str,
        *,
        at: str | Position | None,
        before: str | Position | None,
        events: Sequence[NewEvent] = (),
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings] | None:
        """Moves a head back. With ``events`` it goes on with a note of them, in the same transaction."""
        await self._turns.unended.end(id)
        aside = await self.forks.rewind(id, at=at, before=before, events=events, key=key, if_revision=if_revision)
        return None if aside is None else _with_settings(aside)

    async def keep(
        self, id: str, branch: str, *, key: str | None = None, if_revision: int | None = None
    ) -> tuple[tuple[Info, Settings], tuple[Info, Settings] | None]:
        await self._turns.unended.end(id)
        now, aside = await self._keeps.keep(id, branch, key=key, if_revision=if_revision)
        return _with_settings(now), None if aside is None else _with_settings(aside)

    async def diff(self, id: str, other: str, *, limit: int = LIMIT) -> Diff:
        return await self._comparison.diff(id, other, limit)

    async def bring(self, id: str, options: BringOptions, agent: Agent | None = None) -> BringReport:
        await self._turns.unended.end(id)
        return await self._brings.bring(id, options, agent)

    async def tree(self, id: str) -> tuple[Branch, ...]:
        family = (await self._store.read(id)).family
        records = every(partial(self._store.conversations, family=family))
        return tree_of([info_of(record) async for record in records])


def _with_settings(record: StoredConversation) -> tuple[Info, Settings]:
    return info_of(record), Settings.from_json(record.settings)
