"""``forkpoint trust``, and what the doctor says of it."""

import hashlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.cli.program import Program, one_line
from tests.cli.terminal import Terminal


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
    assert forkpoint.text("trust", "repo/src", "--yes") == f"{root} is trusted now.\n"
    assert kept(forkpoint) == {root: "trusted"}
    assert forkpoint.text("trust", "repo", "--yes") == f"{root} is trusted already.\n"
    assert forkpoint.text("trust", "repo", "--revoke") == f"{root} is untrusted now.\n"
    assert kept(forkpoint) == {root: "untrusted"}
    assert forkpoint.text("trust", "repo", "--forget") == f"{root} is undecided now.\n"
    assert kept(forkpoint) == {}
    assert forkpoint.text("trust", "--yes") == f"{forkpoint.folder} is trusted now.\n", (
        "without a path it is this folder"
    )


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
    done = forkpoint.run("trust", "repo", "--yes")
    assert done.stderr.splitlines()[-1] == f"Its settings: {root}/.forkpoint/config.toml sets model"
    assert "trusted" in forkpoint.text("trust", "repo", "--show")
    (root / ".forkpoint" / "config.toml").write_text("modell = 1\n")
    assert "they cannot be used" in forkpoint.text("trust", "repo", "--show")


def test_programs_get_a_document(forkpoint: Program) -> None:
    found = forkpoint.json("trust", "repo", "--yes")
    assert (found["root"], found["trust"], found["written"]) == (str(forkpoint.folder / "repo"), "trusted", True)
    assert forkpoint.json("trust", "repo", "--yes")["written"] is False


def test_what_is_forgotten_may_still_be_untrusted_by_what_is_above(forkpoint: Program) -> None:
    forkpoint.text("trust", "--revoke")
    forkpoint.text("trust", "repo", "--yes")
    done = forkpoint.run("trust", "repo", "--forget")
    assert done.returncode == 0
    assert done.stderr == f"But this folder is untrusted, because {forkpoint.folder} is.\n"


@pytest.mark.parametrize(
    ("content", "why"), [("projects = ", "not valid TOML"), ("projects = 1", "not a table"), (None, "not a file")]
)
def test_what_cannot_be_kept_is_an_error_that_says_why(forkpoint: Program, content: str | None, why: str) -> None:
    forkpoint.settings.parent.mkdir(parents=True)
    forkpoint.settings.mkdir() if content is None else forkpoint.settings.write_text(content)
    done = forkpoint.run("trust", "repo", "--yes")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert str(forkpoint.settings) in done.stderr
    assert str(forkpoint.folder / "repo") in done.stderr
    assert why in done.stderr
    assert why in json.loads(forkpoint.run("trust", "repo", "--yes", "--json").stderr)["error"]["message"]
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
    assert forkpoint.text("trust", home, "--yes", HOME=home) == f"{home} is trusted now.\n"
    assert forkpoint.json("trust", "repo", "--show")["trust"] == "undecided"
    assert forkpoint.run("trust", "--revoke", HOME=home).returncode == 0


def test_the_doctor_says_how_this_folder_stands(forkpoint: Program) -> None:
    def said(status: int = 0) -> dict[str, tuple[str, str]]:
        found = forkpoint.json("doctor", status=status)["findings"]
        return {finding["what"]: (finding["state"], finding["said"]) for finding in found}

    here = str(forkpoint.folder)
    assert said()["trust"] == ("absent", f"{here} is undecided, and nothing of it is read: forkpoint trust")
    forkpoint.text("trust", "--yes")
    found = said()
    assert found["trust"] == ("good", f"{here} is trusted, and sets nothing")
    assert found["settings"] == ("good", f"{forkpoint.settings} sets projects")
    (forkpoint.folder / ".forkpoint").mkdir()
    (forkpoint.folder / ".forkpoint" / "config.toml").write_text('hooks = "x"\n')
    state, why = said(1)["trust"]
    assert (state, "hooks" in why) == ("bad", True)
    forkpoint.settings.write_text("[projects.'/a']\ntrust = ['yes']")
    assert said(1)["settings"][1].endswith(': projects."/a": trust must be "trusted" or "untrusted"')


# What it runs.


