"""A conversation with a real model, and a fork of it: each request finds what was sent before in the cache.

Run it with `./run python examples/cached_fork.py`. It needs no key and no network: the model is in the box.
"""

import asyncio

from forkpoint.events import NewEvent, Text, UserMessage
from forkpoint.ids import new_id
from forkpoint.llm import LLM, CacheIdentity, CallContext, Complete, Models, fork_identity, manifest_of, own_identity
from forkpoint.llm.prompt.rendering import render
from forkpoint.store import Store, open_store
from forkpoint.store.values import NewConversation, NewFork, OpenTurn, TurnError

MODEL = LLM("local/smollm2", max_tokens=24, temperature=0)
MANIFEST = manifest_of(MODEL, instructions="You answer in one short sentence, and you are kind. " * 8)


async def turn(store: Store, models: Models, conversation: str, question: str) -> None:
    """One turn: the prompt is the path, the answer is committed, and a failure leaves nothing."""
    record = await store.read(conversation)
    opened = await store.begin(conversation, new_id())
    assert isinstance(opened, OpenTurn)
    opened = await store.journal(opened, [NewEvent(UserMessage((Text(question),)))])
    prompt = render(MANIFEST, await store.events(conversation)).then(await store.steps(opened.id))
    context = CallContext(CacheIdentity.from_json(record.cache), store.tenant, fork_base=record.own_from)
    outcome = await models.call(MODEL, prompt, context)
    if isinstance(outcome, Complete):
        answer = [NewEvent(body, response=1) for body in outcome.answer.said]
        await store.commit(opened, [*answer, NewEvent(outcome.called)], usage=outcome.usage)
        said, used = " ".join(outcome.answer.text.split()), outcome.usage
        print(f"{record.name:9}  {used.cached:4} of {used.input:4} tokens cached  {question} {said}")
    else:
        await store.fail(opened, TurnError(outcome.error.code, str(outcome.error)), usage=outcome.usage)


async def main() -> None:
    async with await open_store("memory:") as store, Models() as models:
        id, fork_id = new_id(), new_id()
        identity = own_identity(id)
        await store.create(NewConversation(id=id, name="capitals", cache=identity.to_json()))
        await turn(store, models, id, "What is the capital of France?")
        await turn(store, models, id, "And of Spain?")
        hash = MANIFEST.hash
        inherited = fork_identity(identity, id, fork_id, "inherit", manifest=hash, source_manifest=hash)
        await store.fork(id, NewFork(id=fork_id, name="rivers", cache=inherited.to_json()))
        await turn(store, models, fork_id, "Which river flows through it?")
        await turn(store, models, id, "And of Italy?")
        print("inherited from the source:", inherited.key == identity.key)
        print("counted once in the family:", (await store.usage(id)).calls, "calls")


if __name__ == "__main__":
    asyncio.run(main())
