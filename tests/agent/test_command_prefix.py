"""Command prefixes: whatever a shell could read otherwise than as plain words is never allowed by one."""

import re
import subprocess

import pytest

from forkpoint.agent.command_prefix import (
    CHANGES,
    HARMS,
    INTERPRETERS,
    LAUNCHERS,
    allows,
    plain_words,
    proposed,
    why_refused,
)

STATUS = ("git", "status")

HOSTILE = [
    "git status; rm -rf /",
    "git status;rm -rf /",
    "git status && rm x",
    "git status || rm x",
    "git status & rm x",
    "git status | sh",
    "git status > /etc/passwd",
    "git status < /etc/passwd",
    "git status 2>x",
    "git status $(rm x)",
    "git status `rm x`",
    "git status ${IFS}rm",
    "git status $HOME",
    "git status\nrm x",
    "git status\r\nrm x",
    "git status \\\nrm x",
    "git status\trm",
    "\ngit status",
    "git status\n",
    "git\\ status",
    "git 'status'",
    'git "status"',
    "git status 'a b'",
    'git status "$(x)"',
    "git status $'\\x3b' rm",
    "git status *",
    "git status ?",
    "git status [a]",
    "git status {a,b}",
    "git status ~",
    "git status ~root",
    "git status !x",
    "git status !!",
    "git status # comment",
    "git status (x)",
    "(git status)",
    "{ git status; }",
    "X=1 git status",
    "PATH=/tmp git status",
    "git status^rm",
    "git\u00a0status",
    "git status\u2028rm x",
    "git status\u00a0rm",
    "git\u2003status",
    "git \u200bstatus",
    "git status \u202etxt",
    "git st\u0430tus",  # a Cyrillic letter
    "git status \x00rm",
    "git status \x1b[2K",
    "git statusx",
    "git statu",
    "git  -c core.pager=x status",
    "git -c core.fsmonitor=x status",
    "git --exec-path=/tmp status",
    "./git status",
    "/tmp/git status",
    "Git status",
    "status git",
    "git",
    "",
    " ",
    "git status --output=x",
    "git status --outp=x",
    "git status --exec x",
    "git status -c x",
    "git status -Ox",
    "git status GIT_DIR=/tmp",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_a_command_that_is_not_plainly_what_was_allowed_is_asked_about(command: str) -> None:
    assert not allows(STATUS, command)


@pytest.mark.parametrize(
    "command", ["git status", "git status --short", " git  status -s src/a.py ", "git status --branch origin/main"]
)
def test_a_command_of_plain_words_that_begins_with_the_prefix_is_allowed(command: str) -> None:
    assert allows(STATUS, command)


@pytest.mark.parametrize("command", ["git status --short", "ls -l a,b a:b @x %1 +y a=b ./c", "make test-1_2.3"])
def test_a_shell_hands_plain_words_on_exactly_as_they_are_read_here(command: str) -> None:
    words = plain_words(command)
    assert words is not None
    ran = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert tuple(ran.stdout.splitlines()) == words


@pytest.mark.parametrize(
    ("option", "prefix"),
    [
        ("--upload-pack=/tmp/x", "git fetch"),
        ("--upload-pa=/tmp/x", "git fetch"),
        ("--open-files-in-pager=sh", "git grep"),
        ("-Osh", "git grep"),
        ("--ext-diff", "git diff"),
        ("--eval=x", "make test"),
        ("-f", "make test"),
        ("SHELL=/tmp/x", "make test"),
        ("--config", "cargo test"),
        ("--rsh=x", "ls"),
        ("-exec", "ls"),
        ("-exec=/tmp/x", "go test"),
        ("-toolexec=/tmp/x", "go build"),
        ("-vettool", "go vet"),
        ("-o/tmp/x", "go build"),
        ("-o", "sort"),
        ("-uo", "sort"),
        ("-o", "git archive"),
        ("--compress-program=/tmp/x", "sort"),
        ("--python-executable=/tmp/x", "mypy"),
        ("--config-file=/tmp/x", "mypy"),
        ("-f", "uv run make test"),
        ("-c", "poetry run git status"),
        ("--directory=/tmp/x", "make test"),
        ("--dir=/tmp/x", "make test"),
        ("--include-dir=/tmp/x", "make test"),
        ("--manifest-path", "cargo test"),
        ("-fplugin=/tmp/x", "ld"),
    ],
)
def test_an_option_that_runs_or_writes_something_else_is_asked_about(option: str, prefix: str) -> None:
    words = tuple(prefix.split())
    assert allows(words, prefix)
    assert not allows(words, f"{prefix} {option} x")


@pytest.mark.parametrize(
    ("prefix", "further"),
    [
        ("unheard-of", "bash -c id"),
        ("unheard-of", "-v /bin/sh"),
        ("unheard-of", "--with=sh"),
        ("unheard-of", "x python3.12 y"),
        ("unheard-of", "sudo id"),
        ("unheard-of", "bash-static -c x"),
        ("unheard-of", "x86_64-linux-gnu-gcc x"),
        ("make test", "env ./x"),
        ("pytest tests", "xargs"),
    ],
)
def test_a_program_that_may_start_another_one_is_asked_about(prefix: str, further: str) -> None:
    words = tuple(prefix.split())
    assert allows(words, prefix)
    assert not allows(words, f"{prefix} {further}")
    assert why_refused((*words, *further.split())) is not None


@pytest.mark.parametrize(
    "command",
    [
        *("grep -n select src", "cat src/time", "pytest tests/env.py", "npm run start", "npm start", "npm run watch x"),
        *("./script.sh x", "./env.py"),
    ],
)
def test_a_word_that_no_program_starts_is_allowed(command: str) -> None:
    assert allows(proposed(command), command)


@pytest.mark.parametrize("command", ["grep -on x src", "go test -count=1 ./...", "git log --oneline -p", "ls -lo"])
def test_an_option_that_only_changes_what_is_printed_is_allowed(command: str) -> None:
    assert allows(proposed(command), command)


def test_what_would_allow_anything_is_refused_as_a_prefix() -> None:
    for program in INTERPRETERS | LAUNCHERS | HARMS | CHANGES:
        for words in ((program,), (f"/usr/bin/{program}",), (program, "x"), (program.upper(), "x")):
            assert why_refused(words) is not None, words


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("python3.12 -m pytest", "runs whatever it is given"),
        ("bash5 x", "runs whatever it is given"),
        ("/usr/bin/env git status", "starts other programs"),
        ("git", "must say which one"),
        ("git -c x status", "must say which one"),
        ("git config", "runs whatever it is told"),
        ("git log --output=x", "could run or overwrite"),
        ("uv run", "must say which"),
        ("uv run python", "runs whatever it is given"),
        ("uv run --with x pytest", "names no program"),
        ("npm run", "must say which"),
        ("npm exec jest", "runs whatever it is told"),
        ("docker run alpine", "runs whatever it is told"),
        ("make", "must say which one"),
        ("make SHELL=x", "must say which one"),
        ("pip install requests", "runs whatever it is told"),
        ("uv pip install requests", "approve its calls one by one"),
        ("npm install", "runs whatever it is told"),
        ("forkpoint trust", "runs whatever it is told"),
        ("forkpoint", "must say which one"),
        ("printf x", "changes what later commands mean"),
        ("read x", "changes what later commands mean"),
        ("uniq a b", "can change or remove anything"),
        ("ld-linux-x86-64.so.2 /bin/ls", "starts other programs"),
        ("ssh-agent", "starts other programs"),
        ("setarch", "starts other programs"),
        ("linux64", "starts other programs"),
        ("choom", "starts other programs"),
        ("fakeroot", "starts other programs"),
        ("xvfb-run", "starts other programs"),
        ("dbus-run-session", "starts other programs"),
        ("hyperfine", "starts other programs"),
        ("coverage", "starts other programs"),
        ("cmake -P x", "starts other programs"),
        ("cmake -E env ./x", "starts other programs"),
        ("gcc-12 -fplugin=x", "starts other programs"),
        ("ssh-something", "starts other programs"),
        ("vim.tiny", "runs whatever it is given"),
        ("busybox.static", "runs whatever it is given"),
        ("perl5.36-x86_64-linux-gnu", "runs whatever it is given"),
        ("runghc", "runs whatever it is given"),
        ("mkfs.ext4", "can change or remove anything"),
        ("unheard-of bash", "may start bash"),
        ("pipenv run", "must say which"),
        ("X=1 ls", "plain words"),
        ("ls *", "plain words"),
        (". x", "names no program"),
        ("/ x", "names no program"),
        ("a" * 1001, "more than"),
    ],
)
def test_a_refusal_says_why(prefix: str, why: str) -> None:
    said = why_refused(tuple(prefix.split(" ")))
    assert said is not None
    assert re.search(why, said), said


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("git status --short", "git status"),
        ("uv run pytest -q", "uv run pytest"),
        ("npm run test -- x", "npm run test"),
        ("ls -la", "ls"),
        ("cargo test --all", "cargo test"),
        ("uv pip list", "uv pip list"),
        ("pip install requests", ""),
        ("python x.py", ""),
        ("git status; ls", ""),
        ("rm -rf build", ""),
    ],
)
def test_the_shortest_sensible_prefix_is_proposed(command: str, prefix: str) -> None:
    assert " ".join(proposed(command)) == prefix
