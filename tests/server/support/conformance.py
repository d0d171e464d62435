"""schemathesis against a real server: it makes requests of the OpenAPI document, fitting and unfitting ones, and holds
every answer against it."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import schemathesis
from msgspec import Struct
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from tests.server.support.serving import served

from forkpoint.agent import Agent
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.keys import ApiKey, Keyring, OneKey

SEED = 5
ENDLESS = ("follow_events", "follow_family")  # their answers end only when the reader goes; test_streams reads them


schemathesis.serializer.alias("application/x-ndjson", "text/plain")  # the body of an import, which it cannot send else


class Found(Struct):
    """What came of it."""

    cases: int = 0
    calls: set[str] = set()  # those that were tried
    statuses: set[int] = set()
    problems: list[str] = []


def conformance(
    *,
    examples: int,
    stateful: bool = False,
    seed: int = SEED,
    only: str | None = None,
    edit: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Found:
    """Tries every call of a server, each with so many made-up requests besides those that are worked out.

    ``only`` tries those of one path, and ``edit`` may make the document lie before.
    """
    agents = Catalog({"support": Agent("scripted/echo")}, allow_models=["scripted/*"])
    token = secrets.token_hex(16)
    with served(agents=agents, keyring=Keyring([OneKey(token, ApiKey("a", "a", "acme"))])) as server:
        with server.client(token) as client:
            id = client.post("/api/conversations", json={"id": "build-1234"}).json()["id"]
            turns = [client.post(f"/api/conversations/{id}/turns", json={"message": "Hi"}).json()["id"] for _ in "ab"]
            document = client.get("/openapi.json").json()
        edit(document)
        if only is not None:
            document["paths"] = {only: document["paths"][only]}
        config = _config(server.url, token, id, turns[0], examples, stateful, seed)
        schema = schemathesis.openapi.from_dict(document, config=config).exclude(operation_id=list(ENDLESS))
        found = Found()
        for event in from_schema(schema).execute():
            if isinstance(event, events.ScenarioFinished):
                found.cases += len(event.recorder.cases)
                found.calls.add(event.recorder.label)
                found.statuses |= {
                    one.response.status_code for one in event.recorder.interactions.values() if one.response is not None
                }
                found.problems += _failures(event.recorder)
            elif isinstance(event, events.NonFatalError):
                found.problems.append(f"{event.label}: {event.value!r}")
            elif isinstance(event, events.FatalError):
                raise event.exception
        return found


def _failures(recorder: Any) -> Iterator[str]:
    for checks in recorder.checks.values():
        for check in checks:
            if check.failure_info is not None:
                info = check.failure_info
                yield f"{recorder.label}: {check.name}: {info.failure}\n{info.code_sample}"


def _config(url: str, token: str, id: str, turn: str, examples: int, stateful: bool, seed: int) -> SchemathesisConfig:
    generation = {"deterministic": True, "max-examples": examples, "database": "none"}
    return SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": url,
            "headers": {"Authorization": f"Bearer {token}"},
            "request-timeout": 20,
            "continue-on-failure": True,
            "generation": generation,
            "phases": {"fuzzing": {"enabled": examples > 0}, "stateful": {"enabled": stateful}},
            # What fits its schema may still name a cursor, an agent or a turn that there is not.
            "checks": {"positive_data_acceptance": {"enabled": False}},
            "operations": [
                {"include-path-regex": r"/turns/\{turn\}", "parameters": {"path.id": id, "path.turn": turn}}
            ],
        }
    )
