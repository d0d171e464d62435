"""Three ways at once: forked explorers look, their parent keeps what it learned, and one of them goes on in a fork.

Run it with `./run python examples/explore.py`. It needs no key and no network.
"""

import asyncio
import json
import tempfile
from pathlib import Path

from forkpoint import LLM, Agent, AsyncConversation, Role, SubAgents, tool
from forkpoint.conversation import Branch
from forkpoint.llm import Price
from forkpoint.testing import Heard, Reply, Script, ScriptedCall, SimulatedCache

PROFILE = "\n".join(f"{n:3} ms  view_{n % 7}  query_{n % 5}  template_{n % 3}" for n in range(100, 160))
FOUND = {
    "database": "query_3 reads the whole table: 41 of 160 ms.",
    "templates": "Templates are compiled once, and take 4 ms.",
    "network": "There is one request to another service, of 9 ms.",
}
ALL_THREE = asyncio.Barrier(3)


@tool
async def measure(part: str) -> str:
    """Measures a part of the program."""
    await ALL_THREE.wait()  # nobody goes on before all three are here: so they do work at once
    return FOUND[part]


# What the model says is written down here, so that you get the same story: for each message, its answers one after the
# other. Cache and price behave like a provider's. "openai/NAME" or "anthropic/NAME" go in the same place.
def call(tool: str, **arguments: object) -> ScriptedCall:
    return ScriptedCall(tool, json.dumps(arguments))


def explorer(part: str) -> ScriptedCall:
    return call("spawn_agent", task=f"Is it the {part}?", role="explorer", nickname=part, fork="all")


STORY = {
    f"This is a profile of one page:\n{PROFILE}": [Reply("160 ms. It could be queries, templates or the network.")],
    "Why is it slow?": [
        Reply(calls=tuple(explorer(part) for part in FOUND)),
        Reply(calls=(call("wait_agent"),)),
        Reply("query_3 reads the whole table. Templates and network are not it."),
    ],
    **{f"Is it the {part}?": [Reply(calls=(call("measure", part=part),)), Reply(FOUND[part])] for part in FOUND},
    "Let whoever looked at the database write the fix.": [
        Reply(calls=(call("send_to_agent", agent="database", message="Write the fix."),)),
        Reply(calls=(call("wait_agent"),)),
        Reply("The fix is an index on orders.customer."),
    ],
    "Write the fix.": [Reply("CREATE INDEX by_customer ON orders (customer);")],
}


def say(heard: Heard) -> Reply:
    roles = [message["role"] for message in heard.body["messages"]]
    said = roles[::-1].index("user")  # how much came after the newest message
    return STORY[heard.text][roles[len(roles) - said :].count("assistant")]


MODEL = Script(say, cache=SimulatedCache(minimum=64, granularity=16)).register("explores")
PRICE = Price(input=3.0, output=15.0, cached=0.3)  # dollars for a million tokens
AGENT = Agent(
    LLM(MODEL, price=PRICE),
    instructions="You find out why programs are slow. Try several ideas at once, and wait for all of them.",
    tools=[measure],
    sub_agents=SubAgents(roles={"explorer": Role("follows one idea to its end", "Measure, then say what you found.")}),
)


async def explore(store: Path) -> None:
    async with AsyncConversation(AGENT, store=store, title="A slow page") as parent:
        read = await parent.run(f"This is a profile of one page:\n{PROFILE}")
        turn = await parent.run("Why is it slow?")
        print(turn.text)

        # Each explorer is a conversation. Its first request begins with all that the parent's model had before it.
        for member in await parent.list_agents():
            async with await AsyncConversation.open(member.conversation, agent=AGENT, store=store) as child:
                explored = await child.last_turn()
                assert explored is not None
                first = explored.steps[0].usage
                print(f"  {member.path:16} {first.cached} of {first.input} tokens cached  {member.answer}")
                assert first.cached > 0.9 * turn.steps[0].usage.input  # what the parent had sent last
                assert (await child.cache()).inherited_from == parent.id

        # What the parent learned is history: the answers of all three, with the turn that asked for them.
        waited = next(one for one in turn.calls if one.tool == "wait_agent")
        assert [one["answer"] for one in json.loads(waited.result or "")] == list(FOUND.values())
        stats = await parent.stats()
        assert stats.family.calls == stats.spent.calls + 6  # two of each explorer
        print(f"the parent cost ${stats.cost:.6f}, the family ${stats.family_cost:.6f}")

        # In a fork of the parent the explorers are those of its history. Whom it talks to is forked first.
        async with await parent.fork(title="The fix", cache="inherit") as fix:
            last = await fix.run("Let whoever looked at the database write the fix.")
            print(last.text)
            here = {one.nickname: one for one in await fix.list_agents()}
        there = {one.nickname: one for one in await parent.list_agents()}
        assert here["database"].answer == "CREATE INDEX by_customer ON orders (customer);"
        assert there["database"].answer == FOUND["database"]  # the parent's own has heard nothing of it
        assert here["network"] == there["network"]

        (root,) = await parent.tree()
        show(root)
        stats = await parent.stats()
        assert stats.family.calls == sum(one.usage.calls for one in (read, turn, last)) + 6 + 1  # each once
        print(f"with the fix the family has cost ${stats.family_cost:.6f}")
        assert (await parent.verify()).ok


def show(branch: Branch, depth: int = 0) -> None:
    info = branch.info
    own = info.events - info.inherited_events
    print(f"{'  ' * depth}{info.path or info.title}: {info.lineage.kind}, {own} events of its own")
    for one in branch.branches:
        show(one, depth + 1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(explore(Path(folder) / "forkpoint.db"))


if __name__ == "__main__":
    main()
