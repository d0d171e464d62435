"""The table ``[server]`` of a server's file: what it sets, and what is wrong with it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkpoint.errors import BadConfig
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.agents.file import TOP, ServerFile, read_file
from forkpoint.server.config import FIELDS, ServerConfig
from forkpoint.server.settings import SETTINGS, ConversationHeader, ServerSettings

WHOLE: dict[str, Any] = {
    "host": "0.0.0.0",
    "port": 9000,
    "store": "sqlite:///here.db",
    "keys": "keys.json",
    "key_env": "SERVER_KEY",
    "log_level": "debug",
    "log_format": "json",
    "max_body": 1024,
    "max_import": 2048,
    "max_messages": 3,
    "max_turns": 4,
    "max_turns_per_tenant": 2,
    "max_streams": 5,
    "max_streams_per_tenant": 3,
    "grace": 0,
    "max_waiting": 6,
    "heartbeat": 5,
    "collect_every": 60,
    "lease": 5,
    "resume_orphans": "all",
    "resume_orphans_every": 2,
    "keep_drafts": 3600,
    "keep_keys": 7200,
    "keep_tries": 0,
    "keep_responses": 86400,
    "buffer": 16,
    "poll": 0.25,
    "cors_origins": ["https://app.example"],
    "hosts": ["forkpoint.example"],
    "metrics": "off",
    "request_timeout": 60,
    "allow_trust": True,
    "trust": ["project"],
    "anchor_log": "anchors.jsonl",
    "anchor_command": "ssh witness 'cat >> anchors.jsonl'",
    "anchor_interval": 60,
    "conversation_headers": ["X-Chat=full", "X-Talk"],
    "conversations_max": 6,
    "conversation_ttl": 7,
    "side_rules": ["open-webui"],
    "on_disconnect": "finish",
    "system": "follow",
    "strict": True,
    "reasoning": "off",
}


def written(folder: Path, document: dict[str, Any]) -> Path:
    file = folder / "server.json"
    file.write_bytes(msgspec.json.encode(document))
    return file


def wrong(folder: Path, text: str) -> str:
    file = folder / "server.toml"
    file.write_text(text)
    with pytest.raises(BadConfig) as error:
        read_file(file).check()
    assert error.value.why.startswith(f"{file}: ")
    return error.value.why


def test_a_file_sets_everything_that_a_server_has(tmp_path: Path) -> None:
    assert WHOLE.keys() == FIELDS.keys() >= SETTINGS.keys(), "the example lacks a setting"
    (tmp_path / "project").mkdir()
    found = read_file(written(tmp_path, {"server": WHOLE}))
    found.check()
    assert found.server == ServerConfig(
        host="0.0.0.0",
        port=9000,
        store=f"sqlite:///{tmp_path}/here.db",
        keys=str(tmp_path / "keys.json"),
        key_env="SERVER_KEY",
        log_level="debug",
        log_format="json",
        settings=ServerSettings(
            max_body=1024,
            max_import=2048,
            max_messages=3,
            max_turns=4,
            max_turns_per_tenant=2,
            max_streams=5,
            max_streams_per_tenant=3,
            grace=0,
            max_waiting=6,
            heartbeat=5,
            collect_every=60,
            lease=5,
            resume_orphans="all",
            resume_orphans_every=2,
            keep_drafts=3600,
            keep_keys=7200,
            keep_tries=0,
            keep_responses=86400,
            buffer=16,
            poll=0.25,
            cors_origins=("https://app.example",),
            hosts=("forkpoint.example",),
            metrics="off",
            request_timeout=60,
            allow_trust=True,
            trust=(str(tmp_path / "project"),),
            anchor_log=str(tmp_path / "anchors.jsonl"),
            anchor_command="ssh witness 'cat >> anchors.jsonl'",
            anchor_interval=60,
            conversation_headers=(ConversationHeader("X-Chat", "full"), ConversationHeader("X-Talk")),
            conversations_max=6,
            conversation_ttl=7,
            side_rules=("open-webui",),
            on_disconnect="finish",
            system="follow",
            strict=True,
            reasoning="off",
        ),
    )
    default = ServerSettings()
    unchanged = [name for name in SETTINGS if getattr(found.server.settings, name) == getattr(default, name)]
    assert unchanged == [], "the example must differ from the defaults, or nothing is shown"


def test_without_a_table_everything_is_as_it_is_without_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('[agents.a]\nmodel = "scripted/echo"\n')
    assert read_file(file).server == ServerConfig() == ServerFile().server


def test_settings_and_agents_stand_in_one_file_and_all_that_is_wrong_is_found_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    text = '[server]\nmax_turns = 5\n[agents.a]\nmodel = "scripted/echo"\n'
    file.write_text(text)
    assert Catalog.from_file(file).names() == ("a",)
    file.write_text(text.replace("max_turns", "max_turn").replace("model", "modle"))
    with pytest.raises(BadConfig) as error:
        Catalog.from_file(file)
    assert "server.max_turn: there is no such field; did you mean max_turns?" in error.value.why
    assert "agents.a.modle: there is no such field; did you mean model?" in error.value.why


def test_every_field_that_is_wrong_is_named(tmp_path: Path) -> None:
    said = wrong(
        tmp_path,
        """
        max_body = 2048
        allow_models = ["gpt"]
        workspaces = ["nowhere"]
        [server]
        max_turns = 0
        max_streams = "many"
        grace = -1
        request_timeout = inf
        heartbeat = nan
        port = 70000
        host = ""
        store = "http://127.0.0.1:1"
        metrics = "everybody"
        strict = "yes"
        trust = ["nowhere"]
        cors_origins = "https://app.example"
        allow_isolation = true
        on_disconect = "finish"
        zzz = 1
        """,
    )
    for words in (
        "max_body: it belongs in the table [server]",
        "allow_models: 'gpt' is not of the form",
        f"workspaces: {tmp_path}/nowhere is not a folder",
        "server.max_turns: Expected `int` >= 1",
        "server.max_streams: Expected `int`, got `str`",
        "server.grace: Expected `float` >= 0.0",
        "server.request_timeout: Expected `float` <= ",
        "server.heartbeat: Expected `float` >= 0.001",
        "server.port: Expected `int` <= 65535",
        "server.host: Expected `str` of length >= 1",
        "server.store: http://127.0.0.1:1 is another server",
        "server.metrics: Invalid enum value 'everybody'",
        "server.strict: Expected `bool`, got `str`",
        f"server.trust: {tmp_path}/nowhere is not a folder",
        "server.cors_origins: Expected `array`, got `str`",
        "server.allow_isolation: it belongs at the top of the file, before any table",
        "server.on_disconect: there is no such field; did you mean on_disconnect?",
        "server.zzz: there is no such field; use allow_trust, anchor_command,",
    ):
        assert words in said, f"{words!r} is missing from {said}"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "it is not the name of an HTTP header"),
        ("=full", "it is not the name of an HTTP header"),
        ("X Chat", "it is not the name of an HTTP header"),
        ("X-Chat:", "it is not the name of an HTTP header"),
        ("X-Chät", "it is not the name of an HTTP header"),
        ("*", "it is not the name of an HTTP header"),
        ("authorization=full", "this header has another meaning already"),
        ("X-Chat=all", "it is not of the form NAME, NAME=full or NAME=latest"),
        ("X-Chat=", "it is not of the form NAME, NAME=full or NAME=latest"),
        ("x-other", "x-other is there twice"),
    ],
)
def test_a_header_that_cannot_name_conversations_is_refused_with_the_reason(
    tmp_path: Path, given: str, why: str
) -> None:
    said = wrong(tmp_path, f'[server]\nconversation_headers = ["X-Other=full", "{given}"]')
    assert "server.conversation_headers: " in said
    assert why in said


def test_at_least_one_header_names_conversations(tmp_path: Path) -> None:
    assert "server.conversation_headers: " in wrong(tmp_path, "[server]\nconversation_headers = []")


def test_a_side_rule_that_nobody_has_is_named(tmp_path: Path) -> None:
    assert "server.side_rules" in wrong(tmp_path, '[server]\nside_rules = ["nobodys-chat"]')


def test_an_absolute_store_and_one_in_memory_are_as_they_are_given(tmp_path: Path) -> None:
    for store in ("memory:", "sqlite:////srv/forkpoint.db"):
        assert read_file(written(tmp_path, {"server": {"store": store}})).server.store == store


def test_the_docs_have_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    settings = page.partition("## Settings")[2].partition("```python")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*?)\|", settings, re.MULTILINE))
    start, headers = ServerConfig(), ["X-Conversation-Id"]
    default = msgspec.structs.asdict(start) | msgspec.structs.asdict(start.settings) | {"conversation_headers": headers}
    shown = {
        name: "" if default[name] is None else f"`{msgspec.json.encode(default[name]).decode()}`" for name in FIELDS
    }
    top = TOP.keys() - {"server"}
    assert {name: row.strip() for name, row in rows.items() if name not in top} == shown
    assert top <= rows.keys()
