"""What the OpenAPI document promises, held against every answer that a test gets."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
from jsonschema import Draft202012Validator
from tests.server.support.serving import Served


class Contract:
    """The document of a server."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Draft202012Validator] = {}
        self._paths = [
            (re.compile(re.sub(r"\{(\w+)\}", _segment, path)), calls) for path, calls in document["paths"].items()
        ]

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """The call that a request is; None if there is none."""
        for pattern, calls in self._paths:
            if pattern.fullmatch(path) and method.lower() in calls:
                found: dict[str, Any] = calls[method.lower()]
                return found
        return None

    def check(self, response: httpx2.Response) -> None:
        """Fails unless an answer is as its call promises."""
        where = f"{response.request.method} {response.url.path} -> {response.status_code}"
        assert response.headers.get("x-request-id"), where
        operation = self.operation(response.request.method, response.url.path)
        if operation is None:
            self._check_stranger(response, where)
            return
        promised = operation["responses"].get(str(response.status_code))
        assert promised is not None, f"{where} is not in the document: {response.read()[:500]!r}"
        for name, header in promised.get("headers", {}).items():
            assert name in response.headers or not header.get("required"), f"{where} lacks {name}"
        sort = response.headers.get("content-type", "").partition(";")[0]
        content = promised.get("content")
        if content is None:
            assert response.read() == b"", where
            return
        assert sort in content, f"{where} is {sort}"
        if sort == "application/json":
            response.read()
            self.validate(content[sort]["schema"], response.json(), where)
            self._check_reason(response, content[sort], where)

    def check_frames(self, response: httpx2.Response) -> list[Any]:
        """Fails unless each frame of a stream that is data only is as its call promises. Gives what they say."""
        operation = self.operation(response.request.method, response.url.path)
        assert operation is not None
        event = operation["responses"]["200"]["content"]["text/event-stream"]["schema"]
        done, told = event["properties"]["data"]["anyOf"]
        frames = [frame for frame in response.read().decode().split("\n\n") if frame and not frame.startswith(":")]
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        data = [frame.removeprefix("data: ") for frame in frames]
        if data[-1] == done["const"]:
            data.pop()
        found = [json.loads(one) for one in data]
        for one in found:
            self.validate(told["contentSchema"], one, str(response.url))
        return found

    def _check_stranger(self, response: httpx2.Response, where: str) -> None:
        """An answer to what is no call at all: if it says what is wrong, then in the envelope of the place."""
        says = response.headers.get("content-type") == "application/json" and response.request.method != "HEAD"
        if response.status_code >= 400 and says:
            chat = response.url.path == "/v1" or response.url.path.startswith("/v1/")
            schema = {"$ref": f"#/components/schemas/{'ChatProblem' if chat else 'Problem'}"}
            response.read()
            self.validate(schema, response.json(), where)

    def _check_reason(self, response: httpx2.Response, content: dict[str, Any], where: str) -> None:
        """What a client of /v1 did wrong has one of the codes that are promised."""
        if 400 <= response.status_code < 500 and response.url.path.startswith("/v1/"):
            code = response.json()["error"]["code"]
            assert code in content["examples"], f"{where}: {code} is not in the document"

    def validate(self, schema: dict[str, Any], value: Any, where: str = "") -> None:
        """Fails unless a value has the form of a schema of the document."""
        known = json.dumps(schema)
        if known not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[known] = Draft202012Validator(whole)
        found = list(self._validators[known].iter_errors(value))
        assert not found, f"{where}: {found[0].json_path}: {found[0].message[:500]}"


def _segment(found: re.Match[str]) -> str:
    """What can stand for a name in a path. A model's name may have slashes, and so has a sub-agent's path."""
    if found[1] == "agent":
        return ".+(?<!/messages)(?<!/close)(?<!/reach)"  # those are calls of their own
    return ".+" if found[1] == "model" else "[^/]+"


def checked(server: Served, key: str | None = None, **options: Any) -> httpx2.Client:
    """A client whose every answer is held against the document."""
    return server.client(key, event_hooks={"response": [contract().check]}, **options)


@cache
def contract() -> Contract:
    """What is promised: the committed document, which test_openapi holds against what servers serve."""
    return Contract(json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text()))
