"""``forkpoint trust``, and what the doctor says of it."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.program import Program


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "src").mkdir()
    return Program(tmp_path)


def kept(forkpoint: Program) -> dict[str, str]:
    projects = tomllib.loads(forkpoint.settings.read_text()).get("projects", {})
    return {name: entry["trust"] for name, entry in projects.items()}


def test_a_project_is_trusted_untrusted_and_undecided_again(forkpoint: Program) -> None:
    root = str(forkpoint.folder / "repo")
    assert forkpoint.text("trust", "repo/src") == f"{root} is trusted now.\n"
    assert kept(forkpoint) == {root: "trusted"}
    assert forkpoint.text("trust", "repo") == f"{root} is trusted already.\n"
    assert forkpoint.text("trust", "repo", "--revoke") == f"{root} is untrusted now.\n"
    assert kept(forkpoint) == {root: "untrusted"}
    assert forkpoint.text("trust", "repo", "--forget") == f"{root} is undecided now.\n"
    assert kept(forkpoint) == {}
    assert forkpoint.text("trust") == f"{forkpoint.folder} is trusted now.\n", "without a path it is this folder"


def test_it_shows_how_a_project_stands_and_why_and_changes_nothing(forkpoint: Program) -> None:
    root = forkpoint.folder / "repo"
    assert forkpoint.json("trust", "repo/src", "--show") == {
        "root": str(root),
        "trust": "undecided",
        "decided_for": None,
        "file": str(forkpoint.settings),
        "project_file": str(root / ".forkpoint" / "config.toml"),
        "warning": None,
    }
    assert not forkpoint.settings.exists()
    assert "nothing in" in forkpoint.text("trust", "repo", "--show")
    forkpoint.text("trust", "--revoke")
    shown = forkpoint.text("trust", "repo", "--show", COLUMNS="500")
    assert f"says so about {forkpoint.folder}" in shown
    assert "none of" in shown
    (root / ".forkpoint").mkdir()
    (root / ".forkpoint" / "config.toml").write_text('model = "scripted/echo"\n')
    done = forkpoint.run("trust", "repo")
    assert done.stderr == f"Its settings: {root}/.forkpoint/config.toml sets model\n"
    assert "trusted" in forkpoint.text("trust", "repo", "--show")
    (root / ".forkpoint" / "config.toml").write_text("modell = 1\n")
    assert "they cannot be used" in forkpoint.text("trust", "repo", "--show")


def test_programs_get_a_document(forkpoint: Program) -> None:
    found = forkpoint.json("trust", "repo")
    assert (found["root"], found["trust"], found["written"]) == (str(forkpoint.folder / "repo"), "trusted", True)
    assert forkpoint.json("trust", "repo")["written"] is False


def test_what_is_forgotten_may_still_be_untrusted_by_what_is_above(forkpoint: Program) -> None:
    forkpoint.text("trust", "--revoke")
    forkpoint.text("trust", "repo")
    done = forkpoint.run("trust", "repo", "--forget")
    assert done.returncode == 0
    assert done.stderr == f"But this folder is untrusted, because {forkpoint.folder} is.\n"


@pytest.mark.parametrize(
    ("content", "why"), [("projects = ", "not valid TOML"), ("projects = 1", "not a table"), (None, "not a file")]
)
def test_what_cannot_be_kept_is_an_error_that_says_why(forkpoint: Program, content: str | None, why: str) -> None:
    forkpoint.settings.parent.mkdir(parents=True)
    forkpoint.settings.mkdir() if content is None else forkpoint.settings.write_text(content)
    done = forkpoint.run("trust", "repo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert str(forkpoint.settings) in done.stderr
    assert str(forkpoint.folder / "repo") in done.stderr
    assert why in done.stderr
    assert why in json.loads(forkpoint.run("trust", "repo", "--json").stderr)["error"]["message"]
    if content is not None:
        assert forkpoint.settings.read_text() == content
    shown = forkpoint.json("trust", "repo", "--show")
    assert (shown["trust"], why in shown["warning"]) == ("undecided", True)


def test_what_makes_no_sense_is_refused(forkpoint: Program) -> None:
    assert forkpoint.run("trust", "--revoke", "--forget").returncode == 2
    done = forkpoint.run("trust", "nowhere")
    assert (done.returncode, "there is no such folder" in done.stderr) == (1, True)
    assert not forkpoint.settings.exists()


def test_home_is_trusted_only_if_it_is_named(forkpoint: Program) -> None:
    home = str(forkpoint.folder)
    done = forkpoint.run("trust", HOME=home)
    assert (done.returncode, f"forkpoint trust {home}" in done.stderr) == (2, True)
    assert forkpoint.text("trust", home, HOME=home) == f"{home} is trusted now.\n"
    assert forkpoint.json("trust", "repo", "--show")["trust"] == "undecided"
    assert forkpoint.run("trust", "--revoke", HOME=home).returncode == 0


def test_the_doctor_says_how_this_folder_stands(forkpoint: Program) -> None:
    def said(status: int = 0) -> dict[str, tuple[str, str]]:
        found = forkpoint.json("doctor", status=status)["findings"]
        return {finding["what"]: (finding["state"], finding["said"]) for finding in found}

    here = str(forkpoint.folder)
    assert said()["trust"] == ("absent", f"{here} is undecided, and nothing of it is read: forkpoint trust")
    forkpoint.text("trust")
    found = said()
    assert found["trust"] == ("good", f"{here} is trusted, and sets nothing")
    assert found["settings"] == ("good", f"{forkpoint.settings} sets projects")
    (forkpoint.folder / ".forkpoint").mkdir()
    (forkpoint.folder / ".forkpoint" / "config.toml").write_text('hooks = "x"\n')
    state, why = said(1)["trust"]
    assert (state, "hooks" in why) == ("bad", True)
    forkpoint.settings.write_text("[projects.'/a']\ntrust = ['yes']")
    assert said(1)["settings"][1].endswith(': projects."/a": trust must be "trusted" or "untrusted"')
