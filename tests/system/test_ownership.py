"""A file counts if nobody but its owner can decide what it says."""

import grp
import os
import pwd
import struct
from pathlib import Path

import pytest

from forkpoint.system.ownership import flaw_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="rights are kept in another way there")

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

STRANGER = 54321


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "settings"
    folder.mkdir(mode=0o755)
    made = folder / "config.toml"
    made.write_text("x")
    made.chmod(0o644)
    return made


def flaw(path: Path, *owners: int) -> str | None:
    return flaw_of(path, path.stat(), owners)


def test_a_file_of_ones_own_that_others_can_only_read_counts(file: Path) -> None:
    assert flaw(file) is None


def test_a_file_that_everybody_can_write_does_not_count_and_the_command_that_mends_it_is_said(file: Path) -> None:
    file.chmod(0o666)
    said = flaw(file)
    assert said == f"everybody can write it, by its mode 0666 (chmod go-w {file})"
    file.chmod(0o644)
    assert flaw(file) is None


def test_a_folder_in_which_everybody_can_replace_the_file_spoils_it(file: Path) -> None:
    file.parent.chmod(0o777)
    said = flaw(file)
    assert said is not None
    assert said.endswith(f"(chmod go-w {file.parent})")
    file.parent.chmod(0o1777)  # as /tmp is: nobody can replace what is another's
    assert flaw(file) is None


def test_the_folder_of_a_link_counts_and_that_of_the_file_too(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    link = other / "config.toml"
    link.symlink_to(file)
    assert flaw(link) is None
    file.parent.chmod(0o777)
    assert str(file.parent) in (flaw(link) or "")
    file.parent.chmod(0o755)
    other.chmod(0o777)
    assert str(other) in (flaw(link) or "")


def test_a_file_whose_access_control_list_lets_another_user_write_does_not_count(file: Path) -> None:
    nobody, (owner, user, group, mask, others) = 0xFFFFFFFF, (0x01, 0x02, 0x04, 0x10, 0x20)
    entries = [(owner, 6, nobody), (user, 6, STRANGER), (group, 4, nobody), (mask, 6, nobody), (others, 4, nobody)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", packed)
    except (AttributeError, OSError) as error:
        pytest.skip(f"files have no such lists here ({error})")
    said = flaw(file)
    assert said == f"somebody of its access control list can write it, by its mode 0664 (chmod go-w {file})"
    file.chmod(0o644)  # as the message says: now the list lets nobody write
    assert flaw(file) is None


@root_only
def test_what_belongs_to_somebody_else_does_not_count_unless_that_owner_is_named(file: Path) -> None:
    os.chown(file, STRANGER, -1)
    said = flaw(file)
    assert said is not None
    assert f"belongs to user {STRANGER}" in said
    assert f"chown {os.geteuid()} {file}" in said
    assert flaw(file, STRANGER) is None
    os.chown(file.parent, STRANGER + 1, -1)
    assert f"its folder {file.parent} belongs to user {STRANGER + 1}" in (flaw(file, STRANGER) or "")


@root_only
def test_a_group_may_write_if_its_only_member_is_the_owner(file: Path) -> None:
    of = {one.pw_gid: [two for two in pwd.getpwall() if two.pw_gid == one.pw_gid] for one in pwd.getpwall()}
    alone = [
        users[0] for group, users in of.items() if len(users) == 1 and group in {one.gr_gid for one in grp.getgrall()}
    ]
    private = [one for one in alone if set(grp.getgrgid(one.pw_gid).gr_mem) <= {one.pw_name}]
    if not private:
        pytest.skip("no user here has a group alone")
    owner = private[0]
    file.chmod(0o664)
    os.chown(file, owner.pw_uid, owner.pw_gid)
    assert flaw(file, owner.pw_uid) is None
    os.chown(file, owner.pw_uid, STRANGER)  # nobody knows who is in it
    assert f"group {STRANGER} can write it" in (flaw(file, owner.pw_uid) or "")
    other = next(one for one in alone if one.pw_uid != owner.pw_uid)
    os.chown(file, owner.pw_uid, other.pw_gid)
    assert "chmod go-w" in (flaw(file, owner.pw_uid) or "")
