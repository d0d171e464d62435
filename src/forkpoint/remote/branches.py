"""Branches of conversations behind a server. Tests: tests/conversation/test_both_homes.py, test_fork_keys.py,
test_diff.py, test_bring.py."""

from msgspec import Raw
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.backend.bring import BringOptions, BringReport
from forkpoint.backend.diff import LIMIT, Diff
from forkpoint.backend.options import ForkOptions
from forkpoint.backend.results import Branch, Info, tree_of
from forkpoint.backend.settings import Settings
from forkpoint.events import Position
from forkpoint.ids import new_id
from forkpoint.remote.connection import ServerConnection, ServerRequest
from forkpoint.remote.requests import agent_of, given, path_of, results_of, with_settings, without
from forkpoint.wire.branches import BroughtDocument, DiffDocument, brought_of, diff_of
from forkpoint.wire.documents import FamilyDocument, InfoDocument, KeepDocument, RewindDocument, info_of_document


class RemoteBranches:
    """Branches conversations behind a server, and finds their families."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def fork(
        self,
        source: str,
        options: ForkOptions,
        agent: Agent | None = None,
        *,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings]:
        body = {
            "id": (options.name or options.id) if options.chosen else None,
            "at": _point(options.at),
            "before": _point(options.before),
            "title": options.title,
            "tags": dict(options.tags),
            "reset_metrics": options.reset_metrics,
            "cache": options.cache,
            "agent": agent_of(options.agent, options.server_agent),
            "workspace": options.workspace or options.isolation,
            "results": results_of(options.results) or None,
            "state": {key: Raw(value.encode()) for key, value in options.state.items()} or None,
            "budget": options.budget,
        }
        path = f"{path_of(source)}/fork"
        request = ServerRequest(method="POST", path=path, body=given(body), key=key or new_id(), revision=if_revision)
        if options.isolation is not None:
            request = replace(request, read=None)  # copying takes as long as it takes
        return with_settings(await self._connection.read(request, InfoDocument, info_of_document))

    async def rewind(
        self,
        id: str,
        *,
        at: str | Position | None,
        before: str | Position | None,
        key: str | None = None,
        if_revision: int | None = None,
    ) -> tuple[Info, Settings] | None:
        body = given({"at": _point(at), "before": _point(before)})
        path = f"{path_of(id)}/rewind"
        request = ServerRequest(method="POST", path=path, body=body, key=key or new_id(), revision=if_revision)
        aside = await self._connection.read(request, RewindDocument, _aside_of)
        return None if aside is None else with_settings(aside)

    async def keep(
        self, id: str, branch: str, *, key: str | None = None, if_revision: int | None = None
    ) -> tuple[tuple[Info, Settings], tuple[Info, Settings] | None]:
        path, body = f"{path_of(id)}/keep", {"branch": branch}
        request = ServerRequest(method="POST", path=path, body=body, key=key or new_id(), revision=if_revision)
        kept = await self._connection.read(request, KeepDocument)
        aside = None if kept.aside is None else with_settings(info_of_document(kept.aside))
        return with_settings(info_of_document(kept.conversation)), aside

    async def diff(self, id: str, other: str, *, limit: int = LIMIT) -> Diff:
        query = [("with", other), ("limit", str(limit))]
        request = ServerRequest(method="GET", path=f"{path_of(id)}/diff", query=query)
        return await self._connection.read(request, DiffDocument, diff_of)

    async def bring(self, id: str, options: BringOptions, agent: Agent | None = None) -> BringReport:
        body = {"branch": options.branch, "what": options.what} | without(options.allow, agent)
        path, key = f"{path_of(id)}/bring", options.key or new_id()
        request = ServerRequest(method="POST", path=path, body=body, key=key, revision=options.if_revision, read=None)
        return await self._connection.read(request, BroughtDocument, brought_of)

    async def tree(self, id: str) -> tuple[Branch, ...]:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/tree")
        family = await self._connection.read(request, FamilyDocument, lambda found: map(info_of_document, found.items))
        return tree_of(family)


def _aside_of(rewound: RewindDocument) -> Info | None:
    return None if rewound.aside is None else info_of_document(rewound.aside)


def _point(at: str | Position | None) -> str | None:
    return None if at is None else str(at)
