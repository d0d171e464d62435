"""What is pinned of a project: its settings, and the files that its commands name, under one digest."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.workspace.pins.pins import (
    MISSING,
    NOTHING,
    Pinned,
    approved_in_environment,
    content_of,
    digest_of,
    is_approved,
    pinned_at,
)


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / ".forkpoint").mkdir(parents=True)
        (root / ".git").mkdir()

    def sets(self, *lines: str) -> None:
        (self.root / ".forkpoint" / "config.toml").write_text("".join(f"{line}\n" for line in lines))

    def hook(self, command: str) -> None:
        """The one hook that it has, as TOML has its command."""
        self.sets("[[hooks]]", 'moment = "before_tool"', f"command = {command}")

    def has(self, name: str, content: str = "exit 0\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def pinned(self, folder: str = ".") -> Pinned:
        return pinned_at(self.root / folder)

    def names(self, folder: str = ".") -> list[str]:
        return [file.name for file in self.pinned(folder).files]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(Path(os.path.realpath(tmp_path)) / "project")


def sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# What is pinned.


def test_a_project_without_settings_or_with_prose_alone_has_nothing_pinned(project: Project) -> None:
    assert project.pinned().digest == NOTHING
    project.sets('instructions = "Use make."')
    assert (project.pinned().digest, project.pinned().settings) == (NOTHING, ())


@pytest.mark.parametrize("line", ['approval = "never"', 'model = "scripted/echo"', 'store = "sqlite:///x.db"'])
def test_every_other_setting_is_pinned(project: Project, line: str) -> None:
    project.sets(line, 'instructions = "a"')
    found = project.pinned().digest
    assert found != NOTHING
    project.sets('instructions = "b"', line)
    assert project.pinned().digest == found
    project.sets(line.replace('"never"', '"always"').replace("echo", "ohce").replace("x.db", "y.db"))
    assert project.pinned().digest != found


@pytest.mark.parametrize(
    "command",
    [
        '[".forkpoint/guard.sh"]',
        '["./.forkpoint/guard.sh", "--quick"]',
        '["sh", ".forkpoint/guard.sh"]',
        '["sh", "--", "./.forkpoint/../.forkpoint/guard.sh"]',
        '["guard", "--script=.forkpoint/guard.sh"]',
        '"sh .forkpoint/guard.sh"',
        '"cd . && sh \\".forkpoint/guard.sh\\" | cat"',
        '["sh", "-c", "sh .forkpoint/guard.sh; true"]',
        '"sh $PWD/.forkpoint/guard.sh"',
        '"an unclosed \' quote .forkpoint/guard.sh"',
        '"cd .forkpoint && ./guard.sh"',
        '"cd .forkpoint; sh guard.sh"',
        '["sh", "-c", "sh guard.sh", ".forkpoint"]',
        '"$(git rev-parse --show-toplevel)/.forkpoint/guard.sh"',
        '"sh ${ROOT}/.forkpoint/guard.sh"',
        '"ROOT=$(git rev-parse --show-toplevel); $ROOT/.forkpoint/guard.sh"',
        '"sh \\"$ROOT/.forkpoint/guard.sh\\""',
        '"D=.forkpoint; $D/guard.sh"',
        '"sh $ABOVE/project/.forkpoint/guard.sh"',
        '["sh", "-c", "sh ${ABOVE}/project/.forkpoint/guard.sh"]',
    ],
)
def test_a_file_of_the_project_that_a_command_names_is_pinned(
    project: Project, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABOVE", str(project.root.parent))
    script = project.has(".forkpoint/guard.sh")
    project.hook(command)
    before = project.pinned()
    assert (".forkpoint/guard.sh", sha256("exit 0\n")) in [(one.name, one.digest) for one in before.files]
    script.write_text("exit 1\n")
    assert project.pinned().digest != before.digest
    script.write_text("exit 0\n")
    assert project.pinned().digest == before.digest


def test_an_mcp_server_is_pinned_with_what_its_arguments_and_environment_name(project: Project) -> None:
    project.has("tools/server.py")
    project.has("tools/settings.json")
    project.has("tools/extra.py")
    project.sets(
        "[[mcp]]",
        'name = "builds"',
        'command = ["python3", "${workspace}/tools/server.py"]',
        'env = { CONFIG = "tools/settings.json", PYTHONPATH = "/usr/lib:tools/extra.py" }',
    )
    before = project.pinned().digest
    assert project.names() == ["tools/extra.py", "tools/server.py", "tools/settings.json"]
    project.sets("[[mcp]]", 'name = "builds"', 'url = "https://builds.example/mcp"')
    assert (project.names(), project.pinned().digest == before) == ([], False)


def test_what_is_no_file_of_the_project_is_not_pinned(project: Project, tmp_path: Path) -> None:
    (tmp_path / "outside.sh").write_text("")
    (project.root / "folder").mkdir()
    project.hook(f'["/bin/sh", "-e", "{tmp_path}/outside.sh", "folder", "text/plain", "https://a.example/b", "."]')
    assert project.names() == []


def test_a_file_that_is_named_and_not_there_is_missing_and_a_word_that_becomes_one_is_noticed(project: Project) -> None:
    project.hook('["./guard.sh", "check", ".forkpoint/rules"]')
    assert [(one.name, one.digest) for one in project.pinned().files] == [
        (".forkpoint/rules", MISSING),
        ("guard.sh", MISSING),
    ]
    before = project.pinned().digest
    project.has("check")
    assert "check" in project.names()
    assert project.pinned().digest != before


def test_links_are_followed_wherever_they_lead(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text("one")
    link = project.root / "guard.sh"
    link.symlink_to(outside)
    project.hook('["./guard.sh"]')
    assert [(one.name, one.digest) for one in project.pinned().files] == [("guard.sh", sha256("one"))]
    link.unlink()
    link.symlink_to(project.has("other.sh", "two"))
    assert [(one.name, one.digest) for one in project.pinned().files] == [("guard.sh", sha256("two"))]
    link.unlink()
    link.symlink_to(link)  # to itself
    assert [one.name for one in project.pinned().files] == ["guard.sh"]


def test_a_program_on_a_path_within_the_project_is_pinned(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.has("bin/guard")
    project.hook('["guard"]')
    assert project.names() == []
    monkeypatch.setenv("PATH", f"{project.root}/bin:{os.environ['PATH']}")
    assert project.names() == ["bin/guard"]


def test_a_pipe_is_not_waited_for(project: Project) -> None:
    os.mkfifo(project.root / "guard.sh")
    project.hook('["./guard.sh"]')
    assert project.names() == []


@pytest.mark.parametrize(
    "command", ['"echo x >> ran"', '"echo x>ran 2>&1"', "\"echo x 2> 'ran'\"", '["sh", "-c", "echo x &>>ran; true"]']
)
def test_a_file_that_a_command_writes_is_not_pinned(project: Project, command: str) -> None:
    project.hook(command)
    (before,) = project.pinned().commands
    project.has("ran", "x\n")
    before.check()
    assert project.names() == []


@pytest.mark.parametrize(
    "command",
    ['"sh 0<>ran"', '"echo exit > ran; sh ran"', '"echo > \\"$(sh ran)\\""', '"cat >(sh ran)"', '"sh < ran >out"'],
)
def test_a_file_that_a_command_reads_is_pinned_though_it_writes_too(project: Project, command: str) -> None:
    project.has("ran")
    project.hook(command)
    assert project.names() == ["ran"]


def test_what_a_folder_below_has_under_a_name_counts_too(project: Project) -> None:
    project.has("guard.py")
    (project.root / "src").mkdir()
    project.hook('["python3", "guard.py"]')
    before = project.pinned().digest
    assert project.pinned("src").digest == before, "there is no other one there"
    project.has("src/guard.py", "evil")
    assert project.names("src") == ["guard.py", "src/guard.py"]
    assert (project.pinned("src").digest == before, project.pinned().digest == before) == (False, True)


# The digest.


def test_the_digest_is_of_frames_as_it_is_documented(project: Project) -> None:
    project.has("guard.sh")
    project.hook('["./guard.sh"]')
    value = json.dumps([{"command": ["./guard.sh"], "moment": "before_tool"}], sort_keys=True, separators=(",", ":"))
    frames = ["forkpoint-pinned-1", "setting", "hooks", value, "file", "guard.sh", sha256("exit 0\n")]
    framed = b"".join(len(frame).to_bytes(8, "big") + frame.encode() for frame in frames)
    assert project.pinned().digest == f"sha256:{hashlib.sha256(framed).hexdigest()}"


def test_the_digest_is_the_same_wherever_the_project_is(project: Project, tmp_path: Path) -> None:
    project.has("guard.sh")
    project.sets('store = "sqlite:///talks.db"', "[[hooks]]", 'moment = "turn_end"', 'command = ["./guard.sh"]')
    shutil.copytree(project.root, tmp_path / "elsewhere")
    assert pinned_at(tmp_path / "elsewhere").digest == project.pinned().digest


def test_content_is_given_only_if_it_is_the_pinned_one(project: Project) -> None:
    script = project.has("guard.sh", "one")
    project.hook('["./guard.sh"]')
    (file,) = project.pinned().files
    assert content_of(file, 100) == b"one"
    assert content_of(file, 2) is None
    script.write_text("two")
    assert content_of(file, 100) is None


# Directly before it is run.


def test_a_command_is_checked_by_content_and_not_by_the_time_of_its_files(project: Project) -> None:
    script = project.has("guard.sh", "one")
    project.hook('["./guard.sh"]')
    (command,) = project.pinned().commands
    command.check()
    found = script.stat()
    script.write_text("two")
    os.utime(script, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(TrustChanged, match=r"guard\.sh changed since the turn began") as refused:
        command.check()
    assert refused.value.digest == project.pinned().digest
    script.unlink()
    with pytest.raises(TrustChanged):
        command.check()
    script.write_text("one")
    command.check()


# What is approved.


def test_nothing_needs_an_approval_only_as_long_as_nothing_else_was_approved() -> None:
    some, other = sha256("a"), sha256("b")
    assert is_approved(some, [other, some])
    assert not is_approved(some, [other])
    assert is_approved(NOTHING, [])
    assert not is_approved(NOTHING, [some]), "a guard may have been taken away"


def test_the_environment_approves_digests_and_refuses_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORKPOINT_TRUST_DIGEST", raising=False)
    assert approved_in_environment() == frozenset()
    monkeypatch.setenv("FORKPOINT_TRUST_DIGEST", f" {sha256('a')},{sha256('b')}\n{sha256('c')} ")
    assert approved_in_environment() == {sha256("a"), sha256("b"), sha256("c")}
    monkeypatch.setenv("FORKPOINT_TRUST_DIGEST", "yes")
    with pytest.raises(BadSetting, match="'yes' is not a digest") as refused:
        approved_in_environment()
    assert "model" not in str(refused.value), "whoever set a variable is not helped by another model"
    assert digest_of("sha256:abc") is None
