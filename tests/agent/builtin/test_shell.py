"""A command in the workspace: what is shown of it, what carries over to the next one, and that it ends."""

import os
import time
from pathlib import Path

import anyio
import pytest
from tests.agent.builtin.calls import Calls

from forkpoint.agent import Agent, Secret, ToolContext
from forkpoint.agent.builtin import list_files, read_file, shell
from forkpoint.agent.builtin.environment import base
from forkpoint.agent.builtin.output import FILE_LIMIT, FILES, FOLDER, HEAD, TAIL
from forkpoint.agent.secrets.secret import Resolved
from forkpoint.history.state import State

pytestmark = pytest.mark.anyio
PATIENCE = 15


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def outputs(workspace: Path) -> list[Path]:
    return sorted((workspace / FOLDER).glob("output-*"))


async def test_output_and_exit_code_are_told(calls: Calls) -> None:
    assert await calls(shell, command="echo out; echo err >&2") == "out\nerr\n[exit code 0]"
    assert await calls(shell, command="exit 3") == "[no output]\n[exit code 3]", "that is no failed call: it has run"
    assert (await calls(shell, command="printf x; kill -9 $$")).startswith("x\n[ended by signal 9]")
    assert calls.state.get("shell") is None, "nothing has changed"


async def test_there_is_no_input_and_no_terminal(calls: Calls) -> None:
    told = await calls(shell, command="cat; (read x </dev/tty) 2>/dev/null || echo no terminal; echo $PAGER")
    assert told == "no terminal\ncat\n[exit code 0]"


async def test_errors_name_the_right_line(calls: Calls) -> None:
    assert "line 2: nonesuch" in await calls(shell, command="true\nnonesuch")


# What carries over.


async def test_folder_and_variables_carry_over(calls: Calls, tmp_path: Path) -> None:
    told = await calls(shell, command="mkdir -p a/b; cd a/b; export A=1 B='x y'; C=not-exported; unset HOME; false")
    assert told == "[no output]\n[exit code 1]\n[The working folder is now a/b.]"
    assert calls.kept() == {"cwd": "a/b", "env": {"A": "1", "B": "x y"}, "unset": ["HOME"]}
    told = await calls(shell, command='pwd; echo "$A/$B/$C/${HOME-gone}"; cd ../..; unset A; export B=2 HOME=/x')
    assert told.startswith(f"{tmp_path}/a/b\n1/x y//gone\n")
    assert calls.kept() == {"cwd": ".", "env": {"B": "2", "HOME": "/x"}, "unset": []}


async def test_they_carry_over_after_exit_too(calls: Calls) -> None:
    await calls(shell, command="export A=1; exit 9")
    assert calls.kept()["env"] == {"A": "1"}


async def test_a_variable_that_a_command_sets_carries_over_though_an_agent_has_a_secret_of_that_name(
    calls: Calls,
) -> None:
    Agent("scripted/echo", secrets={"BUILD": Secret(env="CFG_OF_AN_AGENT")})
    await calls(shell, command="export CFG_OF_AN_AGENT=1")
    assert "<1>" in await calls(shell, command='echo "<$CFG_OF_AN_AGENT>"')


@pytest.mark.parametrize("command", ["export A=2; exec true", "export A=2; kill -9 $$", "export A=2; echo 'open"])
async def test_a_shell_that_does_not_come_to_its_end_leaves_them_as_they_are(command: str, calls: Calls) -> None:
    await calls(shell, command="export A=1")
    assert "as before" in await calls(shell, command=command)
    assert calls.kept()["env"] == {"A": "1"}


async def test_a_value_that_names_the_workspace_means_the_workspace_of_a_fork(calls: Calls, tmp_path: Path) -> None:
    await calls(shell, command="mkdir src; export PYTHONPATH=$PWD/src:$PWD:/lib OTHER=${PWD}2 PLAIN=x")
    fork = Calls(tmp_path / "src")
    fork.state = calls.state
    told = await fork(shell, command='echo "$PYTHONPATH $OTHER"')
    here = tmp_path / "src"
    assert told == f"{here}/src:{here}:/lib {tmp_path}2\n[exit code 0]"


async def test_the_shell_may_go_elsewhere_but_the_next_one_starts_in_the_workspace(
    calls: Calls, tmp_path: Path
) -> None:
    (tmp_path / "out").symlink_to("/")
    for command in ("cd /", "cd out"):
        assert "outside the workspace" in await calls(shell, command=command)
    assert await calls(shell, command="pwd") == f"{tmp_path}\n[exit code 0]"


async def test_a_folder_that_is_gone_is_said(calls: Calls, tmp_path: Path) -> None:
    await calls(shell, command="mkdir a; cd a")
    (tmp_path / "a").rmdir()
    told = await calls(shell, command="pwd")
    assert told.startswith(f"{tmp_path}\n")
    assert "The folder a is gone" in told


