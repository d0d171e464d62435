"""A conversation on disk, a turn that fails and leaves nothing, and a fork that goes its own way.

Run it with `./run python examples/branches.py`. No model yet: what a model would say is written down here.
"""

import asyncio
import tempfile
from pathlib import Path

from forkpoint.events import AssistantMessage, NewEvent, Text, Usage, UserMessage
from forkpoint.ids import new_id
from forkpoint.store import Store, open_store
from forkpoint.store.values import NewConversation, NewFork, OpenTurn, TurnError


async def turn(store: Store, conversation: str, question: str, answer: str) -> None:
    """One turn: begun, answered, committed. If the process dies on the way, nothing has happened."""
    opened = await store.begin(conversation, new_id())
    assert isinstance(opened, OpenTurn)
    events = [NewEvent(UserMessage((Text(question),))), NewEvent(AssistantMessage((Text(answer),)), response=1)]
    await store.commit(opened, events, usage=Usage(calls=1, input=20, output=5))


async def failing_turn(store: Store, conversation: str) -> None:
    opened = await store.begin(conversation, new_id())
    assert isinstance(opened, OpenTurn)
    opened = await store.journal(opened, [NewEvent(UserMessage((Text("And the other test?"),)))])
    await store.fail(opened, TurnError("overloaded", "the provider is busy"), usage=Usage(calls=1, input=30))


async def show(store: Store, name: str) -> None:
    record = await store.find(name)
    print(f"{name} ({len(await store.path(record.id))} events, {record.spent.calls} calls of its own)")
    for event in await store.events(record.id):
        if isinstance(event.body, UserMessage | AssistantMessage):
            print(f"  {event.id!s:5} {event.envelope.role:9}  {event.text}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with await open_store(f"sqlite:///{Path(folder) / 'demo.db'}") as store:
            run = await store.create(NewConversation(id=new_id(), name="build-1234"))
            await turn(store, run.id, "Why did the build fail?", "A test times out.")
            await failing_turn(store, run.id)
            fork = await store.fork(run.id, NewFork(id=new_id(), name="follow-up", cache="{}"))
            await turn(store, fork.id, "Raise the timeout.", "Done: 30 s.")
            await turn(store, run.id, "Show the log.", "Here it is.")
            await show(store, "build-1234")
            await show(store, "follow-up")
            print("verified:", (await store.verify()).ok)
            print("spent in all, the failed turn included:", await store.usage(run.family))


if __name__ == "__main__":
    asyncio.run(main())
