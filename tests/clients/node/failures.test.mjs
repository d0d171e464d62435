// What OpenAI's client for Node makes of failures. Its defaults are kept: it tries 408, 409, 429, 5xx and lost
// connections twice more by itself, unless it is told not to.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import OpenAI from "openai";

import { body, fails, lossy, native, orders, outcomes, said, talk } from "./client.mjs";

/** The error of a call that must fail with one of this class. */
async function caught(call, kind) {
  const error = await call.then(() => assert.fail("it did not fail"), (thrown) => thrown);
  assert.ok(error instanceof kind, `${error.stack}`);
  return error;
}

describe("retries", { concurrency: true }, () => {
  test("an upstream that fails once ends in one committed turn", async () => {
    const { name, chat, tries } = talk();
    await chat.create(body("Hello"));
    const answer = await chat.create(body(orders(fails("status", { status: 500 }), { text: "At last." })));
    assert.equal(answer.choices[0].message.content, "At last.");
    assert.deepEqual(tries, ["0", "0", "1"]);
    assert.deepEqual(await outcomes(name), ["committed", "failed", "committed"]);
  });

  test("a busy conversation is a conflict that is not retried", async () => {
    const { name, chat, tries } = talk();
    await chat.create(body("Hello"));
    const hangs = body(orders(fails("hang", { after: 2 })), { stream: true });
    const { data: stream, response } = await chat.create(hangs).withResponse();
    const chunks = stream[Symbol.asyncIterator]();
    assert.equal((await chunks.next()).value.choices[0].delta.role, "assistant");
    const error = await caught(chat.create(body("Me too")), OpenAI.ConflictError);
    assert.equal(error.code, "conversation_busy");
    assert.equal(error.headers.get("x-should-retry"), "false");
    assert.deepEqual(tries, ["0", "0", "0"]);

    stream.controller.abort(); // its reader goes, and so does its turn
    const turn = await native(`${name}/turns/${response.headers.get("x-turn-id")}?wait=20`);
    assert.equal(turn.outcome, "cancelled");
    await chat.create(body("Now?"));
    assert.deepEqual(await said(name), ["Hello", "You said: Hello", "Now?", "You said: Now?"]);
  });

  for (const stream of [false, true]) {
    test(`an answer that got lost is given again (${stream ? "streamed" : "whole"})`, async () => {
      const { name, chat, tries } = talk({ baseURL: lossy });
      const { data, response } = await chat.create(body("Hello", { stream })).withResponse();
      assert.deepEqual(tries, ["0", "1"]);
      const text = stream
        ? (await Array.fromAsync(data)).map((chunk) => chunk.choices[0].delta.content ?? "").join("")
        : data.choices[0].message.content;
      assert.equal(text, "You said: Hello");
      const { items } = await native(`${name}/turns`);
      assert.deepEqual(items.map((turn) => [turn.id, turn.outcome]), [[response.headers.get("x-turn-id"), "committed"]]);
    });
  }

  test("a spent quota is not tried again", async () => {
    const { chat, tries } = talk();
    await caught(chat.create(body(orders(fails("quota"), fails("quota")))), OpenAI.APIError);
    assert.deepEqual(tries, ["0"]);
  });
});

describe("errors", { concurrency: true }, () => {
  const faults = [
    [{ kind: "rate_limit", retry_after: 7 }, OpenAI.RateLimitError, "rate_limit_error"],
    [{ kind: "status", status: 500 }, OpenAI.InternalServerError, "server_error"],
    [{ kind: "context_too_long" }, OpenAI.BadRequestError, "invalid_request_error", "context_length_exceeded"],
    [{ kind: "refused" }, OpenAI.BadRequestError, "invalid_request_error", "content_filter"],
  ];
  for (const [fault, kind, type, code] of faults) {
    test(`${fault.kind} of the model is ${kind.name}`, async () => {
      const { name, chat } = talk({ maxRetries: 0 });
      await chat.create(body("Hello"));
      for (const stream of [false, true]) {
        const error = await caught(chat.create(body(orders({ text: "No", fault }), { stream })), kind);
        assert.equal(error.type, type);
        assert.ok(code ? error.code === code : error.code, `${error.code}`);
        assert.equal(error.requestID, error.headers.get("x-request-id"));
        assert.equal(error.headers.get("x-should-retry"), String(error.status !== 400));
        assert.equal(error.headers.get("retry-after"), fault.retry_after ? "7" : null);
      }
      await chat.create(body("Go on"));
      assert.deepEqual(await said(name), ["Hello", "You said: Hello", "Go on", "You said: Go on"]);
    });
  }

  test("an error in the middle of a stream is thrown and commits nothing", async () => {
    const { name, chat, tries } = talk();
    await chat.create(body("Hello"));
    const stream = await chat.create(body(orders(fails("status", { status: 500, after: 2 })), { stream: true }));
    let text = "";
    const reading = (async () => {
      for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
    })();
    const error = await caught(reading, OpenAI.APIError);
    assert.equal(text, "Never sa");
    assert.equal(error.type, "server_error");
    assert.ok(error.code);
    assert.deepEqual(tries, ["0", "0"]);
    assert.deepEqual(await outcomes(name), ["committed", "failed"]);
    assert.deepEqual(await said(name), ["Hello", "You said: Hello"]);
  });

  test("what does not fit is refused by name", async () => {
    const { name, chat, tries } = talk();
    await chat.create(body("Hello"));
    const several = await caught(chat.create(body("Hello", { n: 2 })), OpenAI.BadRequestError);
    assert.equal(several.param, "n");
    const old = body([{ role: "user", content: "Hello" }, { role: "assistant", content: "Hi" }]);
    const nothing = await caught(chat.create(old), OpenAI.BadRequestError);
    assert.equal(nothing.code, "no_new_user_message");
    const nobody = await caught(chat.create({ ...body("Hello"), model: "nobody" }), OpenAI.NotFoundError);
    assert.deepEqual([nobody.code, nobody.param], ["model_not_found", "model"]);
    assert.deepEqual(tries, ["0", "0", "0", "0"]);
    assert.deepEqual(await outcomes(name), ["committed"]);
  });

  test("a wrong key is an authentication error", async () => {
    const { chat, tries } = talk({ apiKey: "wrong" });
    const error = await caught(chat.create(body("Hello")), OpenAI.AuthenticationError);
    assert.deepEqual([error.code, error.type], ["invalid_api_key", "authentication_error"]);
    assert.deepEqual(tries, ["0"]);
  });
});
