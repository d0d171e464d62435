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
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), calls) for path, calls in document["paths"].items()
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

    def validate(self, schema: dict[str, Any], value: Any, where: str = "") -> None:
        """Fails unless a value has the form of a schema of the document."""
        known = json.dumps(schema)
        if known not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[known] = Draft202012Validator(whole)
        found = list(self._validators[known].iter_errors(value))
        assert not found, f"{where}: {found[0].json_path}: {found[0].message[:500]}"


def checked(server: Served, key: str | None = None, **options: Any) -> httpx2.Client:
    """A client whose every answer is held against the document."""
    return server.client(key, event_hooks={"response": [contract().check]}, **options)


@cache
def contract() -> Contract:
    """What is promised: the committed document, which test_openapi holds against what servers serve."""
    return Contract(json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text()))
