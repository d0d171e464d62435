"""What a running turn sends is, block for block, what a reader of history would send: through a real store."""

import itertools

import pytest

from forkpoint.events import (
    AssistantMessage,
    Image,
    NewEvent,
    Part,
    SkillActivated,
    StagedEvent,
    Text,
    ToolCall,
    ToolResult,
    UserMessage,
    seal,
)
from forkpoint.ids import new_id
from forkpoint.llm import LLM, Rendering, ToolSchema, manifest_of, render
from forkpoint.store import open_store
from forkpoint.store.values import NewConversation, NewFork, OpenTurn

pytestmark = pytest.mark.anyio

LLMS = {
    "chat": LLM("openai/a-model", api="chat"),
    "responses": LLM("openai/a-model"),
    "messages": LLM("anthropic/a-model"),
}
CALLS = ("call_a", "call_b", "call_c")


def texts(rendering: Rendering) -> list[bytes]:
    return [block.text for block in rendering.blocks]


def staged(*events: NewEvent) -> list[StagedEvent]:
    return [StagedEvent(seal(event, 0), event.body) for event in events]


@pytest.mark.parametrize("wire", LLMS)
@pytest.mark.parametrize("order", list(itertools.permutations(CALLS)), ids="-".join)
async def test_results_that_come_in_any_order_are_sent_as_history_will_have_them(
    wire: str, order: tuple[str, ...]
) -> None:
    manifest = manifest_of(LLMS[wire], instructions="Be kind.", tools=[ToolSchema("look")])
    origin = manifest.origin
    question = NewEvent(UserMessage((Text("Where is it?"),)))
    response = [NewEvent(ToolCall(id, "look", "{}", provider=origin), response=1) for id in CALLS]
    parts: dict[str, tuple[Part, ...]] = {
        id: (Text(id), Image("image/png", data=f"{id}aa".replace("_", "A"))) for id in CALLS
    }
    results = [NewEvent(ToolResult(id, "look", parts[id])) for id in order]
    results.insert(1, NewEvent(SkillActivated("looking", "Look twice.")))
    answer = NewEvent(AssistantMessage((Text("There."),), provider=origin), response=2)
    async with await open_store("memory:") as store:
        conversation = await store.create(NewConversation(id=new_id()))
        turn = await store.begin(conversation.id, new_id())
        assert isinstance(turn, OpenTurn)
        turn = await store.journal(turn, [question, *response])
        running = render(manifest).then(staged(question)).then(staged(*response))
        for result in results:
            turn = await store.journal(turn, [result])
            running = running.then(staged(result))
        second_request = texts(running)
        await store.commit(turn, [answer])
        running = running.then(staged(answer))
        history = render(manifest, await store.events(conversation.id))
        fork = await store.fork(conversation.id, NewFork(id=new_id(), cache="{}"))
        forked = render(manifest, await store.events(fork.id))
    assert texts(history)[: len(second_request)] == second_request, "the next turn would miss the cache"
    assert texts(running) == texts(history) == texts(forked)
    assert running.blocks.digest == history.blocks.digest
