"""The server: conversations over HTTP, for any number of clients in any language.

It holds no rules of its own: what it can do, the Python API can do. The way of a request, and where to read about it:

- `app` puts everything together; `serving` runs it and stops it, `listening` is where; `settings` says how it behaves.
- `wire` is a connection: what is no HTTP at all ends there. `door` is what every request goes through: its id, who it
  is from (`keys`), its size, its log line, its errors (`statuses`).
- `tenants` are the places that callers see, each its own; `agents` are who may answer (`agent_file`, and `sent_agent`
  for what a client may send as one).
- `calls/` are the calls, one file for each family of them, made with `call`; `bodies` is what they take, `openapi`
  describes all of it (`examples`), `shown` is what of events leaves the server.
- `chat/` is what OpenAI's clients speak: `answering` is the way of a request there, from its body (`asked`) and its
  headers (`identity`) to a turn of a conversation (`conversing`: which one is `finding`, where in it `placing`, who
  answers `dressing`) and back (`answers`, `streaming`, `problems`); `service` is what all share (`models`, `hot`).
- `turns` runs turns apart from the requests that asked for them, `answering` is how those are answered; `feed` tells of
  a turn while it runs.
- `following` is a stream of a conversation as it grows, `watching` wakes it, `sse` is how it is written.
- `metrics`, `timed`, `logs`, `tracing`: what operators look at.
"""
