"""Best of N: one point, forked N times at once. A test picks the best try, which goes on; the others are deleted.

Run it with `./run python examples/best_of_n.py`. It needs no key and no network.
"""

import asyncio
import re

from forkpoint import LLM, Agent, AsyncConversation, Turn
from forkpoint.llm import Price
from forkpoint.testing import Reply, Script, SimulatedCache

GOOD = [f"{major}.{minor}.{patch}" for major in (0, 1, 12) for minor in range(8) for patch in (0, 3, 21)]
BAD = ["1", "v1.2.3", "1.2.3.4", "1..2", "1.2.", "latest", "01/02/03", "1,2,3", "", "1.2.3 "]

# What the model says is written down here, so that you get the same story; cache and price behave like a provider's.
# "local/smollm2", "openai/NAME" or "anthropic/NAME" go in the same place, with a temperature above 0.
SCRIPT = Script(
    [
        Reply("Three numbers with dots in between. I have seen them all."),
        *[Reply(text) for text in (r"\d+", r"\d\.\d\.\d", r"\d+\.\d+\.\d+", r"[\d.]+")],
        Reply("One or more digits, a dot, again, and again: no fourth number, no letters, no spaces."),
    ],
    cache=SimulatedCache(minimum=64, granularity=16),
)
PRICE = Price(input=3.0, output=15.0, cached=0.3)  # dollars for a million tokens
MODEL = LLM(SCRIPT.register("regex"), price=PRICE)
AGENT = Agent(MODEL, instructions="You write regular expressions, and nothing else.")


def score(turn: Turn) -> float:
    """How many of all examples the answer tells right, from 0 to 1."""
    right = [re.fullmatch(turn.text, text) is not None for text in GOOD]
    right += [re.fullmatch(turn.text, text) is None for text in BAD]
    return sum(right) / len(right)


async def attempt(source: AsyncConversation, number: int) -> tuple[AsyncConversation, Turn]:
    fork = await source.fork(title=f"Try {number}", cache="inherit")  # one row, however long the history
    return fork, await fork.run("Write the expression.")


async def main() -> None:
    async with AsyncConversation(AGENT, store="memory:", title="Version numbers") as source:
        await source.run(f"These are version numbers: {', '.join(GOOD)}. What do you see?")
        before, alone = await source.info(), await source.stats()

        tries = await asyncio.gather(*[attempt(source, number) for number in range(1, 5)])
        for _, turn in sorted(tries, key=lambda one: score(one[1])):
            used = turn.usage
            print(f"{score(turn):4.0%} right  {turn.text:15} {used.cached} of {used.input} tokens cached")
            assert used.cached > 0.9 * alone.spent.input  # all of them found the source's prompt

        best, answer = max(tries, key=lambda one: score(one[1]))
        assert score(answer) == 1
        for fork, _ in tries:
            if fork is not best:
                await fork.delete()  # what it has cost stays counted

        async with best:
            await best.describe(title="The expression")
            last = await best.run("Explain it to a colleague.")
            print(f"{await best.title()}: {answer.text}\n{last.text}")

        assert await source.info() == before  # the source was not touched
        (root,) = await source.tree()
        assert [branch.info.title for branch in root.branches] == ["The expression"]

        stats = await source.stats()
        assert stats.spent == alone.spent
        assert stats.family == alone.spent + sum((turn.usage for _, turn in tries), last.usage)  # each token once
        print(f"the first turn cost ${alone.cost:.6f}, all six ${stats.family_cost:.6f}")


if __name__ == "__main__":
    asyncio.run(main())
