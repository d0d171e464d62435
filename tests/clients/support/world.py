"""What the official clients are tried against: a model server that does as it is told, Forkpoint in front of it, and a
way to Forkpoint on which the first answer is always lost.

The clients are in two languages, and some are other processes: so a test says in its message what the model shall do.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from msgspec import Struct
from tests.server.support.serving import Served, served
from tests.server.support.turning import PATIENCE, Api, two_tenants, using

from forkpoint.agent import Agent, tool
from forkpoint.llm import LLM, Retries
from forkpoint.server.agents.catalog import Catalog
from forkpoint.testing import Heard, ModelServer, Reply, Script

MODEL = "helper"
KEY = "key-of-one"

_numbers = itertools.count(1)


class Orders(Struct, frozen=True):
    """A message that says what the model is to answer each time that it is asked with it. The id makes it unique."""

    id: str
    replies: tuple[Reply, ...]


class World(Struct, frozen=True):
    """The servers of a test."""

    url: str  # for OpenAI's clients
    lossy_url: str  # the same, but each first answer is lost
    models: ModelServer
    server: Served
    api: Api  # the native calls, to see what was stored

    @property
    def prompt(self) -> list[dict[str, Any]]:
        """The messages that the model was sent last."""
        messages: list[dict[str, Any]] = self.models.last.json["messages"]
        return messages

    def events(self, name: str, kind: str) -> list[Any]:
        """What stands in a conversation's history, of one kind."""
        return [event["body"] for event in self.api.get(f"{name}/events")["items"] if event["kind"] == kind]

    def ended(self, name: str, turn: str) -> str:
        """The outcome of a turn, once it has one."""
        return str(self.api.turn(name, turn, wait=PATIENCE)["outcome"])


@contextmanager
def world() -> Iterator[World]:
    """One agent, called ``helper``, with one tool of its own, behind a server with keys."""
    with ModelServer(Script(_obedient())) as models:
        llm = LLM("openai/obedient", base_url=models.url, retries=Retries(attempts=1))
        agents = Catalog({MODEL: Agent(llm, tools=[shelf])})
        with (
            served(agents=agents, keyring=two_tenants()) as server,
            _lossy(server) as lossy_url,
            using(server.url, KEY) as api,
        ):
            yield World(f"{server.url}/v1", f"{lossy_url}/v1", models, server, api)


def orders(*replies: Reply) -> str:
    """A message that makes the model answer so, one reply for each time that it is asked. Then it does as it likes."""
    return msgspec.json.encode(Orders(f"python-{next(_numbers)}", replies)).decode()


@tool
def shelf(book: str) -> str:
    """Says where a book stands."""
    return f"{book} stands on shelf 3"


def _obedient() -> Any:
    """A model that does what the newest message orders, and else repeats it, or the results of its calls."""
    asked: Counter[str] = Counter()

    def reply(heard: Heard) -> Reply:
        asked[heard.text] += 1
        if heard.text.startswith('{"id"'):
            ordered = msgspec.json.decode(heard.text, type=Orders)
            if asked[heard.text] <= len(ordered.replies):
                return ordered.replies[asked[heard.text] - 1]
        messages: list[dict[str, Any]] = heard.body["messages"]
        spoken = max(n for n, message in enumerate(messages) if message["role"] == "user")
        results = [message["content"] for message in messages[spoken + 1 :] if message["role"] == "tool"]
        return Reply(f"It says: {' | '.join(results)}" if results else f"You said: {heard.text}", piece=4)

    return reply


@contextmanager
def _lossy(server: Served) -> Iterator[str]:
    """A proxy of a server. An SDK's first try gets there and is answered, but the answer never arrives."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as onward:
                onward.request("POST", self.path, body, {**self.headers, "Connection": "close"})
                answer = onward.getresponse()
                content = answer.read()
            if self.headers["x-stainless-retry-count"] == "0":
                self.close_connection = True  # without a word
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"connection", "content-length", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), name="lossy", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()