def brings(forkpoint: Program, script: str = "exit 0\n", *lines: str) -> Path:
    """Gives the project a hook, and the program on which it depends."""
    root = forkpoint.folder / "repo"
    (root / ".forkpoint").mkdir(exist_ok=True)
    hook = ["[[hooks]]", 'moment = "before_tool"', 'command = ["sh", "guard.sh"]', 'tools = "shell"', *lines]
    (root / ".forkpoint" / "config.toml").write_text("\n".join(hook))
    (root / "guard.sh").write_text(script)
    return root


def test_every_command_and_file_is_shown_and_without_a_terminal_nothing_is_trusted_unseen(forkpoint: Program) -> None:
    root = brings(forkpoint)
    digest = forkpoint.text("trust", "repo", "--print-digest").strip()
    done = forkpoint.run("trust", "repo")
    assert (done.returncode, done.stdout, forkpoint.settings.exists()) == (2, "", False)
    sha256 = hashlib.sha256(b"exit 0\n").hexdigest()
    assert done.stderr.splitlines()[:4] == [
        'It runs a hook at before_tool: ["sh","guard.sh"]',
        '  with {"tools":"shell"}',
        f"  guard.sh  sha256:{sha256}",
        f"Pinned: {digest}",
    ]
    assert f"--trust-digest {digest}" in one_line(done.stderr)
    assert forkpoint.text("trust", "repo", "--trust-digest", digest) == f"{root} is trusted now.\n"
    assert forkpoint.text("trust", "repo") == f"{root} is trusted already.\n", "nobody has to say it twice"


def test_another_digest_than_that_of_what_is_there_is_refused(forkpoint: Program) -> None:
    brings(forkpoint)
    digest = forkpoint.json("trust", "repo", "--print-digest")["digest"]
    brings(forkpoint, "exit 1\n")
    done = forkpoint.run("trust", "repo", "--trust-digest", digest, "--json")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"], forkpoint.settings.exists()) == (1, "trust_changed", False)
    assert f"and not {digest}" in error["message"]
    for wrong in (("--trust-digest", "sha256:1"), ("--yes", "--revoke"), ("--print-digest", "--show")):
        assert forkpoint.run("trust", "repo", *wrong).returncode == 2


def test_a_change_is_shown_by_show_and_the_doctor_and_approved_once_for_each_content(forkpoint: Program) -> None:
    root = brings(forkpoint)
    (root / "AGENTS.md").write_text("Use make.")
    forkpoint.text("trust", "repo", "--yes")
    found = forkpoint.json("trust", "repo", "--show")["pinned"]
    assert (found["approved"], found["changed"], found["prose_changed"]) == (True, None, [])
    brings(forkpoint, "exit 1\n")
    (root / "AGENTS.md").write_text("Use ninja.")
    found = forkpoint.json("trust", "repo", "--show")["pinned"]
    assert (found["approved"], found["changed"], found["prose_changed"]) == (False, "guard.sh changed", ["AGENTS.md"])
    assert "not approved: guard.sh changed" in forkpoint.text("trust", "repo", "--show", COLUMNS="500")
    done = forkpoint.run("trust", "repo", "--yes")
    assert [line for line in done.stderr.splitlines() if line.startswith(("  -", "  +"))] == [
        "  --- guard.sh (approved)",
        "  +++ guard.sh (now)",
        "  -exit 0",
        "  +exit 1",
    ]
    assert "Of what it tells agents, this changed: AGENTS.md\n" in done.stderr
    brings(forkpoint)
    assert forkpoint.text("trust", "repo") == f"{root} is trusted already.\n"
    assert len(tomllib.loads(forkpoint.settings.read_text())["projects"][str(root)]["pinned"]) == 2


def test_the_doctor_says_whether_what_a_project_runs_is_approved(forkpoint: Program) -> None:
    def said() -> tuple[str, str]:
        found = json.loads(forkpoint.run("doctor", "--json").stdout)["findings"]
        return next((one["state"], one["said"]) for one in found if one["what"] == "trust")

    shutil.copytree(brings(forkpoint) / ".forkpoint", forkpoint.folder / ".forkpoint")
    forkpoint.text("trust", "--yes")
    assert said()[0] == "good"
    assert said()[1].endswith("is trusted, and sets hooks; what it runs is approved")
    (forkpoint.folder / "guard.sh").write_text("new")
    state, why = said()
    assert (state, "not approved (guard.sh changed): forkpoint trust" in why) == ("bad", True)


