"""The sub-agents of conversations behind a server. Tests: tests/conversation/test_members.py."""

from forkpoint.agent.agent import Agent
from forkpoint.backend.options import SpawnOptions
from forkpoint.backend.results import Info, Member
from forkpoint.backend.settings import Settings
from forkpoint.ids import new_id
from forkpoint.remote.connection import ServerConnection, ServerRequest, quoted
from forkpoint.remote.requests import agent_of, given, path_of, with_settings
from forkpoint.wire.documents import InfoDocument, MemberDocument, TeamDocument, info_of_document, member_of_document


class RemoteTeam:
    """Makes, finds and closes sub-agents on a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def spawn(
        self, parent: str, options: SpawnOptions, agent: Agent | None, *, key: str | None = None
    ) -> tuple[Info, Settings]:
        task = options.task
        body = {
            "task": task.task,
            "role": task.role,
            "agent": agent_of(options.agent, task.agent),
            "model": task.model,
            "nickname": task.nickname,
            "fork": task.fork,
            "title": options.title,
            "tags": dict(options.tags),
            "budget": options.budget,
            "run": False,  # whoever asked runs it, and hears it
        }
        path = f"{path_of(parent)}/agents"
        request = ServerRequest(method="POST", path=path, body=given(body), key=key or new_id())
        return await self._info(request)

    async def members(self, id: str) -> tuple[Member, ...]:
        request = ServerRequest(method="GET", path=f"{path_of(id)}/agents")
        return await self._connection.read(
            request, TeamDocument, lambda team: tuple(map(member_of_document, team.items))
        )

    async def reach(self, id: str, agent: str, *, key: str | None = None) -> tuple[Info, Settings]:
        path = f"{path_of(id)}/agents/{quoted(agent, 'agent')}/reach"
        return await self._info(ServerRequest(method="POST", path=path, key=key or new_id()))

    async def close(self, id: str, agent: str) -> Member:
        path = f"{path_of(id)}/agents/{quoted(agent, 'agent')}/close"
        return await self._connection.read(ServerRequest(method="POST", path=path), MemberDocument, member_of_document)

    async def _info(self, request: ServerRequest) -> tuple[Info, Settings]:
        return with_settings(await self._connection.read(request, InfoDocument, info_of_document))
