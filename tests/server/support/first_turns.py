"""``python -m tests.server.support.first_turns AGENT,... FLAG...``: ``forkpoint serve`` with these flags, here.

Once it is ready, a thread runs the first turns of each agent, through the native API and as chat completions, whole and
as streams. It prints which modules each of them has loaded, as JSON, and stops the server.
"""

import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

STREAM = {"Accept": "text/event-stream"}


def ask(port: int, path: str, body: Any, headers: Mapping[str, str] = {}) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status < 300, answer
    return answer


def first_turns(port: int, agent: str) -> None:
    chat = {"model": agent, "messages": [{"role": "user", "content": "Hi"}]}
    for headers in ({}, {"X-Conversation-Id": agent}):
        ask(port, "/v1/chat/completions", chat, headers)
        ask(port, "/v1/chat/completions", chat | {"stream": True}, headers)
    for headers in ({}, STREAM):
        made = json.loads(ask(port, "/api/conversations", {"agent": agent}))
        ask(port, f"/api/conversations/{made['id']}/turns", {"message": "Hi"}, headers)


def work(printed: int, ready: int) -> None:
    try:
        with os.fdopen(ready) as lines:
            port = int(json.loads(lines.readline())["url"].rpartition(":")[2])
        loaded = {}
        ask(port, "/api/conversations", {})  # what this thread itself needs
        for agent in sys.argv[1].split(","):
            before = set(sys.modules)
            first_turns(port, agent)
            loaded[agent] = sorted(set(sys.modules) - before)
        os.write(printed, json.dumps(loaded).encode())
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    printed, (ready, told) = os.dup(1), os.pipe()
    os.dup2(told, 1)
    threading.Thread(target=work, args=(printed, ready), daemon=True).start()
    from forkpoint.cli.app import main as forkpoint

    forkpoint(["serve", "--json", "--port", "0", *sys.argv[2:]])


if __name__ == "__main__":
    main()
