// What the tests share: the client as its users make it, messages that order what the model answers, and a look at
// what was stored.

import { randomUUID } from "node:crypto";
import OpenAI from "openai";

const { FORKPOINT_URL, FORKPOINT_LOSSY_URL, FORKPOINT_API, FORKPOINT_KEY, FORKPOINT_MODEL } = process.env;

export const model = FORKPOINT_MODEL;
export const lossy = FORKPOINT_LOSSY_URL;

/** A fresh name, and a client that sends it with every request. `tries` is its own count of retries, per request. */
export function talk(settings = {}) {
  const name = `node-${randomUUID()}`;
  const tries = [];
  const counting = (url, init) => {
    tries.push(new Headers(init.headers).get("x-stainless-retry-count"));
    return fetch(url, init);
  };
  const client = new OpenAI({
    baseURL: FORKPOINT_URL,
    apiKey: FORKPOINT_KEY,
    defaultHeaders: { "X-Conversation-Id": name },
    fetch: counting,
    ...settings,
  });
  return { name, client, tries, chat: client.chat.completions };
}

/** A client of nobody's conversation. */
export function stateless() {
  return new OpenAI({ baseURL: FORKPOINT_URL, apiKey: FORKPOINT_KEY });
}

/** The body of a request: a message, or a list of them, and whatever else. */
export function body(said, more = {}) {
  return { model, messages: typeof said === "string" ? [user(said)] : said, ...more };
}

export function user(content) {
  return { role: "user", content };
}

export function result(id, content) {
  return { role: "tool", tool_call_id: id, content };
}

/** A message that makes the model answer so, one reply for each time that it is asked. */
export function orders(...replies) {
  return JSON.stringify({ id: `node-${randomUUID()}`, replies });
}

/** A reply that goes wrong. */
export function fails(kind, more = {}) {
  return { text: "Never said to its end.", piece: 4, fault: { kind, ...more } };
}

/** The outcomes of a conversation's turns, in order. */
export async function outcomes(name) {
  return (await native(`${name}/turns`)).items.map((turn) => turn.outcome);
}

/** What stands in a conversation's history, of one kind. */
export async function events(name, kind) {
  return (await native(`${name}/events`)).items.filter((event) => event.kind === kind).map((event) => event.body);
}

/** The words of a conversation's history. */
export async function said(name) {
  const messages = (await native(`${name}/events`)).items.filter((event) => event.kind.endsWith("_message"));
  return messages.flatMap((event) => event.body.parts.map((part) => part.text));
}

/** A call of Forkpoint's own API. */
export async function native(path) {
  const response = await fetch(`${FORKPOINT_API}/conversations/${path}`, {
    headers: { Authorization: `Bearer ${FORKPOINT_KEY}` },
  });
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  return response.json();
}
