"""Whatever is made of the OpenAPI document and sent, the answer is as the document says.

``python -m benchmarks.conformance`` looks longer.
"""

from typing import Any

import pytest
from tests.server.support.conformance import ENDLESS, conformance
from tests.server.support.contract import contract


def test_no_request_that_fits_the_document_or_does_not_is_answered_otherwise_than_it_says() -> None:
    found = conformance(examples=1)
    assert not found.problems, "\n\n".join(dict.fromkeys(found.problems[:10]))
    calls = {
        f"{method.upper()} {path}"
        for path, operations in contract().document["paths"].items()
        for method, call in operations.items()
        if call["operationId"] not in ENDLESS
    }
    assert found.calls >= calls
    assert found.cases > 1000
    assert found.statuses >= {200, 201, 204, 400, 401, 404, 405, 422}
    assert not any(status >= 500 for status in found.statuses)


# That the above can fail.


def _status(call: dict[str, Any]) -> None:
    del call["responses"]["404"]


def _form(call: dict[str, Any]) -> None:
    call["responses"]["200"]["content"]["application/json"]["schema"] = {"type": "array"}


def _negative(call: dict[str, Any]) -> None:
    next(one for one in call["parameters"] if one["name"] == "limit")["schema"]["maximum"] = 3


@pytest.mark.parametrize(
    ("lie", "check"),
    [
        (_status, "status_code_conformance"),
        (_form, "response_schema_conformance"),
        (_negative, "negative_data_rejection"),
    ],
)
def test_a_document_that_promises_something_else_is_found_out(lie: Any, check: str) -> None:
    path = "/api/conversations/{id}/events"
    found = conformance(examples=0, only=path, edit=lambda document: lie(document["paths"][path]["get"]))
    assert any(check in problem for problem in found.problems), found.problems
