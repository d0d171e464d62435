"""The OpenAPI document is complete, valid and committed; it changes together with the changelog, or this fails.

``python -m tests.server.test_openapi --write`` writes ``docs/openapi.json`` anew. As with the public names, it refuses
while CHANGELOG.md says nothing new: ``openapi.txt`` beside this file holds a digest of the document, sealed together
with what stood under "Unreleased" when it was written.
"""

import asyncio
import hashlib
import json
import re
import sys
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tests.server.support.contract import Contract
from tests.server.support.serving import served
from tests.test_public_names import CHANGELOG, ROOT, SaysNothingNew, is_sealed, read, unreleased, written
from tests.test_public_names import _at_head as at_head

from forkpoint.errors import KINDS
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.api import operations
from forkpoint.server.app import FAMILIES, create_app
from forkpoint.server.http.door import refusal
from forkpoint.server.http.openapi import document as openapi
from forkpoint.server.http.openapi.examples import plain
from forkpoint.server.http.refusals import example as example_of
from forkpoint.server.settings import ServerSettings
from forkpoint.store.address import open_store
from forkpoint.wire.problems import decode_problem, error_of

COMMITTED = ROOT / "docs" / "openapi.json"
SEAL = ROOT / "tests" / "server" / "openapi.txt"
WHAT_TO_DO = "add a line to CHANGELOG.md under Unreleased and run `python -m tests.server.test_openapi --write`"


def made_now(agents: Catalog | None = None, settings: ServerSettings = ServerSettings()) -> dict[str, Any]:
    """The document as this code makes it."""

    async def make() -> dict[str, Any]:
        store = await open_store("memory:")
        try:
            offered = agents or Catalog.of_model("scripted/echo")
            document = openapi.document(create_app(store, offered, settings=settings), FAMILIES)
            as_served: dict[str, Any] = plain(document)
            return as_served
        finally:
            await store.close()

    return asyncio.run(make())


def as_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def digest(text: str) -> str:
    return f"{COMMITTED.name} {hashlib.sha256(text.encode()).hexdigest()}\n"


DOCUMENT = made_now()
CALLS = [(method.upper(), path, call) for path, calls in DOCUMENT["paths"].items() for method, call in calls.items()]
each_call = pytest.mark.parametrize(("method", "path", "call"), CALLS, ids=[call["operationId"] for *_, call in CALLS])


# It is committed, with a line in the changelog.


def test_the_committed_document_is_the_one_that_this_code_makes() -> None:
    assert COMMITTED.read_text() == as_text(DOCUMENT), f"the HTTP API has changed; if that is meant, {WHAT_TO_DO}"


def test_the_document_was_written_together_with_the_changelog_and_not_by_hand() -> None:
    listed = SEAL.read_text()
    assert is_sealed(listed), f"{SEAL.name} was edited by hand: restore it; to change the API, {WHAT_TO_DO}"
    assert read(listed) == digest(COMMITTED.read_text()), f"the document was edited by hand: {WHAT_TO_DO}"


def test_a_document_that_differs_from_that_of_the_last_commit_has_a_line_in_the_changelog() -> None:
    before, changelog = at_head(SEAL), at_head(CHANGELOG)
    if before is None or changelog is None:
        pytest.skip("there is no commit to compare with")
    if read(before) != read(SEAL.read_text()):
        assert unreleased(changelog) != unreleased(CHANGELOG.read_text()), f"the HTTP API has changed: {WHAT_TO_DO}"


def test_a_changed_document_is_not_written_while_the_changelog_says_nothing_new() -> None:
    said = "## Unreleased\n\n- A.\n"
    listed = written(None, digest("{}"), said)
    with pytest.raises(SaysNothingNew):
        written(listed, digest('{"openapi": "3.1.0"}'), said)
    assert read(written(listed, digest("[]"), said + "- B.\n")) == digest("[]")


def test_a_server_serves_the_same_document_whatever_its_agents_and_settings() -> None:
    settings = ServerSettings(cors_origins=("*",), metrics="off", max_body=2000)
    with served(agents=Catalog.of_model("scripted/other"), settings=settings) as server, server.client() as client:
        answered = client.get("/openapi.json")
        assert answered.headers["content-type"] == "application/json"
        assert answered.json() == DOCUMENT


def test_every_call_that_runs_a_turn_may_lose_it_to_another_server() -> None:
    runs = [call for *_, call in CALLS if "`turn_cancelled`" in call["responses"].get("409", {}).get("description", "")]
    assert {"run_turn", "resume_turn", "tell_agent", "create_chat_completion"} < {call["operationId"] for call in runs}
    for call in runs:
        assert "`turn_lost`" in call["responses"]["409"]["description"], call["operationId"]


