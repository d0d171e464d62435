"""Which package brings a system library, with package managers that a test puts on the PATH."""

import os
from pathlib import Path

import pytest

from forkpoint.system.libraries import installation_of, may_install, missing_in


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, name: str, does: str = "exit 0") -> None:
    (path / name).write_text(f"#!/bin/sh\n{does}\n")
    (path / name).chmod(0o755)


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


@pytest.mark.parametrize(
    ("complaint", "library"),
    [
        ("libgomp.so.1: cannot open shared object file: No such file or directory", "libgomp.so.1"),
        ("Error loading shared library libgomp.so.1: No such file or directory (needed by x.so)", "libgomp.so.1"),
        ("dlopen(x.so, 0x2): Library not loaded: @rpath/libomp.dylib\n  Referenced from: x.so", "libomp.dylib"),
        ("libgomp.so.1: cannot open shared object file: Too many open files", None),
        ("libgomp.so.1: cannot open shared object file: Permission denied", None),
        ("/x/engine.abi3.so: cannot open shared object file: No such file or directory", None),
        ("/usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", None),
        ("cannot import name 'CommonParams' from 'xllamacpp'", None),
        ("", None),
    ],
)
def test_the_missing_library_is_read_out_of_what_the_loader_says(complaint: str, library: str | None) -> None:
    assert missing_in(complaint) == library


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get update; apt-get install -y --no-install-recommends libgomp1"),
        ("dnf", "dnf install -y libgomp"),
        ("microdnf", "microdnf install -y libgomp"),
        ("yum", "yum install -y libgomp"),
        ("zypper", "zypper --non-interactive install libgomp1"),
        ("apk", "apk add libgomp"),
    ],
)
def test_root_gets_one_command_of_the_systems_own_package_manager(
    path: Path, monkeypatch: pytest.MonkeyPatch, manager: str, command: str
) -> None:
    program(path, manager)
    as_user(monkeypatch, 0)
    found = installation_of("libgomp.so.1")
    assert found is not None
    assert found.command == command


def test_others_get_it_with_sudo_or_are_told_that_root_has_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    assert not may_install()
    for manager, plain in (("dnf", "dnf install -y libgomp"), ("apt-get", None)):
        program(path, manager)
        found = installation_of("libgomp.so.1")
        assert found is not None
        assert found.command.endswith(" (as root)")
        program(path, "sudo")
        if plain is not None:
            assert found.command == f"sudo {plain}"
        else:
            line = "apt-get update; apt-get install -y --no-install-recommends libgomp1"
            assert found.command == f"sudo sh -c '{line}'", "sudo holds for both halves"
        (path / "sudo").unlink()


def test_a_system_or_a_library_that_is_not_known_has_no_command(path: Path) -> None:
    assert installation_of("libgomp.so.1") is None
    program(path, "apt-get")
    assert installation_of("libnobody.so.7") is None


def test_lists_are_read_only_if_the_package_is_not_known_and_need_not_all_be_readable(path: Path) -> None:
    known = path / "known"
    program(
        path, "apt-get", f'echo "$1 $DEBIAN_FRONTEND" >>{path}/said; [ "$1" = update ] && : >{known}; [ -e {known} ]'
    )
    found = installation_of("libgomp.so.1")
    assert found is not None
    assert found.run() is None
    assert found.run() is None
    tried = ["install", "update", "install", "install"]
    assert (path / "said").read_text().splitlines() == [f"{step} noninteractive" for step in tried]
    known.unlink()
    program(path, "apt-get", f'[ "$1" = update ] && : >{known} && exit 100; [ -e {known} ]')
    assert found.run() is None, "one source is broken, and another has the package"


def test_an_installation_that_fails_says_why(path: Path) -> None:
    program(path, "dnf", "echo E: full >&2; exit 1")
    found = installation_of("libgomp.so.1")
    assert found is not None
    assert found.run() == "E: full"
    program(path, "dnf", "exit 3")
    assert found.run() == "dnf ended with 3"
    (path / "dnf").unlink()
    assert "dnf" in (found.run() or "")
