"""MCP servers of an agent in conversations: their lists are frozen with the first turn.

What else holds of them there is in tests/conversation/test_mcp.py.
"""

from typing import Any

import pytest
from tests.agent.mcp.calling import odd
from tests.conversation.support.agents import asks, call

from forkpoint import AsyncConversation
from forkpoint.agent import Agent
from forkpoint.agent.mcp import McpServer, end_servers
from forkpoint.errors import BadAgent
from forkpoint.events import ManifestChanged, ToolResult
from forkpoint.testing import Reply, Script

pytestmark = pytest.mark.anyio


def agent_of(name: str, replies: list[Any], *servers: McpServer, **settings: Any) -> Agent:
    return Agent(
        Script([Reply(one) if isinstance(one, str) else one for one in replies]).register(name), mcp=servers, **settings
    )


async def bodies(conversation: Any, kind: type) -> list[Any]:
    return [event.body for event in await conversation.events() if isinstance(event.body, kind)]


async def test_the_first_turn_asks_for_the_list_and_every_later_one_has_the_same(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    agent = agent_of("mcp-1", [asks(call("odd__echo", "a")), "done", "more", "again", "forked"], odd())
    assert agent.tools == ()
    async with AsyncConversation(agent=agent, store=store) as conversation:
        turn = await conversation.run("go")
        assert [call.status for call in turn.calls] == ["done"]
        await end_servers()
        await conversation.run("more")
        id = conversation.id
        from forkpoint.agent.mcp import connections

        pool = connections._the_pool
        assert pool is None or not [c for c in pool.connections.values() if not c.is_over], (
            "no server is started for it"
        )
    async with await AsyncConversation.open(id, store=store) as again:
        await again.run("again")
        fork = await again.fork()
        await fork.run("forked")
        for one in (again, fork):
            assert len(await bodies(one, ManifestChanged)) == 1


async def test_a_first_turn_that_waits_goes_on_with_the_list_that_it_began_with(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    agent = agent_of("mcp-4", [asks(call("odd__echo", "a")), "done"], odd(), approval="risky")
    async with AsyncConversation(agent=agent, store=store) as conversation:
        turn = await conversation.run("go")
        assert turn.outcome == "awaiting_approval"
        id = conversation.id
    await end_servers()
    async with await AsyncConversation.open(id, store=store) as again:
        await again.open_turn()
        done = await again.approve()
        assert (done.outcome, done.text) == ("committed", "done")
        assert [body.status for body in await bodies(again, ToolResult)] == ["done"]


def test_two_servers_of_one_name_are_refused_and_an_agent_comes_back_from_its_json() -> None:
    with pytest.raises(BadAgent, match="two of its MCP servers are called odd"):
        Agent("scripted/x", mcp=[odd(), odd("other")])
    from forkpoint.agent.stored.document import bind

    agent = Agent("scripted/x", mcp=[odd()])
    assert bind(agent.to_json()) == agent
    assert hash(agent) == hash(agent.replace(name=None))
