// Tools of the client: calls that are handed out, and results that come back, or do not.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { body, events, orders, outcomes, result, talk, user } from "./client.mjs";

const WEATHER = { tool: "weather", arguments: '{"city": "Oslo"}', call_id: "w1" };
const CLOCK = { tool: "clock", arguments: '{"zone":"CET"}', call_id: "c1" };
const tools = ["weather", "clock"].map((name) => ({
  type: "function",
  function: { name, description: "A tool.", parameters: { type: "object", properties: {} } },
}));

/** Tools with functions, for the helper that calls them. `called` has what they were called with. */
function runnable() {
  const called = [];
  const made = Object.entries({ weather: "Snow", clock: "Noon" }).map(([name, answer]) => ({
    type: "function",
    function: {
      name,
      description: "A tool.",
      parameters: { type: "object", properties: {} },
      parse: JSON.parse,
      function: (given) => {
        called.push([name, given]);
        return answer;
      },
    },
  }));
  return { called, tools: made };
}

async function statuses(name) {
  const results = await events(name, "tool_result");
  return Object.fromEntries(results.map((one) => [one.call_id, one.status ?? "done"]));
}

describe("tools", { concurrency: true }, () => {
  test("a call is handed out and its result goes on", async () => {
    const { name, chat } = talk();
    const asked = [user(orders({ calls: [WEATHER] }))];
    const [choice] = (await chat.create(body(asked, { tools }))).choices;
    assert.equal(choice.finish_reason, "tool_calls");
    assert.deepEqual(choice.message.tool_calls, [
      { id: "w1", type: "function", function: { name: "weather", arguments: '{"city": "Oslo"}' } },
    ]);
    const done = await chat.create(body([...asked, choice.message, result("w1", "Snow")], { tools }));
    assert.equal(done.choices[0].message.content, "It says: Snow");
    assert.deepEqual(await outcomes(name), ["committed", "committed"]);
  });

  test("parallel calls are answered together", async () => {
    const { name, chat } = talk();
    const asked = [user(orders({ calls: [WEATHER, CLOCK] }))];
    const { message } = (await chat.create(body(asked, { tools }))).choices[0];
    assert.deepEqual(message.tool_calls.map((call) => call.id), ["w1", "c1"]);
    const results = [result("w1", "Snow"), result("c1", "Noon")];
    const done = await chat.create(body([...asked, message, ...results], { tools }));
    assert.equal(done.choices[0].message.content, "It says: Snow | Noon");
    assert.deepEqual(await statuses(name), { w1: "done", c1: "done" });
  });

  test("half of the results leave the other call unanswered", async () => {
    const { name, chat } = talk();
    const asked = [user(orders({ calls: [WEATHER, CLOCK] }))];
    const { message } = (await chat.create(body(asked, { tools }))).choices[0];
    const done = await chat.create(body([...asked, message, result("c1", "Noon")], { tools }));
    assert.equal(done.choices[0].finish_reason, "stop");
    assert.deepEqual(await statuses(name), { w1: "not_answered", c1: "done" });
  });

  test("a new message instead of results leaves both unanswered", async () => {
    const { name, chat } = talk();
    await chat.create(body(orders({ calls: [WEATHER, CLOCK] }), { tools }));
    const done = await chat.create(body("Never mind.", { tools }));
    assert.equal(done.choices[0].message.content, "You said: Never mind.");
    assert.deepEqual(await statuses(name), { w1: "not_answered", c1: "not_answered" });
  });

  test("the helper that calls tools runs to the end", async () => {
    const { name, chat } = talk();
    const { called, tools } = runnable();
    const runner = chat.runTools(body(orders({ calls: [WEATHER, CLOCK] }), { tools }));
    assert.equal(await runner.finalContent(), "It says: Snow | Noon");
    assert.deepEqual(called, [["weather", { city: "Oslo" }], ["clock", { zone: "CET" }]]);
    assert.deepEqual(await outcomes(name), ["committed", "committed"]);
    assert.deepEqual(await statuses(name), { w1: "done", c1: "done" });
  });

  test("the helper that calls tools streams as well", async () => {
    const { name, chat } = talk();
    const { called, tools } = runnable();
    const twice = orders({ calls: [WEATHER] }, { text: "And the time?", calls: [CLOCK] });
    const runner = chat.runTools(body(twice, { tools, stream: true }));
    assert.equal(await runner.finalContent(), "It says: Snow | Noon");
    assert.deepEqual(called.map(([tool]) => tool), ["weather", "clock"]);
    assert.deepEqual(await outcomes(name), ["committed", "committed", "committed"]);
  });

  test("the server's own tools are not seen", async () => {
    const { name, chat } = talk();
    const shelf = { tool: "shelf", arguments: '{"book": "Ida"}', call_id: "s1" };
    const { message } = (await chat.create(body(orders({ calls: [shelf, WEATHER] }), { tools }))).choices[0];
    assert.deepEqual(message.tool_calls.map((call) => call.id), ["w1"]);
    assert.deepEqual(await statuses(name), { s1: "done" });
  });
});
