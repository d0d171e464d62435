"""``forkpoint keys``: keys are made, shown and revoked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint.server.http.keys import Keys


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_add_prints_the_key_alone_so_that_it_can_be_piped(forkpoint: Program) -> None:
    done = forkpoint.run("keys", "add", "ann", "--tenant", "acme")
    file = forkpoint.settings.with_name("keys.json")
    assert done.returncode == 0, done.stderr
    token = done.stdout.removesuffix("\n")
    key = Keys(file).find(token)
    assert key is not None
    assert (key.name, key.tenant, key.role) == ("ann", "acme", "use")
    assert one_line(done.stderr) == (
        f"Key {key.id} (ann, role use) for tenant acme is in {file}. It is not shown again."
    )


def test_add_is_one_document_for_programs(forkpoint: Program) -> None:
    made = forkpoint.json("keys", "add", "ann", "--file", "mine.json")
    key = Keys(forkpoint.folder / "mine.json").find(made["key"])
    assert key is not None
    assert made == {
        "id": key.id,
        "name": "ann",
        "tenant": "default",
        "role": "use",
        "created": key.created,
        "key": made["key"],
        "file": "mine.json",
    }


def test_list_shows_everything_but_the_secrets(forkpoint: Program) -> None:
    tokens = [forkpoint.text("keys", "add", name, "--tenant", "acme").strip() for name in ("ann", "bob")]
    shown = forkpoint.text("keys", "list")
    header, *rows = [line.split() for line in shown.splitlines()]
    assert header == ["id", "name", "tenant", "role", "created"]
    assert rows == [
        [token[3:11], name, "acme", "use", "just", "now"] for token, name in zip(tokens, ("ann", "bob"), strict=True)
    ]
    document = forkpoint.json("keys", "list")
    assert [item["name"] for item in document["items"]] == ["ann", "bob"]
    assert all(item.keys() == {"id", "name", "tenant", "role", "created"} for item in document["items"])
    hashes = [key["hash"] for key in json.loads(Path(document["file"]).read_text())["keys"]]
    for secret in [token[12:] for token in tokens] + hashes:
        assert secret not in shown + json.dumps(document)


def test_a_key_may_say_that_the_full_list_counts_and_the_list_shows_it(forkpoint: Program) -> None:
    made = forkpoint.json("keys", "add", "webui", "--history", "full")
    plain = forkpoint.json("keys", "add", "ann")
    assert made["history"] == "full"
    assert "history" not in plain
    shown = [line.split() for line in forkpoint.text("keys", "list").splitlines()]
    assert shown == [
        ["id", "name", "tenant", "role", "history", "created"],
        [made["id"], "webui", "default", "use", "full", "just", "now"],
        [plain["id"], "ann", "default", "use", "just", "now"],
    ]
    assert [item.get("history") for item in forkpoint.json("keys", "list")["items"]] == ["full", None]
    assert forkpoint.json("keys", "revoke", "webui")["revoked"]["history"] == "full"
    wrong = forkpoint.run("keys", "add", "bob", "--history", "all")
    assert (wrong.returncode, wrong.stdout, "--history" in wrong.stderr) == (2, "", True)


def test_a_key_has_the_role_that_it_was_made_with_until_it_gets_another(forkpoint: Program) -> None:
    made = forkpoint.json("keys", "add", "dashboard", "--role", "read")
    assert made["role"] == "read"
    told = forkpoint.text("keys", "role", "dashboard", "operate")
    assert told == f"Key {made['id']} (dashboard) of tenant default has the role operate now.\n"
    assert [item["role"] for item in forkpoint.json("keys", "list")["items"]] == ["operate"]
    assert forkpoint.json("keys", "role", made["key"], "use")["changed"]["role"] == "use"
    key = Keys(forkpoint.settings.with_name("keys.json")).find(made["key"])
    assert key is not None
    assert key.role == "use"
    nobody = forkpoint.run("keys", "role", "nobody", "read", "--json")
    assert json.loads(nobody.stderr)["error"]["code"] == "no_such_key"


def test_where_there_are_no_keys_the_list_is_empty_and_no_file_is_made(forkpoint: Program) -> None:
    done = forkpoint.run("keys", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("No keys in ")
    assert forkpoint.json("keys", "list")["items"] == []
    assert not forkpoint.settings.parent.exists()


@pytest.mark.parametrize("how", ["id", "name", "key"])
def test_revoke_removes_one_and_says_which(forkpoint: Program, how: str) -> None:
    made = forkpoint.json("keys", "add", "ann")
    forkpoint.text("keys", "add", "bob")
    done = forkpoint.run("keys", "revoke", made[how])
    assert done.stdout == f"Revoked {made['id']} (ann) of tenant default.\n"
    assert [item["name"] for item in forkpoint.json("keys", "list")["items"]] == ["bob"]
    again = forkpoint.run("keys", "revoke", made[how], "--json")
    assert (again.returncode, again.stdout) == (1, "")
    assert json.loads(again.stderr)["error"]["code"] == "no_such_key"
    assert made["key"][12:] not in done.stderr + again.stderr


def test_revoke_is_one_document_for_programs(forkpoint: Program) -> None:
    made = forkpoint.json("keys", "add", "ann")
    revoked = forkpoint.json("keys", "revoke", "ann")
    about = {name: made[name] for name in ("id", "name", "tenant", "role", "created")}
    assert revoked == {"revoked": about, "file": made["file"]}


def test_the_environment_names_the_file_and_an_option_comes_first(forkpoint: Program) -> None:
    named = {"FORKPOINT_KEYS": str(forkpoint.folder / "named.json")}
    forkpoint.text("keys", "add", "ann", **named)
    forkpoint.text("keys", "add", "bob", "--file", "given.json", **named)
    assert Keys(forkpoint.folder / "named.json").count == Keys(forkpoint.folder / "given.json").count == 1
    assert not forkpoint.settings.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add", "ann"), "exists"),
        (("add", "a b"), "bad_name"),
        (("add", "new", "--tenant", "a/b"), "bad_name"),
        (("add", "fp_abcdefgh_secret"), "bad_argument"),
        (("list", "--file", "/"), "bad_keys_file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exits_with_1(
    forkpoint: Program, arguments: tuple[str, ...], code: str
) -> None:
    forkpoint.text("keys", "add", "ann")
    done = forkpoint.run("keys", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "secret" not in line
    assert json.loads(forkpoint.run("keys", *arguments, "--json").stderr)["error"]["code"] == code


def test_a_broken_file_is_named_with_what_to_do_and_left_as_it_is(forkpoint: Program) -> None:
    file = forkpoint.folder / "mine.json"
    file.write_text("{")
    for command in (("add", "ann"), ("list",), ("role", "ann", "read"), ("revoke", "ann")):
        done = forkpoint.run("keys", *command, "--file", str(file))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"error: {file} cannot be used as the file of keys" in done.stderr
        assert "Restore or repair it" in done.stderr
    assert file.read_text() == "{"


@pytest.mark.parametrize(
    "arguments", [("add",), ("revoke",), ("nothing",), ("list", "--nothing"), ("role", "ann"), ("role", "ann", "all")]
)
def test_a_command_line_that_makes_no_sense_exits_with_2(forkpoint: Program, arguments: tuple[str, ...]) -> None:
    assert forkpoint.run("keys", *arguments).returncode == 2


@pytest.mark.parametrize("command", ["add", "list", "role", "revoke"])
def test_every_command_has_help_with_an_example(forkpoint: Program, command: str) -> None:
    said = forkpoint.text("keys", command, "--help")
    assert f"  forkpoint keys {command}" in said.partition("Example")[2]
    assert "--json" in said
    assert "--file" in said


def test_the_commands_load_nothing_of_the_server_before_they_run() -> None:
    code = """if True:
        import sys, forkpoint.cli
        try:
            forkpoint.cli.main(["keys", "--help"])
        except SystemExit:
            print([name for name in sys.modules if name.startswith("forkpoint.server")], file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
