"""The server removes what was deleted by itself, and what was deleted is gone from its files."""

import time
from pathlib import Path

import httpx2
import pytest
from tests.server.support.serving import ServerProcess, served
from tests.store.support.grep import found_in

from forkpoint import Conversations
from forkpoint.errors import BadArgument
from forkpoint.server.settings import ServerSettings

WORDS = {"promptword", "titleword", "tagword", "nameword"}
PATIENCE = 30.0


def tell(url: str) -> None:
    """A conversation with rare words; its agent repeats them."""
    with Conversations(url) as conversations:
        made = conversations.create("echo", conversation_id="nameword", title="titleword", tags={"kind": "tagword"})
        with made:
            made.run("promptword")


def wait_until_gone(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while found_in(file, WORDS):
        assert time.monotonic() < deadline, "what was deleted is still on the disk"


def collected_bytes(metrics: str) -> float:
    (line,) = [line for line in metrics.splitlines() if line.startswith("forkpoint_collected_bytes_total ")]
    return float(line.split()[1])


def test_a_deleted_conversation_is_soon_gone_from_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "server.db"
    with served(f"sqlite:///{file}") as server:
        tell(server.url)
        assert found_in(file, WORDS) == WORDS, "the words were never on the disk"
        with server.client() as client:
            client.delete("/api/conversations/nameword")
            wait_until_gone(file)
            deadline = time.monotonic() + PATIENCE
            while collected_bytes(told := client.get("/metrics").text) == 0:  # the words go a moment before it is told
                assert time.monotonic() < deadline, "the metrics do not tell of the collection"
        assert "forkpoint_collection_pending 0.0" in told


def test_a_client_can_ask_for_a_collection_but_not_to_compact(tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path / 'server.db'}") as server, Conversations(server.url) as conversations:
        tell(server.url)
        assert conversations.collect(dry_run=True).events == 0
        done = conversations.collect()
        assert (done.events, done.pending) == (0, ())
        with pytest.raises(BadArgument):
            conversations.collect(compact=True)


def test_a_server_that_is_killed_after_a_deletion_collects_when_it_starts_again(tmp_path: Path) -> None:
    file = tmp_path / "server.db"
    with ServerProcess("--model", "scripted/echo", folder=tmp_path) as server:
        tell(server.url)
        assert httpx2.delete(f"{server.url}/api/conversations/nameword").status_code == 204
        server.kill()
    with ServerProcess("--model", "scripted/echo", folder=tmp_path):
        wait_until_gone(file)


def test_a_server_keeps_things_as_long_as_its_settings_say() -> None:
    settings = ServerSettings(keep_tries=5.0, collect_every=1.0)
    assert (settings.keep_drafts, settings.keep_keys, settings.keep_tries) == (86_400.0, 604_800.0, 5.0)
    with pytest.raises(BadArgument):
        ServerSettings(keep_tries=-1.0)
