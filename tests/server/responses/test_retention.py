"""Responses whose conversation nobody named or used are kept for a time, and go with a collection."""

from pathlib import Path

import httpx2
from tests.server.responses.responding import body, problem
from tests.server.support.serving import ServerProcess


def test_an_old_response_is_gone_unless_somebody_has_named_its_conversation(tmp_path: Path) -> None:
    env = {"FORKPOINT_KEEP_RESPONSES": "0s"}
    with (
        ServerProcess("--model", "scripted/echo", folder=tmp_path, env=env) as server,
        httpx2.Client(base_url=server.url) as http,
    ):
        old, named = (http.post("/v1/responses", json=body(text, model="echo")) for text in ("One", "Two"))
        assert (old.status_code, named.status_code) == (200, 200), old.text
        conversation = named.headers["x-conversation-id"].removeprefix("conv_")
        assert http.patch(f"/api/conversations/{conversation}", json={"title": "Mine"}).status_code == 200
        assert http.post("/api/collect", json={"dry_run": True}).json()["responses"] == 1
        assert http.post("/api/collect").json()["responses"] == 1
        assert http.get(f"/v1/responses/{old.json()['id']}").status_code == 404
        on = http.post("/v1/responses", json=body("On", model="echo", previous_response_id=old.json()["id"]))
        assert problem(on) == (400, "previous_response_not_found", "previous_response_id")
        assert http.get(f"/v1/responses/{named.json()['id']}").json()["id"] == named.json()["id"]