def test_what_a_project_has_in_its_names_and_files_does_nothing_to_the_terminal(forkpoint: Program) -> None:
    brings(forkpoint)
    forkpoint.text("trust", "repo", "--yes")
    brings(forkpoint, "echo \x1b[2J\u202e\n", 'name = "\\u001b[31mred"')
    assert not {"\x1b", "\u202e"} & set(forkpoint.run("trust", "repo").stderr)


def test_a_settings_file_that_others_can_write_is_refused_with_the_command_that_mends_it(forkpoint: Program) -> None:
    brings(forkpoint)
    forkpoint.text("trust", "repo", "--yes")
    forkpoint.settings.chmod(0o666)
    for arguments in (("trust", "repo"), ("trust", "repo", "--show"), ("trust", "repo", "--revoke")):
        done = forkpoint.run(*arguments)
        assert (done.returncode, f"chmod go-w {forkpoint.settings}" in one_line(done.stderr)) == (1, True), arguments
    forkpoint.settings.chmod(0o644)
    assert forkpoint.json("trust", "repo", "--show")["trust"] == "trusted"


def test_on_a_terminal_the_user_is_asked_and_no_changes_nothing(forkpoint: Program) -> None:
    root = brings(forkpoint)
    with Terminal(forkpoint, "trust", "repo") as terminal:
        terminal.wait_for("with this? [y/n]")
        terminal.type("what\n")
        terminal.wait_for("with this? [y/n]")
        assert terminal.end_with("n\n") == 1
    assert not forkpoint.settings.exists()
    with Terminal(forkpoint, "trust", "repo") as terminal:
        terminal.wait_for("guard.sh")
        terminal.wait_for("with this? [y/n]")
        assert terminal.end_with("y\n") == 0
    assert kept(forkpoint) == {str(root): "trusted"}


def test_what_a_project_runs_that_is_above_the_screen_is_said_before_the_question(forkpoint: Program) -> None:
    folder = forkpoint.folder / "repo" / ".forkpoint"
    folder.mkdir()
    hooks = [f'[[hooks]]\nmoment = "turn_start"\ncommand = "echo {number}"\n' for number in range(20)]
    (folder / "config.toml").write_text("".join(hooks))
    with Terminal(forkpoint, "trust", "repo", height=12) as terminal:
        terminal.wait_for("of these 21 lines are above the screen: scroll up before you decide.")
        terminal.wait_for("with this? [y/n]")
        said = re.search(r"The first (\d+) of these 21", terminal.text)
        assert said is not None
        first = next(int(row.split()[-1]) for row in terminal.screen if row.startswith("It runs a hook"))
        assert first == int(said[1]), "the first line on the screen is another one than it says"
        assert terminal.end_with("n\n") == 1


def test_a_command_is_shown_to_the_character(forkpoint: Program) -> None:
    folder = forkpoint.folder / "repo" / ".forkpoint"
    folder.mkdir()
    hook = '[[hooks]]\nmoment = "turn_start"\ncommand = '
    (folder / "config.toml").write_text(hook + '"true   #\\ncurl evil\\u200b"\n')
    shown = forkpoint.run("trust", "repo", "--yes").stderr
    assert "It runs a hook at turn_start: true   #\u240acurl evil<U+200B>\n" in shown
    (folder / "config.toml").write_text(hook + '["./guard.sh"]\n')
    (forkpoint.folder / "repo" / "guard.sh").write_bytes(b"exit 0\n")
    forkpoint.run("trust", "repo", "--yes")
    (forkpoint.folder / "repo" / "guard.sh").write_bytes(b"exit 0\r\n")
    assert "+exit 0\u240d\n" in forkpoint.run("trust", "repo", "--yes").stderr


def test_what_was_typed_before_the_question_does_not_answer_it(forkpoint: Program) -> None:
    with Terminal(forkpoint, "trust", "repo") as terminal:
        terminal.type("y\n")
        terminal.wait_for("with this? [y/n]")
        assert terminal.end_with("n\n") == 1
    assert not forkpoint.settings.exists()