# It is valid.


def test_the_document_is_valid_for_an_independent_validator() -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    from schemathesis.specs.openapi.definitions import OPENAPI_31

    jsonschema_rs.validator_for(OPENAPI_31).validate(DOCUMENT)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validator_for(OPENAPI_31).validate(DOCUMENT | {"paths": {"/x": {"get": {"responses": []}}}})


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    references = set(re.findall(r'"\$ref": "#/components/(\w+)/([^"]+)"', text))
    assert references
    for sort, name in references:
        assert name in DOCUMENT["components"][sort], f"nothing is called {name}"
    for sort in ("schemas", "examples"):
        unused = set(DOCUMENT["components"][sort]) - {name for found, name in references if found == sort}
        assert not unused, f"nobody refers to these {sort}: {unused}"


# It is complete, and written for people.


@each_call
def test_a_call_says_what_it_does_in_a_sentence(method: str, path: str, call: dict[str, Any]) -> None:
    made_of_its_name = call["operationId"].replace("_", " ").title()
    assert call["summary"] != made_of_its_name
    assert len(call["summary"]) > 10
    assert call["tags"]


@each_call
def test_everything_that_a_call_takes_or_gives_has_an_example_of_its_own_form(
    method: str, path: str, call: dict[str, Any]
) -> None:
    contract = Contract(DOCUMENT)
    contents = [answer.get("content", {}) for answer in call["responses"].values()]
    contents.append(call.get("requestBody", {}).get("content", {}))
    for content in contents:
        if (found := content.get("application/json")) is None:
            continue
        examples = [found["example"]] if "example" in found else [_pointed(one) for one in found["examples"].values()]
        assert examples, f"{method} {path} has no example"
        for example in examples:
            contract.validate(found["schema"], example, f"an example of {method} {path}")
    for parameter in call.get("parameters", ()):
        assert parameter["description"], f"nobody says what {parameter['name']} is"
        assert "title" not in parameter["schema"]
        for example in parameter["schema"].get("examples", ()):
            contract.validate(parameter["schema"], example, parameter["name"])


@each_call
def test_every_error_that_a_call_names_is_in_the_document_under_its_status(
    method: str, path: str, call: dict[str, Any]
) -> None:
    families = (*FAMILIES, operations.calls)
    about = next(one for family in families for name, one in family.described.items() if name == call["operationId"])
    for code in about.raises.split():
        status, body, _ = refusal(example_of(code), "r1", path)
        examples = call["responses"][str(status)]["content"]["application/json"]["examples"]
        assert json.loads(body)["error"]["code"] in examples
    if about.role is not None:
        assert {"401", "403", "500", "503"} <= set(call["responses"])


@each_call
def test_every_refusal_has_the_one_envelope_and_every_answer_a_request_id(
    method: str, path: str, call: dict[str, Any]
) -> None:
    envelope = "ChatProblem" if path.startswith("/v1/") else "Problem"
    for status, answer in call["responses"].items():
        assert answer["headers"]["X-Request-Id"]["required"]
        if status >= "4":
            assert answer["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{envelope}"}
            assert ("x-should-retry" in answer["headers"]) == path.startswith("/v1/")


def test_examples_of_errors_are_the_messages_that_are_sent() -> None:
    for name, example in DOCUMENT["components"]["examples"].items():
        error = example["value"]["error"]
        assert name.removeprefix("openai_").startswith(error["code"])
        assert "..." not in error["message"]
        if not name.startswith("openai_") and error["code"] in KINDS:
            made = error_of(decode_problem(msgspec.json.encode(example["value"])))
            assert error["message"] == made.message("HTTP"), "it is made otherwise than a client makes it"


def test_the_document_names_no_machine_and_no_secret() -> None:
    text = as_text(DOCUMENT)
    assert str(ROOT) not in text
    assert "127.0.0.1:" not in text


def _pointed(example: dict[str, str]) -> Any:
    return DOCUMENT["components"]["examples"][example["$ref"].rpartition("/")[2]]["value"]


def main() -> None:
    """Writes the document, if the changelog has something to say about it."""
    text = as_text(DOCUMENT)
    try:
        listed = written(SEAL.read_text() if SEAL.exists() else None, digest(text), CHANGELOG.read_text())
    except SaysNothingNew:
        sys.exit(f"the HTTP API has changed, and the changelog says nothing new: {WHAT_TO_DO}")
    SEAL.write_text(listed)
    COMMITTED.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.server.test_openapi --write")
    main()
