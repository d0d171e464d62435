// Answers and streams, as OpenAI's client for Node reads them.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { body, events, model, native, orders, outcomes, said, stateless, talk, user } from "./client.mjs";

const SCHEMA = {
  type: "json_schema",
  json_schema: {
    name: "weather",
    strict: true,
    schema: {
      type: "object",
      properties: { city: { type: "string" }, degrees: { type: "integer" } },
      required: ["city", "degrees"],
      additionalProperties: false,
    },
  },
};
const PIXEL =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgAAACAAAB4iG8MwAAAABJRU5ErkJggg==";

describe("answers", { concurrency: true }, () => {
  test("without a conversation an answer stands alone", async () => {
    const { data, response } = await stateless().chat.completions.create(body("Anyone?")).withResponse();
    assert.match(data.id, /^chatcmpl-/);
    assert.equal(data.object, "chat.completion");
    assert.equal(data.model, model);
    assert.equal(data.choices[0].message.content, "You said: Anyone?");
    assert.equal(data.choices[0].finish_reason, "stop");
    assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
    assert.equal(response.headers.get("x-conversation-id"), null);
    assert.equal(data._request_id, response.headers.get("x-request-id"));
  });

  test("answers go back into the list as the objects that they are", async () => {
    const chat = stateless().chat.completions;
    const messages = [user("One")];
    messages.push((await chat.create(body(messages))).choices[0].message, user("Two"));
    messages.push(await chat.stream(body(messages)).finalMessage(), user("Three"));
    const answer = await chat.create(body(messages));
    assert.equal(answer.choices[0].message.content, "You said: Three");
  });

  test("a conversation is created and then continued", async () => {
    const { name, chat } = talk();
    const seen = [];
    for (const text of ["One", "Two"]) {
      const { data, response } = await chat.create(body(text)).withResponse();
      assert.equal(response.headers.get("x-conversation-id"), name);
      assert.equal(data.id, `chatcmpl-${response.headers.get("x-turn-id")}`);
      seen.push(response.headers.get("x-conversation-status"));
    }
    assert.deepEqual(seen, ["created", "continued"]);
    assert.deepEqual(await said(name), ["One", "You said: One", "Two", "You said: Two"]);
  });

  test("the server can make the name", async () => {
    const client = stateless();
    const made = await client.chat.completions
      .create(body("One"), { headers: { "X-Conversation-Create": "true" } })
      .asResponse();
    const name = made.headers.get("x-conversation-id");
    await client.chat.completions.create(body("Two"), { headers: { "X-Conversation-Id": name } });
    assert.deepEqual(await outcomes(name), ["committed", "committed"]);
  });

  test("a conversation can begin as a fork of another", async () => {
    const { name, chat } = talk();
    await chat.create(body("One"));
    const fork = `${name}-fork`;
    await chat.create(body("Two"), { headers: { "X-Conversation-Id": fork, "X-Fork-From": name } });
    assert.deepEqual(await said(fork), ["One", "You said: One", "Two", "You said: Two"]);
    assert.equal((await native(fork)).lineage.kind, "fork");
    assert.deepEqual(await outcomes(name), ["committed"]);
  });

  test("thoughts come as an extra field", async () => {
    const { chat } = talk();
    const thinks = { text: "Four.", reasoning: "Two and two.", piece: 3 };
    const whole = await chat.create(body(orders(thinks)));
    assert.equal(whole.choices[0].message.reasoning_content, "Two and two.");
    let thought = "";
    for await (const chunk of await chat.create(body(orders(thinks), { stream: true }))) {
      thought += chunk.choices[0].delta.reasoning_content ?? "";
    }
    assert.equal(thought, "Two and two.");
  });

  test("an image is stored as it was sent", async () => {
    const { name, chat } = talk();
    const image = { type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}` } };
    const answer = await chat.create(body([user([{ type: "text", text: "What is this?" }, image])]));
    assert.equal(answer.choices[0].message.content, "You said: What is this?");
    const [message] = await events(name, "user_message");
    assert.deepEqual(message.parts[1], { type: "image", media_type: "image/png", data: PIXEL });
  });

  test("an answer has the form that a schema asks for", async () => {
    const { chat } = talk();
    const inForm = { text: '{"city": "Oslo", "degrees": -3}', piece: 5 };
    const expected = { city: "Oslo", degrees: -3 };
    const parsed = await chat.parse(body(orders(inForm), { response_format: SCHEMA }));
    assert.deepEqual(parsed.choices[0].message.parsed, expected);
    const streamed = chat.stream(body(orders(inForm), { response_format: SCHEMA }));
    assert.deepEqual((await streamed.finalChatCompletion()).choices[0].message.parsed, expected);
  });

  test("models are listed and found", async () => {
    const client = stateless();
    const listed = [];
    for await (const one of client.models.list()) listed.push(one.id);
    assert.ok(listed.includes(model) && listed.includes(`${model}:side`), `${listed}`);
    assert.equal((await client.models.retrieve(model)).object, "model");
  });
});

describe("streams", { concurrency: true }, () => {
  test("a stream has the chunks that clients expect", async () => {
    const { name, chat } = talk();
    const settings = { stream: true, stream_options: { include_usage: true } };
    const { data, response } = await chat.create(body("Hello", settings)).withResponse();
    assert.equal(response.headers.get("x-conversation-id"), name);
    const chunks = await Array.fromAsync(data);
    const usage = chunks.pop();
    assert.deepEqual(usage.choices, []);
    assert.equal(usage.usage.total_tokens, usage.usage.prompt_tokens + usage.usage.completion_tokens);
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), "You said: Hello");
    const reasons = chunks.map((chunk) => chunk.choices[0].finish_reason);
    assert.equal(reasons.pop(), "stop");
    assert.deepEqual(new Set(reasons), new Set([null]));
    assert.deepEqual(await outcomes(name), ["committed"]);
  });

  test("a stream ends with [DONE]", async () => {
    const { chat } = talk();
    const response = await chat.create(body("Hello", { stream: true })).asResponse();
    const frames = (await response.text()).split("\n\n").filter((frame) => frame.startsWith("data: "));
    assert.equal(frames.at(-1), "data: [DONE]");
  });

  test("the stream helper gives events and the whole", async () => {
    const { name, chat } = talk();
    const stream = chat.stream(body("Hello", { stream_options: { include_usage: true } }));
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    const final = await stream.finalChatCompletion();
    assert.ok(deltas.length > 1, "it came in pieces");
    assert.equal(deltas.join(""), "You said: Hello");
    assert.equal(final.choices[0].message.content, "You said: Hello");
    assert.equal(final.choices[0].finish_reason, "stop");
    assert.ok((await stream.totalUsage()).total_tokens > 0);
    assert.deepEqual(await outcomes(name), ["committed"]);
  });
});
