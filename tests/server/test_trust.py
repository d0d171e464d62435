"""Trust over HTTP: whose it is to say, and that a server and its conversations go on though it cannot be kept."""

import logging
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode
from tests.server.support.contract import contract
from tests.server.support.serving import ServerProcess, served
from tests.server.support.turning import Api, two_tenants, using

from forkpoint import Agent, Conversation
from forkpoint.agent.builtin import TOOLS
from forkpoint.errors import BadArgument, BadWorkspace, TrustChanged
from forkpoint.ids import new_id
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Heard, Reply, Script, ScriptedCall
from forkpoint.workspace import set_trust

TOLD = "Builds are started with make."
ALLOWS = ServerSettings(allow_trust=True, grace=0)
WARNING = logging.WARNING


class Desk:
    """A project on the server's machine, and the settings file of the user who runs the server."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "home" / "forkpoint" / "config.toml"
        self.project = folder / "project"
        (self.project / ".forkpoint").mkdir(parents=True)
        self.tells(TOLD)

    def tells(self, text: str) -> None:
        (self.project / ".forkpoint" / "config.toml").write_text(f'instructions = "{text}"\n')

    def says(self, text: str) -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(text)

    @property
    def kept(self) -> Any:
        projects = tomllib.loads(self.config.read_text())["projects"] if self.config.exists() else {}
        return projects.get(str(self.project), {}).get("trust")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.config.parent.parent))
    return desk


def _echoes_its_instructions(heard: Heard) -> Reply:
    first = heard.body["messages"][0]
    return Reply(first["content"] if first["role"] in {"system", "developer"} else "none")


@contextmanager
def serving(desk: Desk, settings: ServerSettings = ALLOWS, **options: Any) -> Iterator[Api]:
    """A server whose one agent answers with its own instructions."""
    agent = Agent(Script(_echoes_its_instructions).register("told"), instructions="You help.")
    agents = Catalog({"told": agent}, roots=[desk.project], **options)
    with served(agents=agents, settings=settings) as server, using(server.url) as api:
        yield api


def heard(api: Api, id: str, **body: Any) -> str:
    """What stood before a conversation."""
    turn = api.run(id, **body)
    assert turn.status_code == 200, turn.text
    return str(turn.json()["text"])


@pytest.mark.parametrize("trust", [True, False])
def test_a_server_leaves_it_to_nobody_unless_it_is_told_to(desk: Desk, trust: bool) -> None:
    with serving(desk, ServerSettings(grace=0)) as api:
        body = {"workspace": str(desk.project), "trust": trust}
        tries = [
            api.http.post("/api/conversations", json={"id": "one"} | body),
            api.run("one", create=body),
            api.post("one/request", message="Hello", create=body),
        ]
        for refused in tries:
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "trust_refused")
        assert api.http.get("/api/conversations").json()["items"] == []
        assert heard(api, "one", create={"workspace": str(desk.project)}) == "You help."
    assert desk.kept is None


@pytest.mark.parametrize("how", ["made", "made by its first turn"])
def test_a_conversation_that_is_made_with_trust_hears_its_project(desk: Desk, how: str) -> None:
    body = {"workspace": str(desk.project), "trust": True}
    with serving(desk) as api:
        if how == "made":
            api.create(id="one", **body)
            assert desk.kept == "trusted"
            assert heard(api, "one") == f"You help.\n\n{TOLD}"
        else:
            assert TOLD in api.post("one/request", message="Hello", create=body).text
            assert desk.kept is None, "a preview changes nothing"
            assert heard(api, "one", create=body) == f"You help.\n\n{TOLD}"
            assert desk.kept == "trusted"
        assert api.http.put("/api/conversations/one/agent", json={"agent": "told"}).status_code == 200
        assert heard(api, "one") == f"You help.\n\n{TOLD}"


def test_an_explicit_untrusted_stays_and_the_log_says_so(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.says(f'[projects."{desk.project}"]\ntrust = "untrusted" # for good reasons\n')
    said = desk.config.read_text()
    with serving(desk) as api:
        id = api.create(workspace=str(desk.project), trust=True)
        assert heard(api, id) == "You help."
    assert desk.config.read_text() == said
    assert [r for r in caplog.records if r.levelno == WARNING and "untrusted" in r.getMessage()]


def test_a_conversation_is_made_though_its_trust_cannot_be_kept(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.says("[projects")
    with serving(desk) as api:
        id = api.create(workspace=str(desk.project), trust=True)
        assert heard(api, id) == f"You help.\n\n{TOLD}"
        assert heard(api, api.create(workspace=str(desk.project))) == "You help."
    assert desk.config.read_text() == "[projects"
    assert [r for r in caplog.records if r.levelno == WARNING and "could not be kept" in r.getMessage()]


def test_trust_in_no_workspace_is_refused(desk: Desk) -> None:
    with serving(desk) as api:
        refused = api.http.post("/api/conversations", json={"trust": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_argument")
        with Conversation("told", trust=True, store=str(api.http.base_url)) as told, pytest.raises(BadArgument):
            told.run("Hello")


def test_the_workspace_of_a_servers_own_agent_can_be_trusted(desk: Desk) -> None:
    with serving(desk, workspaces={"told": desk.project}) as api:
        assert heard(api, api.create(trust=True)) == f"You help.\n\n{TOLD}"


def test_the_same_key_makes_one_conversation_though_the_project_tells_something_else_by_then(desk: Desk) -> None:
    with serving(desk) as api:
        body = {"workspace": str(desk.project), "trust": True}
        made = []
        for text in ("one", "another"):
            desk.tells(text)
            headers = {"Idempotency-Key": "k1"}
            made.append(api.http.post("/api/conversations", json=body, headers=headers).json())
        assert made[0]["id"] == made[1]["id"]
        other = api.http.post("/api/conversations", json=body | {"trust": False}, headers={"Idempotency-Key": "k1"})
        assert other.json()["error"]["code"] == "key_reused"


def test_a_conversation_behind_a_server_says_it_like_one_in_this_process(desk: Desk) -> None:
    with serving(desk) as api:
        url = str(api.http.base_url)
        with Conversation("told", workspace=str(desk.project), trust=True, store=url) as conversation:
            assert conversation.run("Hello").text == f"You help.\n\n{TOLD}"
        assert desk.kept == "trusted"
    with serving(desk, ServerSettings(grace=0)) as api:
        url = str(api.http.base_url)
        with (
            Conversation("told", workspace=str(desk.project), trust=True, store=url) as conversation,
            pytest.raises(BadWorkspace, check=BadWorkspace.trust_refused.made, match="allow_trust"),
        ):
            conversation.run("Hello")


# What whoever runs the server says.


def test_a_server_that_is_told_to_trust_a_project_keeps_that(desk: Desk) -> None:
    with serving(desk, ServerSettings(trust=(str(desk.project),), grace=0)) as api:
        assert desk.kept == "trusted"
        assert heard(api, api.create(workspace=str(desk.project))) == f"You help.\n\n{TOLD}"


def test_a_server_starts_and_trusts_though_that_cannot_be_kept(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.config.parent.parent.write_text("a file, and no folder: not even root can make one below")
    with serving(desk, ServerSettings(trust=(str(desk.project),), grace=0)) as api:
        for _ in range(2):
            assert heard(api, api.create(workspace=str(desk.project))) == f"You help.\n\n{TOLD}"
    assert len([r for r in caplog.records if "could not be kept" in r.getMessage()]) == 1


def test_a_server_that_is_told_to_trust_what_is_explicitly_untrusted_starts_and_does_not(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.says(f'[projects."{desk.project}"]\ntrust = "untrusted"\n')
    with serving(desk, ServerSettings(trust=(str(desk.project),), grace=0)) as api:
        assert heard(api, api.create(workspace=str(desk.project))) == "You help."
    assert desk.kept == "untrusted"
    assert [r for r in caplog.records if f"forkpoint trust {desk.project}" in r.getMessage()]


def test_the_program_says_both_and_risky_tools_ask_first_where_it_is_untrusted(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "erasing.py").write_text(
        "from forkpoint import Agent, tool\n"
        "@tool(risky=True)\n"
        "def erase(what: str) -> str:\n"
        '    "Erases."\n'
        "    return what\n"
        'agent = Agent("scripted/script.json", tools=[erase])\n'
    )
    erases = Reply(calls=(ScriptedCall("erase", '{"what": "it"}'),))
    (tmp_path / "script.json").write_bytes(encode([erases, erases, Reply("Done.")]))
    (tmp_path / "server.toml").write_text(
        f'workspaces = ["{desk.project}"]\nallow_isolation = true\n[agents.erasing]\nagent = "erasing:agent"\n'
        f'[server]\ntrust = ["{desk.project}"]\nallow_trust = true\n'
    )
    environment = {"PYTHONPATH": str(tmp_path), "FORKPOINT_WORKSPACES": str(tmp_path / "workspaces")}
    with ServerProcess("--config", "server.toml", folder=tmp_path, env=environment) as server, using(server.url) as api:
        assert desk.kept == "trusted"
        id = api.create(workspace=str(desk.project), trust=False)
        assert desk.kept == "untrusted"
        assert api.run(id).json()["outcome"] == "awaiting_approval"
        fork = api.post(f"{id}/fork", workspace="copy").json()
        assert fork["isolation"]["kind"] == "copy"
        assert api.run(fork["id"]).json()["outcome"] == "awaiting_approval", "a copy is trusted like its source"


def test_what_could_not_be_kept_is_one_tenants_and_none_of_a_creation_that_was_refused(desk: Desk) -> None:
    desk.says("[broken")
    agent = Agent(Script(_echoes_its_instructions).register("told-apart"), instructions="You help.")
    agents = Catalog({"told": agent}, roots=[desk.project])
    body = {"id": new_id(), "workspace": str(desk.project)}
    with (
        served(agents=agents, settings=ALLOWS, keyring=two_tenants()) as server,
        using(server.url, "key-of-one") as one,
        using(server.url, "key-of-two") as two,
    ):
        one.create(**body)
        refused = one.http.post("/api/conversations", json=body | {"trust": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "exists")
        two.create(**body | {"id": new_id()})
        found = server.services.tenants.backend
        assert found("one")._trusting.of(desk.project, body["id"]) == "undecided"
        one.create(workspace=str(desk.project), trust=True, id=(other := new_id()))
        assert found("one")._trusting.of(desk.project, other) == "trusted"
        assert found("two")._trusting.of(desk.project, other) == "undecided"


# What changed.


def test_a_project_that_changed_is_refused_by_the_server_until_it_is_approved_there(desk: Desk) -> None:
    settings = desk.project / ".forkpoint" / "config.toml"
    settings.write_text('[[hooks]]\nmoment = "turn_start"\ncommand = ["sh", "guard.sh"]\n')
    guard = desk.project / "guard.sh"
    guard.write_text("echo one >> ran\n")
    with serving(desk, ServerSettings(trust=(str(desk.project),), grace=0), workspaces={"told": desk.project}) as api:
        id = api.create()
        heard(api, id)
        guard.write_text("echo two >> ran\n")
        chat = {"model": "told", "messages": [{"role": "user", "content": "Hello"}]}
        for refused in (
            api.run(id),
            api.post(f"{id}/ask", message="Hello"),
            api.http.post("/api/conversations", json={}),
            api.http.post("/v1/chat/completions", json=chat),
        ):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (409, "trust_changed"), refused.text
            assert "guard.sh changed" in error["message"]
            contract().check(refused)
        with (
            Conversation.open(id, store=str(api.http.base_url)) as there,
            pytest.raises(TrustChanged, match=f"forkpoint trust {desk.project}"),
        ):
            there.run("Hello")
        assert (desk.project / "ran").read_text() == "one\n"
        assert set_trust(desk.project, "trusted", desk.config).written
        assert heard(api, id) == "You help."
        assert (desk.project / "ran").read_text() == "one\ntwo\n"


def test_a_turn_that_waits_is_as_it_was_if_its_retry_is_refused(desk: Desk) -> None:
    settings = desk.project / ".forkpoint" / "config.toml"
    settings.write_text('approval = "always"\n')
    asks = Script([Reply(calls=(ScriptedCall("list_files", "{}"),)), Reply("Done.")]).register("asks")
    agents = Catalog({"told": Agent(asks, tools=TOOLS)}, workspaces={"told": desk.project})
    with (
        served(agents=agents, settings=ServerSettings(trust=(str(desk.project),), grace=0)) as server,
        Conversation("told", store=server.url) as there,
    ):
        turn = there.run("Hello")
        assert turn.outcome == "awaiting_approval"
        settings.write_text('approval = "never"\n')
        with pytest.raises(TrustChanged):
            there.retry()
        settings.write_text('approval = "always"\n')
        assert there.approve(turn.waiting[0]).text == "Done."


def test_a_client_that_may_say_so_trusts_what_is_there_and_no_later_content(desk: Desk) -> None:
    settings = desk.project / ".forkpoint" / "config.toml"
    settings.write_text('approval = "risky"\n')
    with serving(desk) as api:
        id = api.create(workspace=str(desk.project), trust=True)
        assert heard(api, id) == "You help."
        settings.write_text('approval = "never"\n')
        assert api.run(id).json()["error"]["code"] == "trust_changed"
        assert heard(api, api.create(workspace=str(desk.project), trust=True)) == "You help."
        assert heard(api, id) == "You help."
