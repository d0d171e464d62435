"""``forkpoint doctor`` and ``verify``."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cli.program import Program, agent
from tests.cli.terminal import Terminal
from tests.postgres.server import Server

from forkpoint import Conversation


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def talk(forkpoint: Program, name: str = "it") -> None:
    with Conversation(agent("doctor"), conversation_id=name, store=forkpoint.store) as made:
        made.run("hi")


def findings(
    forkpoint: Program, *arguments: str, status: int = 0, within: Mapping[str, str] = {}
) -> dict[str, tuple[str, str]]:
    """What the doctor says of each thing, within an environment: its state, and the words."""
    done = forkpoint.run("doctor", "--json", *arguments, **within)
    assert done.returncode == status, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is (status == 0)
    return {finding["what"]: (finding["state"], finding["said"]) for finding in document["findings"]}


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# doctor


def test_where_nothing_is_set_up_all_is_well_and_nothing_is_made(forkpoint: Program) -> None:
    found = findings(forkpoint, within={"FORKPOINT_STORE": ""})
    assert found["settings"] == ("absent", f"{forkpoint.settings} is not there")
    state, said = found["store"]
    assert state == "absent"
    assert said.endswith("data/forkpoint/forkpoint.db (default) is not there yet; it is made when it is first used")
    assert found["default model"] == ("good", "local/smollm2 (default)")
    assert found["OPENAI_API_KEY"] == ("absent", "not set")
    assert os.listdir(forkpoint.folder) == []


def test_a_store_is_looked_at_and_left_as_it_is(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    talk(forkpoint, "two")
    before = everything(forkpoint.folder)
    state, said = findings(forkpoint)["store"]
    assert everything(forkpoint.folder) == before
    assert (state, said.split(", ")[1]) == ("good", "2 conversations")
    assert said.endswith(f"format {_format(forkpoint)}")


def test_a_store_that_somebody_has_open_is_seen_as_it_is_now(forkpoint: Program) -> None:
    with Conversation(agent("live"), store=forkpoint.store) as made:
        made.run("hi")
        assert Path(f"{forkpoint.folder}/store.db-wal").stat().st_size
        assert ", 1 conversation, " in findings(forkpoint)["store"][1]


def test_a_store_of_an_older_format_is_not_migrated(forkpoint: Program) -> None:
    talk(forkpoint)
    newest = _format(forkpoint)
    _change(forkpoint, "UPDATE meta SET format = 1")
    assert findings(forkpoint)["store"][1].endswith(f"format 1, migrated to {newest} when it is next opened")
    assert _format(forkpoint) == 1


def test_a_store_that_cannot_be_opened_is_a_problem(forkpoint: Program) -> None:
    (forkpoint.folder / "store.db").write_bytes(b"somebody's diary" * 100)
    state, said = findings(forkpoint, status=1)["store"]
    assert (state, "is not a Forkpoint store" in said) == ("bad", True)
    assert findings(forkpoint, "--store", "sqlite:///no/such/folder/x.db", status=1)["store"][0] == "bad"
    assert findings(forkpoint, "--store", f"sqlite:///{forkpoint.folder}", status=1)["store"][0] == "bad"
    said = findings(forkpoint, "--store", "mysql://ann:secret@host/db", status=1)["store"][1]
    assert "nor the path of a file" in said
    assert "secret" not in said
    talk_elsewhere = f"sqlite:///{forkpoint.folder / 'newer.db'}"
    with Conversation(agent("newer"), store=talk_elsewhere) as made:
        made.run("hi")
    with sqlite3.connect(forkpoint.folder / "newer.db") as db:
        db.execute("UPDATE meta SET format = 99, writable_from = 99")
    db.close()
    assert "Upgrade Forkpoint" in findings(forkpoint, "--store", talk_elsewhere, status=1)["store"][1]


def test_a_log_alone_is_a_problem_and_list_does_not_call_the_store_empty(forkpoint: Program) -> None:
    (forkpoint.folder / "store.db-wal").write_bytes(b"left over")
    state, said = findings(forkpoint, status=1)["store"]
    assert (state, "forkpoint restore BACKUP" in said) == ("bad", True)
    listed = forkpoint.run("list")
    assert (listed.returncode, "the file itself is not" in listed.stderr) == (1, True)


def test_an_old_file_with_a_newer_log_is_a_problem_and_what_is_advised_mends_it(forkpoint: Program) -> None:
    store = forkpoint.folder / "store.db"
    talk(forkpoint, "one")
    shutil.copy(store, forkpoint.folder / "old.db")
    for number in range(20):
        talk(forkpoint, f"more-{number}")
    with Conversation(agent("late"), store=forkpoint.store) as made:
        made.run("hi")
        shutil.copy(f"{store}-wal", forkpoint.folder / "old.db-wal")
    for end in ("", "-wal"):
        shutil.move(forkpoint.folder / f"old.db{end}", f"{store}{end}")
    before = {end: Path(f"{store}{end}").read_bytes() for end in ("", "-wal")}
    state, said = findings(forkpoint, status=1)["store"]
    advice = f"mv {store}-wal {store}-wal.old; rm -f {store}-shm"
    assert (state, said.endswith(advice)) == ("bad", True)
    assert "does not belong to it" in forkpoint.run("list").stderr
    assert {end: Path(f"{store}{end}").read_bytes() for end in ("", "-wal")} == before
    subprocess.run(["sh", "-c", advice], check=True)
    assert ", 1 conversation, " in findings(forkpoint)["store"][1]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps rights in another way")
def test_it_is_said_who_else_can_read_a_store_and_what_an_empty_one_may_mean(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    said = findings(forkpoint)["store"][1]
    assert "can read it" not in said
    assert "without its -wal" not in said
    (forkpoint.folder / "store.db").chmod(0o644)
    forkpoint.text("delete", "one", "--yes")
    said = findings(forkpoint)["store"][1]
    assert f"everybody can read it: chmod 600 {forkpoint.folder}/store.db" in said
    assert "without its -wal" in said


def test_keys_are_found_and_never_shown(forkpoint: Program) -> None:
    secrets = {"OPENAI_API_KEY": "sk-1234567", "FORKPOINT_API_KEY": "fp-7654321", "ANTHROPIC_API_KEY": " "}
    for arguments in ((), ("--json",)):
        done = forkpoint.run("doctor", *arguments, **secrets)
        assert done.returncode == 0
        assert not any(secret in done.stdout + done.stderr for secret in ("1234567", "7654321"))
    found = findings(forkpoint, within=secrets)
    assert found["OPENAI_API_KEY"] == found["FORKPOINT_API_KEY"] == ("good", "set")
    assert found["ANTHROPIC_API_KEY"] == ("absent", "not set")


def test_the_settings_file_is_read_and_what_is_wrong_in_it_is_said(forkpoint: Program) -> None:
    forkpoint.settings.parent.mkdir(parents=True)
    forkpoint.settings.write_text('model = "scripted/echo"\nstore = "memory:"\n')
    found = findings(forkpoint, within={"FORKPOINT_STORE": ""})
    assert found["settings"] == ("good", f"{forkpoint.settings} sets model, store")
    assert found["default model"] == ("good", "scripted/echo (settings file)")
    assert found["store"] == ("good", "memory: (settings file), forgotten when the program ends")
    for text, why in (
        ("model = ", "cannot be read"),
        ("model = 7", "model must be a text"),
        ('modell = "x"', "sets what is not known: modell"),
    ):
        forkpoint.settings.write_text(text)
        state, said = findings(forkpoint, status=1)["settings"]
        assert (state, why in said) == ("bad", True), said


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("openai/gpt-5.6", "the environment variable OPENAI_API_KEY is not set"),
        ("nobody/x", "names no model"),
        ("scripted/nowhere.json", "There is no script"),
        ("local/nowhere.gguf", "The weights of local/nowhere.gguf are not on this machine"),
    ],
)
def test_a_default_model_that_cannot_be_asked_is_a_problem(forkpoint: Program, model: str, why: str) -> None:
    state, said = findings(forkpoint, within={"FORKPOINT_MODEL": model}, status=1)["default model"]
    assert (state, why in said) == ("bad", True), said


def test_a_model_that_is_asked_about_is_checked(forkpoint: Program) -> None:
    assert findings(forkpoint, "--model", "scripted/echo")["model"] == ("good", "scripted/echo runs in this process")
    assert findings(forkpoint, "--model", "anthropic/claude-sonnet-5", status=1)["model"][0] == "bad"


def test_the_address_of_a_model_is_the_one_that_its_sdk_would_use(forkpoint: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        variables = {"OPENAI_API_KEY": "sk-1234567", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        state, said = findings(forkpoint, "--model", "openai/gpt-5.6", within=variables)["model"]
    assert state == "good"
    assert said.startswith(f"openai/gpt-5.6: 127.0.0.1:{port} accepts connections, ")


def test_each_model_of_the_settings_is_checked_and_reached_where_it_is(forkpoint: Program) -> None:
    forkpoint.settings.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        fast = f'[models.fast]\nmodel = "openai/qwen3"\nbase_url = "{url}"\n'
        forkpoint.settings.write_text(f'model = "fast"\n{fast}')
        found = findings(forkpoint, "--model", "fast")
    assert found["settings"] == ("good", f"{forkpoint.settings} sets model, models")
    assert found["model fast"] == ("good", f"openai/qwen3 at {url} (chat)")
    assert found["default model"] == ("good", f"fast (settings file), which is openai/qwen3 at {url} (chat)")
    assert found["model"][1].startswith(f"fast: {url.removeprefix('http://').removesuffix('/v1')} accepts connections")
    forkpoint.settings.write_text(f'{fast}api_key_env = "NO_SUCH_KEY"\n[models.bad]\nmodle = "openai/x"\n')
    found = findings(forkpoint, status=1)
    assert (found["model fast"][0], "NO_SUCH_KEY is not set" in found["model fast"][1]) == ("bad", True)
    assert (found["model bad"][0], "did you mean model?" in found["model bad"][1]) == ("bad", True)


def test_an_address_is_reached_and_nothing_is_sent_there(forkpoint: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        state, said = findings(forkpoint, "--reach", f"http://127.0.0.1:{port}/v1")["reach"]
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""
    assert (state, said.startswith(f"127.0.0.1:{port} accepts connections, ")) == ("good", True)
    state, said = findings(forkpoint, "--reach", f"http://127.0.0.1:{port}/v1", status=1)["reach"]
    assert (state, "refused" in said) == ("bad", True)


def test_an_address_that_speaks_no_tls_is_not_taken_for_one_that_does(forkpoint: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = forkpoint.start("doctor", "--json", "--reach", f"https://127.0.0.1:{port}")
        with process, server.accept()[0] as connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            out, _ = process.communicate()
    assert process.returncode == 1
    assert "SSLError" in json.loads(out)["findings"][-1]["said"]


def test_a_proxy_is_what_is_reached_where_there_is_one(forkpoint: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        proxy = {"http_proxy": f"http://ann:secret@127.0.0.1:{port}", "no_proxy": "localhost"}
        state, said = findings(forkpoint, "--reach", "http://models.invalid/v1", within=proxy)["reach"]
    assert state == "good"
    assert said.startswith(f"models.invalid:80 is asked through a proxy, and 127.0.0.1:{port} accepts connections, ")


@pytest.mark.parametrize("address", ["nonsense", "ftp://host", "http://", "http://host:x", "http://host:99999999"])
def test_what_is_no_address_is_refused(forkpoint: Program, address: str) -> None:
    done = forkpoint.run("doctor", "--reach", address)
    assert (done.returncode, "it is not an address" in done.stderr) == (2, True)


def test_people_see_what_is_well_what_is_absent_and_what_is_not_well(forkpoint: Program) -> None:
    (forkpoint.folder / "store.db").write_bytes(b"somebody's diary" * 100)
    done = forkpoint.run("doctor", OPENAI_API_KEY="x")
    rows = [line for line in done.stdout.splitlines() if line[0] in "✓·✗"]  # the others go on with a long finding
    marks = {line.split()[1]: line[0] for line in rows}
    assert done.returncode == 1
    assert (marks["forkpoint"], marks["settings"], marks["store"], marks["OPENAI_API_KEY"]) == ("✓", "·", "✗", "✓")


# verify


def test_a_history_that_is_as_it_was_written_is_verified(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    talk(forkpoint, "two")
    assert forkpoint.text("verify") == "8 events and 2 records of 2 conversations: as it was written\n"
    assert forkpoint.text("verify", "one") == "4 events and 1 record of 1 conversation: as it was written\n"
    document = forkpoint.json("verify", "one")
    counted = {"conversations": 1, "events": 4, "erased": 0, "records": 1, "chains": 1, "seals": 0}
    assert document == counted | {"ok": True, "flaws": [], "remarks": [], "since": None}


def test_a_bar_shows_the_progress_on_a_terminal_and_nowhere_else(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    done = forkpoint.run("verify")
    assert (done.returncode, done.stderr) == (0, "")
    with Terminal(forkpoint, "verify") as terminal:
        terminal.wait_for("Verifying")
        terminal.wait_for("as it was written")


def test_a_damaged_file_is_said_to_be_damaged(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    with (forkpoint.folder / "store.db").open("r+b") as file:
        file.seek(4096 * 5)
        file.write(b"\xff" * 4096 * 4)
    done = forkpoint.run("verify")
    assert done.returncode != 0
    assert "is damaged" in done.stderr
    assert "restore a backup" in done.stderr


def test_a_history_that_somebody_changed_is_not(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    talk(forkpoint, "two")
    _change(
        forkpoint, "UPDATE event SET payload = replace(payload, 'hi', 'ho') WHERE id & 0xffffffff = 2 AND id >> 32 = 1"
    )
    for arguments in (("verify",), ("verify", "one")):
        done = forkpoint.run(*arguments)
        assert done.returncode == 1
        assert done.stdout.startswith("1-2: ")
        assert done.stderr.endswith(": 1 flaw\n")
    assert forkpoint.run("verify", "two").returncode == 0
    assert forkpoint.json("verify", status=1)["flaws"][0]["where"] == "1-2"


def test_a_digest_that_was_kept_elsewhere_vouches_for_history(forkpoint: Program) -> None:
    talk(forkpoint)
    digest = forkpoint.json("show", "it")["conversation"]["digest"]
    talk_more = Conversation.open("it", store=forkpoint.store)
    with talk_more:
        talk_more.run("more")
    assert forkpoint.run("verify", "it", "--head-digest", digest).returncode == 0
    forkpoint.text("rewind", "it", "--turns", "2")
    done = forkpoint.run("verify", "it", "--head-digest", digest)
    assert (done.returncode, "history was rewritten or cut" in done.stdout) == (1, True)
    assert forkpoint.run("verify", "--head-digest", digest).returncode == 0  # it is still there, set aside
    assert forkpoint.run("verify", "--head-digest", "not hex").returncode == 2


def test_a_store_that_is_not_there_is_not_verified_and_not_made(forkpoint: Program) -> None:
    done = forkpoint.run("verify")
    assert (done.returncode, done.stderr.startswith("error: There is no store")) == (1, True)
    assert os.listdir(forkpoint.folder) == []


def _format(forkpoint: Program) -> int:
    db = sqlite3.connect(forkpoint.folder / "store.db")
    try:
        return int(db.execute("SELECT format FROM meta").fetchone()[0])
    finally:
        db.close()


def _change(forkpoint: Program, statement: str) -> None:
    """What somebody does to the file behind our back."""
    db = sqlite3.connect(forkpoint.folder / "store.db")
    try:
        with db:
            db.execute(statement)
    finally:
        db.close()


def test_a_database_server_that_breaks_a_promise_is_named_with_what_mends_it(
    forkpoint: Program, make_server: Callable[..., Server]
) -> None:
    done = forkpoint.run("doctor", "--json", "--store", make_server(fsync="off").url())
    store = next(one for one in json.loads(done.stdout)["findings"] if one["what"] == "store")
    assert done.returncode == 1
    assert store["state"] == "bad"
    assert "PostgreSQL 18" in store["said"]
    assert "fsync is off: a power cut can destroy the database; set fsync = on" in store["said"]