@pytest.mark.parametrize(
    "stored", ["7", '{"cwd":3}', '{"cwd":"../.."}', '{"cwd":"\\u0000"}', '{"env":{"A=":"1","":"2","B":"\\u0000"}}']
)
async def test_rubbish_in_the_state_breaks_nothing(stored: str, calls: Calls, tmp_path: Path) -> None:
    calls.state = State((("shell", stored),))
    assert (await calls(shell, command="pwd")).startswith(f"{tmp_path}\n[exit code 0]")


async def test_secrets_are_neither_given_nor_kept(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k1")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hunter2@host/db")
    monkeypatch.setenv("PGPASSWORD", "k3")
    monkeypatch.setenv("KEYBOARD", "us")
    told = await calls(
        shell, command='echo "[$OPENAI_API_KEY$DATABASE_URL$PGPASSWORD$KEYBOARD]"; export GH_TOKEN=x OK=1'
    )
    assert told.startswith("[us]\n")
    assert "look like secrets or are too long: GH_TOKEN" in told
    assert calls.kept() == {"cwd": ".", "env": {"OK": "1"}, "unset": []}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MYSQL_PWD", "k"),
        ("NPM_AUTHTOKEN", "k"),
        ("npm_config__authToken", "k"),
        ("GITHUB_OAUTH", "k"),
        ("MYSECRET", "k"),
        ("SIGNING_CERT", "-----BEGIN PRIVATE KEY-----\nMIIE"),
        ("SESSION", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln"),
        ("STRIPE", "sk_live_0123456789abcdef"),
        ("GH", "ghp_0123456789abcdef"),
    ],
)
def test_more_that_looks_like_a_secret(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("PWD", "/")
    monkeypatch.setenv("OLDPWD", "/")
    given = base()
    assert name not in given
    assert (given["PWD"], given["OLDPWD"]) == ("/", "/")


async def test_settings_of_git_are_given_whole_and_without_secrets(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [("http.https://x.org/.extraheader", "x: y"), ("user.name", "Ann"), ("user.email", "sk-0123456789ab")]
    settings += [("credential.helper", "store"), ("alias.hi", "version")]
    for n, (key, value) in enumerate(settings):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{n}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{n}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
    told = await calls(shell, command="git config --get user.name; git hi; env | grep -c ^GIT_CONFIG_[KVC]")
    assert told.startswith("Ann\ngit version ")
    assert "\n5\n[exit code 0]" in told
    assert calls.kept() in (None, {"cwd": ".", "env": {}, "unset": []})
    for n in range(len(settings)):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{n}", "credential.helper")
    assert not [name for name in base() if name.startswith(("GIT_CONFIG_KEY", "GIT_CONFIG_VALUE", "GIT_CONFIG_COUNT"))]


async def test_a_secret_of_the_call_is_given_and_not_kept_under_any_name(tmp_path: Path) -> None:
    context = ToolContext("call-1", workspace=tmp_path, secrets=Resolved({"MINE": "s3cr3t"}))
    told = await shell(
        context, command='echo "${#MINE}"; export COPY="x$MINE" HIDDEN="$(printf %s "$MINE" | base64)" OK=1'
    )
    assert told.startswith("6\n")
    assert context.state["shell"]["env"] == {"OK": "1"}


async def test_what_is_too_large_or_no_text_is_not_kept(calls: Calls) -> None:
    told = await calls(shell, command="export BIG=$(printf 'x%.0s' {1..9000}) ODD=$'\\xff' OK=1")
    assert "too long: BIG, ODD" in told
    assert calls.kept()["env"] == {"OK": "1"}
    told = await calls(
        shell, command="for i in {1..20}; do export V$i=$(printf 'x%.0s' {1..7000}); done; mkdir a; cd a"
    )
    assert "so they are as they were before" in told
    assert calls.kept() == {"cwd": "a", "env": {"OK": "1"}, "unset": []}


async def test_two_commands_at_once_are_not_in_each_others_way_if_nothing_changes(tmp_path: Path) -> None:
    contexts = [ToolContext(f"call-{n}", workspace=tmp_path) for n in range(2)]
    async with anyio.create_task_group() as tasks:
        for context in contexts:
            tasks.start_soon(shell, context, "echo $((1 + 1))")
    assert [context.state.change for context in contexts] == [None, None]


async def test_names_that_the_shell_uses_itself_may_be_used(calls: Calls) -> None:
    """A command that redefines what ours ends with changes nothing."""
    told = await calls(
        shell, command="pwd() { echo no; }; env() { echo no; }; printf() { echo no; }; PATH=; export A=1"
    )
    assert told == "[no output]\n[exit code 0]"
    assert calls.kept()["env"] == {"A": "1", "PATH": ""}


# Output.


async def test_a_long_output_is_shown_in_part_and_is_all_in_a_file(calls: Calls, tmp_path: Path) -> None:
    told = await calls(shell, command="seq 1 100000")
    (file,) = outputs(tmp_path)
    assert file.read_text() == "".join(f"{n}\n" for n in range(1, 100_001))
    assert told.startswith("1\n2\n3\n")
    assert told.endswith("\n99999\n100000\n[exit code 0]")
    assert f"All of it is in {FOLDER}/{file.name}" in told
    assert len(told) < HEAD + TAIL + 500
    assert "  50000\t50000" in " " + await calls(read_file, path=f"{FOLDER}/{file.name}", offset=50_000, limit=1)
    assert FOLDER not in await calls(list_files)


async def test_what_can_be_shown_makes_no_file(calls: Calls, tmp_path: Path) -> None:
    told = await calls(shell, command=f"head -c {HEAD + TAIL} /dev/zero | tr '\\0' x")
    assert told == "x" * (HEAD + TAIL) + "\n[exit code 0]"
    assert not (tmp_path / ".forkpoint").exists()


async def test_git_does_not_see_the_files(calls: Calls) -> None:
    told = await calls(shell, command="git init -q . && seq 1 100000 >/dev/stderr && git status --porcelain")
    assert told.endswith("100000\n[exit code 0]")
    assert await calls(shell, command="git status --porcelain") == "[no output]\n[exit code 0]"


async def test_a_gigabyte_is_neither_kept_nor_waited_for_long(calls: Calls, tmp_path: Path) -> None:
    began = time.monotonic()
    told = await calls(shell, command="head -c 1000000000 /dev/zero")
    assert time.monotonic() - began < PATIENCE
    (file,) = outputs(tmp_path)
    assert file.stat().st_size == FILE_LIMIT
    assert f"of 1,000,000,000 bytes are left out here. The first {FILE_LIMIT:,} bytes are in {FOLDER}/" in told
    assert len(told) < HEAD + TAIL + 500
    assert "\0" not in told
    assert sum(map(len, calls.progress)) < 1_000_000


async def test_an_output_that_never_ends_ends_with_its_time(calls: Calls) -> None:
    began = time.monotonic()
    told = await calls(shell, command="export A=1; yes", timeout=1)
    assert time.monotonic() - began < PATIENCE
    assert told.startswith("FAILED ToolFailed: y\ny\n")
    assert told.endswith("y\n[It did not end within 1 s and was ended, with all that it had started.]")
    assert calls.kept() is None, "what carries over is as it was"


async def test_old_files_make_room(calls: Calls, tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()
    for number in range(FILES + 5):
        (folder / f"output-{number}.txt").touch()
        os.utime(folder / f"output-{number}.txt", (number, number))
    await calls(shell, command="seq 1 100000")
    assert len(outputs(tmp_path)) == FILES
    assert not (folder / "output-5.txt").exists()
    assert (folder / f"output-{FILES + 4}.txt").exists()
    assert (folder / "mine.txt").exists()


async def test_an_output_that_cannot_be_kept_does_not_fail_the_command(calls: Calls, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (tmp_path / ".forkpoint").symlink_to(outside)
    told = await calls(shell, command="seq 1 100000")
    assert "It could not be kept in a file" in told
    assert told.endswith("100000\n[exit code 0]")
    assert os.listdir(outside) == []


async def test_a_link_in_place_of_its_folder_is_not_followed(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for number in range(FILES + 5):
        (tmp_path / "results" / f"output-{number}.csv").touch()
    (tmp_path / FOLDER).parent.mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "results")
    assert "It could not be kept in a file" in await calls(shell, command="seq 1 100000")
    assert len(os.listdir(tmp_path / "results")) == FILES + 5


async def test_output_is_told_while_it_runs(tmp_path: Path) -> None:
    heard: list[str] = []
    context = ToolContext("call-1", workspace=tmp_path, progress=heard.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shell, context, "printf 'first \\xc3\\xa4'; until [ -e go ]; do sleep 0.01; done; echo last")
        with anyio.fail_after(PATIENCE):
            while not heard:  # noqa: ASYNC110 - a thread tells it
                await anyio.sleep(0.005)
        assert heard == ["first ä"]
        (tmp_path / "go").touch()
    assert "".join(heard) == "first älast\n"


async def test_output_that_is_no_text_is_shown_as_far_as_it_is(calls: Calls) -> None:
    assert (
        await calls(shell, command="printf 'a\\xff\\0b'")
        == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b\n[exit code 0]"
    )


async def test_a_background_process_is_ended_and_said(calls: Calls) -> None:
    told = await calls(shell, command="sleep 1000 & echo started")
    assert told == "started\n[exit code 0]\n[Processes that it had left in the background were ended.]"


async def test_a_command_that_cannot_be_is_a_clear_failure(calls: Calls) -> None:
    assert "Write it into a file" in await calls(shell, command="x" * 100_001)
    assert "cannot be started" in await calls(shell, command="echo \0")
    assert "do not fit" in await calls(shell, command="true", timeout=0)
