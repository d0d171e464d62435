"""The server: conversations over HTTP, for any number of clients in any language.

It holds no rules of its own: what it can do, the Python API can do. Where to read about what:

- `app` puts everything together. `lifecycle` runs it and stops it. `settings` says how it behaves.
- `http/`: a request on its way in. `protocol` is the connection; `door` is what every request goes through: its id,
  its key (`keys`, `tenants`), its size, its log line and its errors (`statuses`). `openapi` describes all calls.
- `api/`: the calls of Forkpoint's own API. `agents/`: who may answer.
- `live/`: `runs` are turns that go on without their requests; `feed`, `follower` and `family` tell of them.
- `wires/`: the APIs that other clients speak. `chat/` is OpenAI's Chat Completions.
"""
