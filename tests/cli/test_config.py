"""``forkpoint config`` and ``forkpoint keys --store``: what a store keeps for its servers."""

from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

FILE = '[agents.helper]\nmodel = "scripted/echo"\n'


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_a_file_is_put_into_the_store_shown_and_removed(forkpoint: Program) -> None:
    assert forkpoint.json("config", "show")["config"] is None
    (forkpoint.folder / "server.toml").write_text(FILE)
    assert forkpoint.json("config", "put", "server.toml") == {"store": forkpoint.store, "replaced": False}
    assert forkpoint.run("config", "show").stdout == FILE
    assert forkpoint.json("config", "put", "server.toml")["replaced"] is True
    assert forkpoint.json("config", "remove")["removed"] is True
    assert forkpoint.json("config", "remove")["removed"] is False


def test_what_no_server_could_use_is_refused_unless_it_is_not_to_be_checked(forkpoint: Program) -> None:
    (forkpoint.folder / "server.toml").write_text('[server]\nstore = "other.db"\n[agents.a]\nmodel = "nobody/x"\n')
    done = forkpoint.run("config", "put", "server.toml")
    assert done.returncode == 1
    said = one_line(done.stderr)
    assert "server.store: it stands in the store itself" in said
    assert "agents.a" in said
    assert forkpoint.json("config", "show")["config"] is None
    assert forkpoint.run("config", "put", "server.toml", "--no-check").returncode == 0
    assert "nobody/x" in forkpoint.json("config", "show")["config"]


def test_keys_are_kept_in_the_store_if_it_is_named(forkpoint: Program) -> None:
    made = forkpoint.json("keys", "add", "ann", "--store", "servers.db")
    assert made["store"].endswith("servers.db")
    assert made["key"].startswith(f"fp_{made['id']}_")
    assert forkpoint.json("keys", "list")["items"] == []  # the file has none
    assert [key["name"] for key in forkpoint.json("keys", "list", "--store", "servers.db")["items"]] == ["ann"]
    assert forkpoint.json("keys", "role", "ann", "read", "--store", "servers.db")["changed"]["role"] == "read"
    assert forkpoint.json("keys", "revoke", "ann", "--store", "servers.db")["revoked"]["name"] == "ann"
    for options in (("--store", "servers.db", "--file", "keys.json"), ("--store", "http://127.0.0.1:1")):
        assert forkpoint.run("keys", "list", *options).returncode == 2
