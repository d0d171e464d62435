"""Best of five from the middle of a turn: another model answers, five times, from the tool results of a CI job.

A job has read a log and answered badly. Five forks begin right after the log was read, so nobody reads it again, and a
real small model goes on from there. A check picks the best answer, `diff` shows what the others say instead, and `keep`
puts the winner under the job's own name. The first fork pays for the prompt; the others find it in the model's cache.

Run it with `./run python examples/best_of_five.py`. It needs no key and no network: the model is in the box.
"""

import asyncio

from forkpoint import LLM, Agent, AsyncConversation, Turn, tool
from forkpoint.events import Event
from forkpoint.testing import Reply, Script, ScriptedCall

INSTRUCTIONS = "You look at builds that failed. Say in one short sentence why the build failed, and name the error."
TESTS = ("login", "cart", "search", "prices", "mail", "upload", "export", "import")
LOG = "\n".join(f"09:{30 + n} test_{name} ... ok" for n, name in enumerate(TESTS)) + (
    "\n09:38 test_thumbnails ... FAILED"
    "\nE   OSError: [Errno 28] No space left on device: '/var/cache/thumbnails/1f.png'"
    "\n8 passed, 1 failed in 41.2 s"
)
CAUSE = ("OSError", "No space left on device")


@tool
def read_log(build: int) -> str:
    """Reads the log of a build."""
    return LOG


# The job itself is written down here, so that its turn is always the same: it calls the tool, and its answer is poor.
JOB = Script([Reply(calls=(ScriptedCall("read_log", '{"build": 1234}'),)), Reply("A test has failed.")]).register("job")


def answerer(number: int) -> Agent:
    """The small model, a little bolder with each try."""
    model = LLM("local/smollm2", max_tokens=24, temperature=0.2 * number, seed=number)
    return Agent(model, tools=[read_log], instructions=INSTRUCTIONS)


def score(turn: Turn) -> int:
    """What an answer is worth: it names the error and its cause, and is short."""
    return 1000 * sum(words in turn.text for words in CAUSE) - len(turn.text)


async def attempt(job: AsyncConversation, result: Event, number: int) -> tuple[AsyncConversation, Turn]:
    """One try: a fork that ends right after the tool's result, and goes on from there without a message."""
    fork = await job.fork(at=result, agent=answerer(number), cache="inherit", title=f"Try {number}")
    return fork, await fork.go_on()


async def main() -> None:
    agent = Agent(JOB, tools=[read_log], instructions=INSTRUCTIONS)
    async with AsyncConversation(agent, conversation_id="build-1234", store="memory:", tags={"kind": "ci"}) as job:
        failed = await job.run("Why did build 1234 fail?")
        (result,) = await job.events(kinds=["tool_result"])

        tries = [await attempt(job, result, number) for number in range(5)]  # the first warms the cache
        for number, (_, turn) in enumerate(tries):
            used, said = turn.usage, " ".join(turn.text.split())
            print(f"try {number}: {used.cached:3} of {used.input} tokens cached  {said[:60]}")
        warm = [turn.usage for _, turn in tries[1:]]
        assert all(used.cached >= 0.95 * used.input for used in warm), "the shared prompt was in the cache"

        best, answer = max(tries, key=lambda one: score(one[1]))
        assert score(answer) > score(failed)

        found = await job.diff(best)  # nothing that both share is read
        (pair,) = found.pairs
        assert pair.a is not None
        assert pair.b is not None
        print(f"the job said:  {pair.a.text}\nthe best said: {' '.join(pair.b.text.split())}")

        set_aside = await job.keep(best)  # the head moves; name, tags and safety stay
        assert set_aside is not None
        last = await job.run("What should be done about it?")
        print(f"{job.name} goes on: {last.usage.cached} of {last.usage.input} tokens cached")
        assert last.usage.cached >= 0.7 * last.usage.input  # the kept branch is warm too

        info, stats = await job.info(), await job.stats()
        assert (info.name, info.tags) == ("build-1234", {"kind": "ci"})
        assert [turn.text for turn in (await set_aside.turns()).items] == ["A test has failed."]  # keep() it to undo
        assert stats.family.calls == 2 + 5 + 1  # the log was read once, and each call is counted once
        assert (await job.verify()).ok
        for branch in (set_aside, *(fork for fork, _ in tries)):
            await branch.close()


if __name__ == "__main__":
    asyncio.run(main())
