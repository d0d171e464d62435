"""Clients of each wire, for tests that hold on all of them: chat completions, and responses.

A client's ``mode`` is how it says where it is. On the wire of chat it sends its ``latest`` message or the ``full``
list. On the wire of responses it names the ``previous`` response, a ``conversation``, or one by a header: ``named``.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import httpx2
from tests.server.chat import chatting
from tests.server.chat.chatting import Leaver, assistant, named, system, user
from tests.server.responses import responding
from tests.server.support.turning import Api


class Stream(Protocol):
    """A stream that is read piece by piece."""

    response: httpx2.Response

    def until_text(self, pieces: int = 1) -> list[str]:
        """The first pieces of text, so many."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Client(Protocol):
    """A client that knows what was answered so far."""

    http: httpx2.Client
    name: str  # of the conversation
    model: str
    statuses: list[str]  # of all requests that were answered
    path: str
    tells_refusals: bool  # whether a stream of this wire has the model's refusal, though nothing else was said

    def ask(
        self, text: str, *, stream: bool | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Sends a message. The client knows of it from then on if it is answered."""
        ...

    def begin(self, text: str, *, headers: Mapping[str, str] | None = None) -> Any:
        """Sends a message as a stream that its reader may leave, and forgets it."""
        ...

    def leaver(self, text: str, *, stream: bool, headers: Mapping[str, str] | None = None) -> Leaver:
        """Sends a message, and goes when it is told to."""
        ...

    def said(self, answer: httpx2.Response) -> str:
        """The text of an answer that is well."""
        ...

    def problem(self, answer: httpx2.Response) -> tuple[int, str]:
        """The status and the code of a request that failed; 200 for a stream that had begun."""
        ...

    def told(self, code: str) -> str:
        """The code that a stream of this wire has for an error."""
        ...


def client_of(api: Api, mode: str, name: str, *, stream: bool = False, model: str = "helper") -> Client:
    """A client of the wire that knows this mode."""
    if mode in {"latest", "full"}:
        return ChatClient(api, name, stream=stream, history=mode, model=model)
    return ResponsesClient(api, name, stream=stream, mode=mode, model=model)


class ChatClient:
    """A chat client: it sends all that it knows, and adds an answer when it has one."""

    path = chatting.PATH
    tells_refusals = False

    def __init__(
        self, api: Api, name: str, *, stream: bool = False, history: str = "latest", model: str = "helper"
    ) -> None:
        self.http = api.http
        self.name = name
        self.model = model
        self.list: list[dict[str, Any]] = [system("Be brief.")]
        self.statuses: list[str] = []
        self._api = api
        self._stream = stream
        self._mode = {"X-Conversation-History": history}

    def ask(
        self, text: str, *, stream: bool | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        asked = [*self.list, user(text)]
        answer = chatting.post(
            self.http,
            asked,
            conversation=self.name,
            model=self.model,
            headers=self._mode | dict(headers or {}),
            stream=self._stream if stream is None else stream,
        )
        if answer.status_code == 200 and '"error"' not in answer.text:
            self.list = [*asked, assistant(self.said(answer))]
            self.statuses.append(answer.headers["x-conversation-status"])
        return answer

    def begin(self, text: str, *, headers: Mapping[str, str] | None = None) -> Any:
        asked = [*self.list, user(text)]
        every = self._mode | dict(headers or {})
        return chatting.streamed(self.http, asked, conversation=self.name, model=self.model, headers=every)

    def leaver(self, text: str, *, stream: bool, headers: Mapping[str, str] | None = None) -> Leaver:
        asked = chatting.body([*self.list, user(text)], model=self.model, stream=stream)
        return Leaver(self._api, asked, named(self.name, self._mode | dict(headers or {})))

    def said(self, answer: httpx2.Response) -> str:
        return chatting.said(answer)

    def problem(self, answer: httpx2.Response) -> tuple[int, str]:
        return chatting.problem(answer)

    def told(self, code: str) -> str:
        return code


class ResponsesClient:
    """A client of responses: it sends what is new, and says after what."""

    path = responding.PATH
    tells_refusals = True

    def __init__(
        self, api: Api, name: str, *, stream: bool = False, mode: str = "previous", model: str = "helper"
    ) -> None:
        self.http = api.http
        self.name = name  # with a previous response: the conversation in which that stands, once there is one
        self.model = model
        self.statuses: list[str] = []
        self.previous: str | None = None
        self._before: str | None = None
        self._api = api
        self._stream = stream
        self._mode = mode
        self._conversation: str | None = None
        if mode == "conversation":
            self._conversation = str(api.http.post("/v1/conversations", json={}).json()["id"])
            self.name = self._conversation.removeprefix("conv_")

    def ask(
        self, text: str, *, stream: bool | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        asked = self._body(text, self._stream if stream is None else stream)
        answer = self.http.post(self.path, json=asked, headers=self._headers(headers))
        if answer.status_code == 200:
            response = self._response(answer)
            if response["status"] in {"completed", "incomplete"}:
                self._before, self.previous = self.previous, response["id"]
                self.statuses.append(answer.headers["x-conversation-status"])
        if self._mode != "named":
            self.name = answer.headers.get("x-conversation-id", self.name)
        return answer

    @contextmanager
    def begin(self, text: str, *, headers: Mapping[str, str] | None = None) -> Iterator["EventStream"]:
        asked = self._body(text, True)
        with self.http.stream("POST", self.path, json=asked, headers=self._headers(headers)) as answer:
            stream = EventStream(answer)  # kept here: without its reader the connection is closed
            yield stream

    def leaver(self, text: str, *, stream: bool, headers: Mapping[str, str] | None = None) -> Leaver:
        return Leaver(self._api, self._body(text, stream), self._headers(headers), path=self.path)

    def said(self, answer: httpx2.Response) -> str:
        assert answer.status_code == 200, answer.text
        response = self._response(answer)
        assert response["status"] == "completed", answer.text
        assert self.read(response["id"])["output"] == response["output"], "it is on disk as it was told"
        return responding.text_of(response)

    def problem(self, answer: httpx2.Response) -> tuple[int, str]:
        turn = answer.headers.get("x-turn-id")
        if turn is not None:
            assert self.read(f"resp_{turn.replace('-', '')}")["status"] in {"failed", "cancelled"}
        if answer.status_code == 200:
            failed = self._response(answer)
            assert failed["status"] in {"failed", "cancelled"}, answer.text
            return 200, str(failed["error"]["code"])
        return answer.status_code, str(answer.json()["error"]["code"])

    def told(self, code: str) -> str:
        codes = {"model_rate_limit": "rate_limit_exceeded", "content_filter": "invalid_prompt"}
        return codes.get(code, "server_error")

    def connect(self, api: Api) -> None:
        """Goes on at another server of the same store."""
        self._api, self.http = api, api.http

    def repeat(self, text: str, *, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Sends the last request once more, though it was answered."""
        now, self.previous = self.previous, self._before
        try:
            return self.http.post(self.path, json=self._body(text, self._stream), headers=self._headers(headers))
        finally:
            self.previous = now

    def read(self, id: str) -> dict[str, Any]:
        """A response as the store has it."""
        return responding.checked(self._api.http.get(f"{self.path}/{id}"))

    def _body(self, text: str, stream: bool) -> dict[str, Any]:
        asked = responding.body(text, model=self.model, instructions="Be brief.", stream=stream)
        if self._conversation is not None:
            asked["conversation"] = self._conversation
        elif self._mode != "named" and self.previous is not None:
            asked["previous_response_id"] = self.previous
        return asked

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        return named(self.name if self._mode == "named" else None, headers)

    def _response(self, answer: httpx2.Response) -> dict[str, Any]:
        """The response object of an answer; of a stream the last one, and the stream is checked."""
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return responding.checked(answer)
        last: dict[str, Any] = responding.events_of(answer)[-1]
        assert last["type"].removeprefix("response.") in {last["response"]["status"], "failed"}
        return dict(last["response"])


class EventStream:
    """A stream of responses as it comes: each event parsed."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def until_text(self, pieces: int = 1) -> list[str]:
        found: list[str] = []
        while len(found) < pieces:
            event = next(iter(self))
            found += [event["delta"]] if event["type"] == "response.output_text.delta" else []
        return found
