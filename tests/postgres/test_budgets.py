"""Budgets in PostgreSQL: nodes that reserve at the same moment never reserve more than there is."""

import anyio
import pytest

from forkpoint.errors import BudgetExceeded
from forkpoint.history.budgets import Amount, Budget
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.testing.conformance.base import begin, create, fork_of, run

pytestmark = pytest.mark.anyio

NODES, BRANCHES, CALLS = 3, 50, 10
CALL = Amount(nanodollars=0, tokens=100)


async def test_branches_on_several_nodes_make_no_more_calls_than_their_family_has_a_budget_for(postgres: str) -> None:
    nodes = [await PostgresStore.open(postgres) for _ in range(NODES)]
    made = await create(nodes[0])
    await run(nodes[0], made.id, "the beginning")
    branches = [(await nodes[0].fork(made.id, fork_of())).id for _ in range(BRANCHES)]
    spent = (await nodes[0].usage()).input + (await nodes[0].usage()).output
    await nodes[0].set_budget(made.id, Budget(tokens=spent + CALLS * CALL.tokens), scope="family")
    made_calls: list[str] = []

    async def call(node: PostgresStore, branch: str) -> None:
        try:
            turn = await begin(node, branch)
            await node.reserve(turn, CALL, CALL)
        except BudgetExceeded:
            return
        made_calls.append(branch)

    async with anyio.create_task_group() as group:
        for number, branch in enumerate(branches):
            group.start_soon(call, nodes[number % NODES], branch)
    assert len(made_calls) == CALLS
    standing = (await nodes[0].budgets(made.id))[-1]
    assert (standing.reserved.tokens, standing.left.tokens) == (CALLS * CALL.tokens, 0)
    assert (await nodes[0].verify()).ok
    for node in nodes:
        await node.close()
