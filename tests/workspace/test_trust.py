"""What a user's file says of a project, and what becomes of that file when it is changed."""

import json
import logging
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forkpoint.errors import TrustChanged
from forkpoint.workspace import Trust, TrustRecord, project_settings, set_trust, standing, trust_of
from forkpoint.workspace.edits import with_trust
from forkpoint.workspace.isolation import copy, worktree
from forkpoint.workspace.pins.pins import pinned_at
from forkpoint.workspace.trust import check_approved


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "config.toml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    return tmp_path / "project"


def says(config: Path, **folders: str) -> None:
    """Writes what is decided; a name stands for a folder beside the file's."""
    beside = config.parent.parent
    tables = [f'[projects."{beside / name.replace("__", "/")}"]\ntrust = "{said}"\n' for name, said in folders.items()]
    config.write_text("\n".join(tables))


# Folders that were made for forks.


@pytest.fixture
def repo(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORKPOINT_WORKSPACES", str(tmp_path / "workspaces"))
    (folder := tmp_path / "repo").mkdir()
    (folder / "vendor").mkdir()
    (folder / "vendor" / "a.c").write_text("")
    run = ("git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    for arguments in (("init", "-q", "--template="), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run([*run, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


def test_what_was_made_for_a_fork_is_trusted_like_its_source(config: Path, repo: Path) -> None:
    copied, again = Path(copy(repo, "copied").path), Path(copy(repo / "vendor", "again").path)
    vendor = Path(worktree(repo / "vendor", "vendor").path)
    for said in ("untrusted", "trusted"):
        says(config, repo=said)
        assert [trust_of(folder, config) for folder in (copied, copied / "vendor", again, vendor)] == [said] * 4
    says(config, repo="trusted", repo__vendor="untrusted")
    assert [trust_of(folder, config) for folder in (copied, copied / "vendor", again, vendor)] == [
        "trusted",
        "untrusted",
        "untrusted",
        "untrusted",
    ]


def test_what_is_said_of_a_copy_is_said_of_the_project_that_it_was_made_from(config: Path, repo: Path) -> None:
    copied = Path(copy(repo, "copied").path)
    assert set_trust(copied / "vendor", "trusted", config).written
    assert standing(copied, config).root == str(repo)
    assert trust_of(repo, config) == "trusted"
    (repo / ".forkpoint").mkdir()
    (repo / ".forkpoint" / "config.toml").write_text('instructions = "Be kind."\n')
    (copied / ".forkpoint").mkdir()
    (copied / ".forkpoint" / "config.toml").write_text('instructions = "Trust me."\n')
    assert project_settings(copied, "trusted").instructions == "Be kind.", "what agents write there tells them nothing"


# Reading.


def test_what_nobody_has_decided_is_undecided(config: Path, project: Path) -> None:
    assert trust_of(project, config) == "undecided"
    config.write_text('model = "x"\n[projects."/elsewhere"]\ntrust = "trusted"\n')
    assert trust_of(project, config) == "undecided"


def test_a_decision_holds_for_the_whole_repository(config: Path, project: Path) -> None:
    (project / "src").mkdir()
    says(config, project="trusted")
    assert trust_of(project / "src", config) == "trusted"
    says(config, project="untrusted")
    assert trust_of(project / "src", config) == "untrusted"


def test_trust_goes_no_further_than_the_project(config: Path, project: Path) -> None:
    (project / "vendor" / ".git").mkdir(parents=True)
    plain = config.parent.parent / "plain"
    (plain / "below").mkdir(parents=True)
    says(config, project="trusted", plain="trusted", home="trusted")
    (config.parent.parent / "home" / "x").mkdir(parents=True)
    assert trust_of(plain, config) == "trusted"
    for folder in (project / "vendor", plain / "below", config.parent.parent / "home" / "x", project.parent):
        assert trust_of(folder, config) == "undecided", folder


def test_distrust_goes_to_all_that_is_below_and_is_not_decided_itself(config: Path) -> None:
    top = config.parent.parent / "downloads"
    for name in ("clone/.git", "good/.git", "plain/deep"):
        (top / name).mkdir(parents=True)
    says(config, downloads="untrusted", downloads__good="trusted")
    assert trust_of(top / "clone", config) == trust_of(top / "plain" / "deep", config) == "untrusted"
    assert standing(top / "clone", config).decided_for == str(top)
    assert trust_of(top / "good", config) == "trusted"


def test_a_folder_in_a_trusted_repository_that_is_named_untrusted_is_so(config: Path, project: Path) -> None:
    (project / "examples" / "x").mkdir(parents=True)
    says(config, project="trusted", project__examples="untrusted")
    assert trust_of(project / "examples" / "x", config) == "untrusted"
    assert trust_of(project, config) == "trusted"


def test_a_folder_cannot_get_rid_of_distrust_by_becoming_a_worktree_of_something_else(config: Path) -> None:
    top = config.parent.parent
    (top / "evil").mkdir()
    entry = top / "other" / ".git" / "worktrees" / "wt"
    entry.mkdir(parents=True)
    (top / "other" / ".git" / "objects").mkdir()
    (top / "other" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (entry / "commondir").write_text("../..")
    (entry / "gitdir").write_text(f"{top}/evil/.git")
    (top / "evil" / ".git").write_text(f"gitdir: {entry}")
    says(config, other="trusted")
    assert trust_of(top / "evil", config) == "trusted", "it is a worktree of a trusted repository"
    says(config, evil="untrusted", other="trusted")
    assert trust_of(top / "evil", config) == "untrusted"


@pytest.mark.parametrize(
    "content",
    [b"projects = ", b"\xff\xfe\x00", b"projects = 5\n", b"\xef\xbb\xbfmodel = 'x'\n", b"x = " + b"[" * 5000],
    ids=["broken", "not-utf-8", "no-table", "mark", "deep"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_decides_nothing_and_that_is_said(
    config: Path, project: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    config.write_bytes(content)
    with caplog.at_level(logging.WARNING, "forkpoint"):
        assert trust_of(project, config) == "undecided"
    assert str(config) in caplog.text
    assert (standing(project, config).warning or "?") in caplog.text


def test_a_file_that_is_none_decides_nothing(config: Path, project: Path) -> None:
    config.mkdir()
    found = standing(project, config)
    assert (found.trust, "it is not a file" in (found.warning or "")) == ("undecided", True)
    below_a_file = project / ".git" / "x"
    below_a_file.touch()
    assert standing(project, below_a_file / "config.toml").trust == "undecided"


@pytest.mark.parametrize("entry", ['{ trust = "yes" }', "{ trust = 1 }", '{ trust = ["trusted"] }', '"maybe"', "7"])
def test_a_value_that_is_not_known_decides_nothing_and_that_is_said(config: Path, project: Path, entry: str) -> None:
    config.write_text(f'[projects]\n"{project}" = {entry}\n')
    found = standing(project, config)
    assert (found.trust, str(project) in (found.warning or "")) == ("undecided", True)


# Writing.


def test_what_is_decided_is_kept_and_said_again_it_is_not_written_again(config: Path, project: Path) -> None:
    decided: list[tuple[str | None, Trust]] = [
        ("trusted", "trusted"), ("untrusted", "untrusted"), ("trusted", "trusted"), (None, "undecided"),
    ]  # fmt: skip
    for said, trust in decided:
        assert set_trust(project / "src", said, config) == TrustRecord(True)  # type: ignore[arg-type]
        assert trust_of(project, config) == trust
        before = config.stat()
        assert set_trust(project, said, config) == TrustRecord(False)  # type: ignore[arg-type]
        after = config.stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_nothing_is_made_where_there_is_nothing_to_forget(tmp_path: Path, project: Path) -> None:
    assert set_trust(project, None, tmp_path / "new" / "config.toml") == TrustRecord(False)
    assert not (tmp_path / "new").exists()


def test_folders_are_made_and_nobody_else_reads_the_file(tmp_path: Path, project: Path) -> None:
    config = tmp_path / "a" / "b" / "config.toml"
    assert set_trust(project, "trusted", config).written
    assert config.read_text() == f'[projects."{project}"]\ntrust = "trusted"\n'
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


BEFORE = """\
# mine, all of it
model = "x"   # why not

[projects."/b"]   # the second letter
trust = "untrusted"

# about the store
[other]
z = 1
a = { b = [ 1,
  2 ] }  # order
"""


def test_all_else_in_the_file_stays_as_it_was(config: Path, project: Path) -> None:
    config.write_text(BEFORE)
    added = f'\n[projects."{project}"]\ntrust = "trusted"\n'
    assert set_trust(project, "trusted", config).written
    assert config.read_text() == BEFORE + added
    assert set_trust("/b", "trusted", config).written
    assert config.read_text() == BEFORE.replace('"untrusted"', '"trusted"') + added
    assert set_trust(project, None, config).written
    assert config.read_text() == BEFORE.replace('"untrusted"', '"trusted"')


def test_what_is_forgotten_takes_no_comment_with_it(config: Path) -> None:
    config.write_text(BEFORE)
    assert set_trust("/b", None, config).written
    assert config.read_text() == BEFORE.replace('trust = "untrusted"\n', "")
    config.write_text('[projects."/b"]\ntrust = "trusted"\n\n[other]\n')
    assert set_trust("/b", None, config).written
    assert config.read_text() == "[other]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('model = "x"', 'model = "x"\n\n[projects."/r"]\ntrust = "trusted"\n'),
        ('model = "x"\r\n', 'model = "x"\r\n\r\n[projects."/r"]\r\ntrust = "trusted"\r\n'),
        ('[projects]\n"/r".trust = "untrusted" # no\n', '[projects]\n"/r".trust = "trusted" # no\n'),
        ('[projects]\n"/r" = { trust = "untrusted" }\n', '[projects]\n"/r" = { trust = "trusted" }\n'),
        ("[projects.'/r']\ntrust = 'untrusted'\n\n[x]\n", "[projects.'/r']\ntrust = \"trusted\"\n\n[x]\n"),
        ('[projects."/r"]\nnote = 1 # a\n\n[x]\n', '[projects."/r"]\nnote = 1 # a\ntrust = "trusted"\n\n[x]\n'),
        ('projects = { "/a" = { trust = "trusted" } }\nx = 1\n', None),
        ('[projects."/a"]\nq = 1\n[x]\n[projects."/r"]\ntrust = "untrusted"\n', None),
        ('[projects."/r".more]\nq = 1\n', None),
        ("[projects]\n# none yet\n", None),
        ('projects."/b".trust = "trusted"\nx = 1\n', None),
        ('projects."/r".trust = "untrusted"\nx = 1\n', 'projects."/r".trust = "trusted"\nx = 1\n'),
    ],
)
def test_a_file_is_edited_however_it_is_written(config: Path, before: str, after: str | None) -> None:
    config.write_bytes(before.encode())
    wanted = tomllib.loads(before)
    wanted.setdefault("projects", {}).setdefault("/r", {})["trust"] = "trusted"
    assert set_trust("/r", "trusted", config) == TrustRecord(True)
    assert tomllib.loads(config.read_text()) == wanted
    if after is not None:
        assert config.read_bytes().decode() == after
    assert set_trust("/r", None, config) == TrustRecord(True)
    assert trust_of("/r", config) == "undecided"
    del wanted["projects"]["/r"]["trust"]
    left = tomllib.loads(config.read_text())
    left.setdefault("projects", {}).setdefault("/r", {})
    assert left == wanted


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "li\nne", "\x7f", "ü 例", "#", "a.b]", "\x01"])
def test_a_folder_with_an_odd_name_is_kept_by_it(config: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    (folder / ".git").mkdir(parents=True)
    assert set_trust(folder, "trusted", config) == TrustRecord(True)
    assert set_trust(folder, "untrusted", config) == TrustRecord(True)
    assert trust_of(folder, config) == "untrusted"
    assert set_trust(folder, None, config) == TrustRecord(True)


def test_a_link_stays_a_link_and_the_file_keeps_its_mode(config: Path, tmp_path: Path, project: Path) -> None:
    real = tmp_path / "dotfiles" / "forkpoint.toml"
    config.symlink_to(real)
    assert set_trust(project, "trusted", config).written, "what it names is made"
    os.chmod(real, 0o640)
    assert set_trust(project, "untrusted", config).written
    assert config.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert trust_of(project, real) == "untrusted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_keeps_its_group_if_root_changes_it(config: Path, project: Path) -> None:
    config.write_text("")
    os.chown(config, 0, 12346)
    assert set_trust(project, "trusted", config).written
    assert (config.stat().st_uid, config.stat().st_gid) == (0, 12346)


def test_what_a_killed_writer_has_left_is_cleared_away(config: Path, project: Path) -> None:
    (config.parent / ".config.toml-new-abc").touch()
    assert set_trust(project, "trusted", config).written
    assert sorted(os.listdir(config.parent)) == [".config.toml.lock", "config.toml", "pinned"]


def test_many_processes_at_once_lose_nothing(config: Path, tmp_path: Path) -> None:
    config.write_text(BEFORE)
    code = """
import sys
from pathlib import Path
from forkpoint.workspace import set_trust
config, folder = Path(sys.argv[1]), Path(sys.argv[2])
for number in range(10):
    kept = set_trust(folder / str(number), "trusted", config)
    assert kept.written, kept
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(config), str(tmp_path / name)]) for name in ("one", "two")
    ]
    assert [process.wait(60) for process in started] == [0, 0]
    projects = tomllib.loads(config.read_text())["projects"]
    assert projects.pop("/b") == {"trust": "untrusted"}
    assert set(projects) == {str(tmp_path / name / str(number)) for name in ("one", "two") for number in range(10)}
    assert config.read_text().startswith(BEFORE)


# What cannot be kept. These places are closed to root too.


def cannot_keep(project: Path, config: Path, why: str) -> None:
    kept = set_trust(project, "trusted", config)
    assert not kept.written
    assert kept.warning is not None
    assert str(project) in kept.warning
    assert str(config) in kept.warning
    assert why in kept.warning, kept.warning
    assert trust_of(project, config) == "undecided"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"model = ", "it is not valid TOML"),
        (b'[projects."/b"]\ntrust = "trusted"\n[projects."/b"]\n', "it is not valid TOML"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"projects = 'all'\n", "`projects` in it is not a table"),
        (b"[[projects]]\n", "`projects` in it is not a table"),
    ],
)
def test_a_file_that_is_not_understood_is_never_overwritten(
    config: Path, project: Path, content: bytes, why: str
) -> None:
    config.write_bytes(content)
    cannot_keep(project, config, why)
    assert config.read_bytes() == content
    assert set(os.listdir(config.parent)) == {"config.toml"}


def test_an_entry_that_is_no_table_is_never_overwritten(config: Path, project: Path) -> None:
    config.write_text(text := f'[projects]\n"{project}" = "maybe"\n')
    cannot_keep(project, config, "is not a table")
    assert config.read_text() == text


def test_a_read_only_file_stays_as_it_is_even_if_root_could_write_it(config: Path, project: Path) -> None:
    config.write_text(BEFORE)
    os.chmod(config, 0o444)
    cannot_keep(project, config, "it is read-only")
    assert config.read_text() == BEFORE


def test_places_that_nobody_can_write_are_only_a_warning(tmp_path: Path, config: Path, project: Path) -> None:
    cannot_keep(project, Path("/proc/self/nonexistent/config.toml"), "it cannot be written (No such file or directory)")
    (tmp_path / "file").touch()
    cannot_keep(project, tmp_path / "file" / "config.toml", "Not a directory")
    config.symlink_to("/proc/self/nonexistent")
    cannot_keep(project, config, "it cannot be written")
    assert config.is_symlink()
    config.unlink()
    config.symlink_to(config)
    cannot_keep(project, config, "Too many levels of symbolic links")
    config.unlink()
    config.mkdir()
    cannot_keep(project, config, "it is not a file")
    config.rmdir()
    os.mkfifo(config)
    cannot_keep(project, config, "it is not a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to it all the same")
def test_a_folder_that_is_read_only_is_only_a_warning(config: Path, project: Path) -> None:
    config.write_text(BEFORE)
    os.chmod(config.parent, 0o500)
    cannot_keep(project, config, "Permission denied")
    os.chmod(config.parent, 0o700)
    assert config.read_text() == BEFORE


def test_a_full_disk_is_only_a_warning_and_leaves_the_file_as_it_was(config: Path, project: Path) -> None:
    config.write_text(before := BEFORE + "# padding\n" * 50)
    code = """
import json, resource, sys
from pathlib import Path
from forkpoint.workspace import set_trust
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
kept = set_trust(sys.argv[1], "trusted", Path(sys.argv[2]))
print(json.dumps([kept.written, kept.warning]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(project), str(config)], check=True, capture_output=True, text=True, timeout=60
    )
    written, warning = json.loads(done.stdout)
    assert (written, "it cannot be written (File too large)" in warning) == (False, True), warning
    assert config.read_text() == before
    assert set(os.listdir(config.parent)) == {".config.toml.lock", "config.toml"}


def test_a_folder_whose_name_is_no_text_cannot_be_kept(config: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    kept = set_trust(folder, "trusted", config)
    assert "the name of the folder is not UTF-8" in (kept.warning or "").encode().decode()
    assert trust_of(folder, config) == "undecided"
    assert not config.exists()


# What is pinned.


ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")


def pinned_in(text: str, root: str = "/a") -> list[str] | None:
    found: list[str] | None = tomllib.loads(text)["projects"][root].get("pinned")
    return found


def test_digests_are_put_beside_the_decision_and_taken_away_with_it() -> None:
    text = with_trust("# mine\n", "/a", "trusted", (ONE,))
    assert text == f'# mine\n\n[projects."/a"]\ntrust = "trusted"\npinned = [\n    "{ONE}",\n]\n'
    more = with_trust(text, "/a", "trusted", (ONE, TWO))
    assert more == text.replace(f'    "{ONE}",\n', f'    "{ONE}",\n    "{TWO}",\n')
    assert with_trust(more, "/a", "trusted", (ONE, TWO)) is more
    assert with_trust(more, "/a", "untrusted") == '# mine\n\n[projects."/a"]\ntrust = "untrusted"\n'
    assert with_trust(more, "/a", None) == "# mine\n"


@pytest.mark.parametrize(
    "text",
    [
        f'[projects."/a"]\ntrust = "trusted" # yes\npinned = [ # seen\n  "{ONE}", # main\n]\n[projects."/b"]\n# no\n',
        f'[projects]\n"/a" = {{ trust = "trusted", pinned = ["{ONE}"] }} # mine\n',
        f'projects."/a".trust = "trusted"\nprojects."/a".pinned = ["{ONE}"]\nmodel = "x" # last\n',
        f'[projects."/a"]\r\ntrust = "trusted"\r\npinned = ["{ONE}"]\r\n# the end\r\n',
        '[projects."/a"]\ntrust = "trusted"\n# about the next\n[projects."/b"]\ntrust = "trusted"\n',
    ],
)
def test_digests_are_added_where_they_stand_and_comments_stay(text: str) -> None:
    new = with_trust(text, "/a", "trusted", (ONE, TWO))
    assert sorted(pinned_in(new) or ()) == [ONE, TWO]
    assert [part for part in text.split("#")[1:] if part.split("\n")[0] not in new] == []
    before, after = tomllib.loads(text), tomllib.loads(new)
    after["projects"]["/a"].pop("pinned")
    before["projects"]["/a"].pop("pinned", None)
    assert before == after


def test_a_project_keeps_its_newest_digests_and_what_makes_no_sense_there_approves_nothing(
    config: Path, project: Path
) -> None:
    settings = project / ".forkpoint" / "config.toml"
    settings.parent.mkdir()
    for number in range(35):
        settings.write_text(f'model = "scripted/{number}"')
        assert set_trust(project, "trusted", config).written
    kept = standing(project, config).pinned
    assert (len(kept), kept[-1]) == (32, pinned_at(project).digest)
    config.write_text(f'[projects."{project}"]\ntrust = "trusted"\npinned = [1, "yes", "{ONE}"]\n')
    assert standing(project, config).pinned == (ONE,)
    config.write_text(f'[projects."{project}"]\ntrust = "trusted"\npinned = "{ONE}"\n')
    with pytest.raises(TrustChanged):
        check_approved(project, config)


def test_the_user_is_not_asked_again_about_nothing_unless_something_was_approved(config: Path, project: Path) -> None:
    assert set_trust(project, "trusted", config).written
    assert "pinned" not in config.read_text()
    check_approved(project, config)
    settings = project / ".forkpoint" / "config.toml"
    settings.parent.mkdir()
    settings.write_text('approval = "always"')
    with pytest.raises(TrustChanged, match="`approval` in its settings changed"):
        check_approved(project, config)
    assert set_trust(project, "trusted", config).written
    check_approved(project, config)
    settings.unlink()
    with pytest.raises(TrustChanged):
        check_approved(project, config)
