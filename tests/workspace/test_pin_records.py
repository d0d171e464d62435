"""What was approved is kept, so that a change can be shown."""

import os
import stat
from pathlib import Path

import pytest

from forkpoint.workspace import set_trust, standing
from forkpoint.workspace.pins.pin_records import differences, prose_changed, recall, remember, what_changed
from forkpoint.workspace.pins.pins import Pinned, pinned_at


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    (root / ".forkpoint").mkdir(parents=True)
    write(root, "./guard.sh", "one\ntwo\n")
    return root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "config.toml"


def write(root: Path, command: str, script: str) -> None:
    settings = f'[[hooks]]\nmoment = "turn_end"\ncommand = ["{command}"]\n'
    (root / ".forkpoint" / "config.toml").write_text(settings)
    (root / "guard.sh").write_text(script)


def approved(root: Path, config: Path) -> Pinned:
    pinned = pinned_at(root)
    remember(pinned, config)
    return pinned


def test_a_change_is_shown_line_by_line_beside_what_was_approved(project: Path, config: Path) -> None:
    pinned = approved(project, config)
    before = recall(str(project), (pinned.digest,), config)
    assert (list(differences(before, pinned)), prose_changed(before, pinned)) == ([], ())
    write(project, "./guard.sh", "one\nthree\n")
    now = pinned_at(project)
    assert what_changed(before, now) == "guard.sh changed"
    assert list(differences(before, now))[:2] == ["--- guard.sh (approved)", "+++ guard.sh (now)"]
    assert [line for line in differences(before, now) if line[0] in "+-"][2:] == ["-two", "+three"]
    write(project, "./other.sh", "one\ntwo\n")
    now = pinned_at(project)
    assert what_changed(before, now) == "`hooks` in its settings, guard.sh, other.sh changed"
    shown = "\n".join(differences(before, now))
    assert '+      "./other.sh"' in shown
    assert "+other.sh is not there" in shown


def test_without_a_record_all_of_it_is_shown(project: Path, config: Path) -> None:
    now = pinned_at(project)
    assert recall(str(project), (now.digest,), config) is None
    assert what_changed(None, now) == "nothing of this was approved yet: hooks, guard.sh"
    shown = list(differences(None, now))
    assert {"+one", "+two", '+      "./guard.sh"'} <= set(shown)


def test_a_line_end_that_changed_is_not_left_out(project: Path, config: Path) -> None:
    pinned = approved(project, config)
    (project / "guard.sh").write_bytes(b"one\r\ntwo\n")
    before = recall(str(project), (pinned.digest,), config)
    assert "+one\r" in list(differences(before, pinned_at(project)))


def test_what_is_no_text_is_shown_by_its_digest(project: Path, config: Path) -> None:
    (project / "guard.sh").write_bytes(b"\x7fELF\0\xff")
    shown = "\n".join(differences(None, pinned_at(project)))
    assert f"guard.sh (no text, or a large one: {pinned_at(project).files[0].digest})" in shown


def test_prose_is_listed_if_it_changed(project: Path, config: Path) -> None:
    (project / "AGENTS.md").write_text("Use make.")
    (project / ".forkpoint" / "skills").mkdir()
    (project / ".forkpoint" / "skills" / "old.md").write_text("Old.")
    pinned = approved(project, config)
    (project / "AGENTS.md").write_text("Use ninja.")
    (project / ".forkpoint" / "skills" / "new.md").write_text("New.")
    assert pinned_at(project).digest == pinned.digest, "it is not pinned"
    before = recall(str(project), (pinned.digest,), config)
    assert prose_changed(before, pinned) == (".forkpoint/skills/new.md", "AGENTS.md")


def test_records_are_for_their_owner_alone_and_their_loss_changes_nothing(project: Path, config: Path) -> None:
    assert set_trust(project, "trusted", config).written
    (record,) = (config.parent / "pinned").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (record, record.parent)] == [0o600, 0o700]
    record.write_text("{")
    found = standing(project, config)
    assert (found.trust, found.pinned) == ("trusted", (pinned_at(project).digest,))
    assert recall(str(project), found.pinned, config) is None


def test_the_newest_approved_content_is_what_a_change_is_shown_against(project: Path, config: Path) -> None:
    digests = []
    for script in ("one\n", "two\n", "three\n"):
        write(project, "./guard.sh", script)
        digests.append(approved(project, config).digest)
    found = recall(str(project), (digests[0], digests[2], digests[1]), config)
    assert found is not None
    assert [file.text for file in found.files] == ["two\n"]


def test_keeping_a_record_where_nothing_can_be_kept_raises_nothing(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    remember(pinned_at(project), tmp_path / "file" / "config.toml")
