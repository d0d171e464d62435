"""Many at once cannot spend more than a family may: tasks, stores, processes, at random, some cancelled or killed."""

import random
import signal
import subprocess
import sys
import textwrap
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from tests.conversation.support.agents import scripted

from forkpoint import Agent, AsyncConversation, Budget, TurnFailed
from forkpoint.conversation import BudgetStanding
from forkpoint.errors import BudgetExceeded
from forkpoint.events import Usage
from forkpoint.llm import LLM, Price
from forkpoint.store import open_store
from forkpoint.testing import Fault, Heard, Reply

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
COST = Usage(calls=1, input=1300, output=100)  # a little less than the worst case of such a call
TOKENS = COST.input + COST.output
PRICE = Price(input=1.0, output=10.0)
CALLS = 10


def billed(choose: random.Random) -> LLM:
    """A model that takes its time, bills what a call costs at most, and fails now and then."""

    def answer(_: Heard) -> Reply:
        fault = choose.choice([None, None, None, Fault("overloaded"), Fault("cut", after=1), Fault("hang", after=1)])
        return Reply("done and done", delay=choose.random() * 0.01, usage=COST, fault=fault, piece=1)

    return scripted(answer, max_tokens=100, price=PRICE)


async def family_of(conversation: AsyncConversation) -> BudgetStanding:
    return next(one for one in await conversation.budget() if one.scope == "family")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_fifty_branches_at_once_no_more_succeed_than_the_budget_has_calls_for(
    tmp_path: Path, seed: int, anyio_backend: str
) -> None:
    choose = random.Random(seed)
    address = f"sqlite:///{tmp_path}/x.db"
    done, refused = [0], [0]
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await open_store(address)) for _ in range(3)]
        agent = Agent(billed(choose))
        root = await stack.enter_async_context(AsyncConversation(agent, store=stores[0], tags={"a": "b"}))
        await root.describe(title="the root")
        await root.set_budget(Budget(tokens=CALLS * TOKENS), scope="family")

        async def branch(number: int) -> None:
            store = stores[number % len(stores)]
            async with (
                await AsyncConversation.open(root.id, agent=agent, store=store) as source,
                await source.fork() as fork,
            ):
                for _ in range(choose.randint(1, 3)):
                    with anyio.move_on_after(choose.uniform(0.2, 0.6)):
                        try:
                            await fork.run("go")
                            done[0] += 1
                        except BudgetExceeded:
                            refused[0] += 1
                        except TurnFailed as failed:
                            refused[0] += isinstance(failed.cause, BudgetExceeded)
                    seen = await family_of(fork)
                    assert (seen.spent.tokens or 0) + (seen.reserved.tokens or 0) <= CALLS * TOKENS

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(branch, number)
        family = await family_of(root)
        spent = await root.stats()
        assert (family.reserved.tokens, family.reserved.turns) == (0, 0), "nothing stays reserved"
        assert family.spent.tokens == spent.family.input + spent.family.output <= CALLS * TOKENS
        assert done[0] <= CALLS
        assert family.spent.tokens, "something was spent"
        assert refused[0], "and something was refused"
        assert (await root.verify()).flaws == ()


SPENDS = """
    import sys
    from forkpoint import Agent, Conversation, LLM, TurnFailed
    from forkpoint.errors import BudgetExceeded
    from forkpoint.events import Usage
    from forkpoint.testing import Fault, Reply, Script

    store, root, hangs = sys.argv[1:]
    cost = Usage(calls=1, input=1300, output=100)
    fault = Fault("hang", after=1) if hangs == "hangs" else None
    model = LLM(Script([Reply("done", usage=cost, fault=fault, piece=1)], repeat=True).register("s"), max_tokens=100)
    agent, done = Agent(model), 0
    with Conversation.open(root, agent=agent, allow=["model"], store=store) as source:
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            with source.fork(agent=agent) as fork:
                try:
                    with fork.run_stream("go") as stream:
                        for update in stream:
                            if hangs == "hangs" and type(update).__name__ == "TextPiece":
                                print("asking", flush=True)
                    done += 1
                except BudgetExceeded:
                    break
                except TurnFailed as failed:
                    assert isinstance(failed.cause, BudgetExceeded), failed
                    break
    print(done)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_processes_that_spend_at_once_stay_within_the_budget_and_one_that_is_killed_keeps_none_of_it(
    tmp_path: Path, anyio_backend: str
) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    async with AsyncConversation(Agent(LLM("scripted/echo", max_tokens=100)), store=store) as root:
        await root.describe(title="the root")
        await root.set_budget(Budget(tokens=CALLS * TOKENS), scope="family")

        def start(how: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", textwrap.dedent(SPENDS), store, root.id, how]
            return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def heard(process: "subprocess.Popen[str]") -> str:
            assert process.stdout is not None
            return process.stdout.readline().strip()

        def spending() -> tuple[int, list[int]]:
            hanging, working = start("hangs"), [start("works") for _ in range(2)]
            try:
                assert [heard(one) for one in (hanging, *working)] == ["ready"] * 3
                hanging.stdin.write("\n")  # type: ignore[union-attr]
                hanging.stdin.flush()  # type: ignore[union-attr]
                assert heard(hanging) == "asking"
                ended = [one.communicate("\n", timeout=60)[0] for one in working]
                hanging.send_signal(signal.SIGKILL)
                hanging.communicate(timeout=60)
                return hanging.returncode, [int(said.strip().splitlines()[-1]) for said in ended]
            finally:
                for one in (hanging, *working):
                    if one.poll() is None:
                        one.kill()
                        one.communicate()

        killed, done = await anyio.to_thread.run_sync(spending)
        assert killed == -signal.SIGKILL
        assert 0 < sum(done) <= CALLS - 1, "as long as it hung, its call had a place"
        family = await family_of(root)
        assert family.spent.tokens == sum(done) * TOKENS
        assert family.reserved.tokens == 0, "whoever looks sees that it is gone"
        async with await root.fork() as fork:
            await fork.run("one more")
        assert (await root.verify()).flaws == ()
