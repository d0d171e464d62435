// Responses and conversations.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { model, orders, stateless } from "./client.mjs";

const WEATHER = { tool: "weather", arguments: '{"city": "Oslo"}', call_id: "w1" };
const tools = [
  { type: "function", name: "weather", description: "A tool.", parameters: { type: "object", properties: {} }, strict: false },
];
const { responses, conversations } = stateless();

function create(input, more = {}) {
  return responses.create({ model, input, ...more });
}

function message(content) {
  return { type: "message", role: "user", content };
}

async function all(pages) {
  const found = [];
  for await (const one of await pages) found.push(one);
  return found;
}

function texts(items) {
  return items.map((item) => item.content[0].text);
}

describe("responses", { concurrency: true }, () => {
  test("a response is created, read, gone on from and deleted", async () => {
    const first = await create("One", { instructions: "Be brief.", metadata: { a: "b" } });
    assert.equal(first.output_text, "You said: One");
    assert.deepEqual([first.instructions, first.metadata], ["Be brief.", { a: "b" }]);
    assert.deepEqual((await responses.retrieve(first.id)).output, first.output);
    const asked = { previous_response_id: first.id };
    const both = await Promise.all([create("Two", asked), create("Three", asked)]);
    assert.deepEqual(both.map((one) => one.output_text), ["You said: Two", "You said: Three"]);
    await responses.delete(both[0].id);
    await assert.rejects(responses.retrieve(both[0].id), { status: 404 });
    const gone = create("Four", { previous_response_id: both[0].id });
    await assert.rejects(gone, { status: 400, code: "previous_response_not_found" });
  });

  test("the stream helper gives events and the whole", async () => {
    const stream = responses.stream({ model, input: orders({ text: "Hello there", reasoning: "Let me see", piece: 4 }) });
    const deltas = [];
    stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
    const final = await stream.finalResponse();
    assert.equal(deltas.join(""), "Hello there");
    assert.equal(final.output_text, "Hello there");
    assert.deepEqual(final.output.map((item) => item.type), ["reasoning", "message"]);
    assert.equal(final.output[0].summary[0].text, "Let me see");
    assert.deepEqual((await responses.retrieve(final.id)).output.map((item) => item.id), final.output.map((item) => item.id));
  });

  test("a call is handed out and its result goes on", async () => {
    const input = orders({ calls: [WEATHER] });
    const [call] = (await responses.stream({ model, input, tools }).finalResponse()).output;
    assert.deepEqual([call.type, call.call_id, call.arguments], ["function_call", "w1", '{"city": "Oslo"}']);
    const history = [message(input), call, { type: "function_call_output", call_id: "w1", output: "Snow" }];
    assert.equal((await create(history, { tools, store: false })).output_text, "It says: Snow");
    const asked = await create(orders({ calls: [WEATHER] }), { tools });
    const result = { type: "function_call_output", call_id: "w1", output: "Rain" };
    const done = await create([result], { tools, previous_response_id: asked.id });
    assert.equal(done.output_text, "It says: Rain");
  });

  test("a refusal is told as one", async () => {
    const events = await all(create(orders({ text: "No", fault: { kind: "refused" } }), { stream: true }));
    const { type, response } = events.at(-1);
    assert.deepEqual([type, response.error.code], ["response.failed", "invalid_prompt"]);
    const [told] = events.filter((event) => event.type === "response.refusal.done");
    assert.deepEqual(response.output[0].content, [{ type: "refusal", refusal: told.refusal }]);
  });

  test("a background response is taken up after a number", async () => {
    const made = await create(orders({ text: "Done at last", piece: 4 }), { background: true });
    const events = await all(responses.retrieve(made.id, { stream: true }));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, number) => number));
    const rest = await all(responses.retrieve(made.id, { stream: true, starting_after: 3 }));
    assert.deepEqual(rest, events.slice(4));
    assert.equal((await responses.retrieve(made.id)).output_text, "Done at last");
    assert.equal((await responses.cancel(made.id)).status, "completed");
  });

  test("input items are paged by two", async () => {
    const given = ["One", "Two", "Three", "Four", "Five"];
    const { id } = await create(given.map(message));
    assert.deepEqual(texts(await all(responses.inputItems.list(id, { limit: 2, order: "asc" }))), given);
    assert.deepEqual(texts(await all(responses.inputItems.list(id, { limit: 2 }))), given.toReversed());
  });

  test("a conversation has turns and items", async () => {
    const { id } = await conversations.create({ items: [message("Before")], metadata: { team: "builds" } });
    assert.deepEqual((await conversations.update(id, { metadata: { team: "tests" } })).metadata, { team: "tests" });
    assert.equal((await create("Now", { conversation: id })).conversation.id, id);
    const added = await conversations.items.create(id, { items: [message("After"), message("Last")] });
    assert.deepEqual(texts(added.data), ["After", "Last"]);
    const items = await all(conversations.items.list(id, { limit: 2, order: "asc" }));
    assert.deepEqual(texts(items), ["Before", "Now", "You said: Now", "After", "Last"]);
    assert.deepEqual(await conversations.items.retrieve(items[2].id, { conversation_id: id }), items[2]);
    assert.equal((await conversations.items.delete(items[4].id, { conversation_id: id })).id, id);
    assert.equal((await all(conversations.items.list(id))).length, 4);
    assert.equal((await conversations.delete(id)).deleted, true);
    await assert.rejects(conversations.retrieve(id), { status: 404 });
  });
});
