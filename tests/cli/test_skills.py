"""``forkpoint skills``: which there are, what they say, and what calls for them."""

from pathlib import Path

import pytest
from tests.cli.program import Program

from forkpoint.workspace import set_trust


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    (tmp_path / "here").mkdir()
    forkpoint = Program(tmp_path / "here")
    forkpoint.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")  # apart: no project has its user's settings
    forkpoint.settings = tmp_path / "config" / "forkpoint" / "config.toml"
    mine = forkpoint.settings.parent / "skills"
    mine.mkdir(parents=True)
    (mine / "deploy.md").write_text("---\ndescription: How we deploy.\n---\nTag it first.\n")
    (mine / "bad.md").write_text("---\nname: [x\n---\n")
    theirs = forkpoint.folder / "repo" / ".forkpoint" / "skills"
    theirs.mkdir(parents=True)
    (forkpoint.folder / "repo" / ".git").mkdir()
    (theirs / "sql.md").write_text('---\nfiles: ["*.sql"]\n---\nMind the indexes.\n')
    return forkpoint


def test_mine_are_listed_and_the_project_s_once_it_is_trusted(forkpoint: Program) -> None:
    listed = forkpoint.json("skills", "list", "--workspace", "repo")
    assert [skill["name"] for skill in listed["skills"]] == ["deploy"]
    assert [Path(problem["source"]).name for problem in listed["problems"]] == ["bad.md"]
    set_trust(forkpoint.folder / "repo", "trusted", forkpoint.settings)
    assert "sql" in forkpoint.text("skills", "list", "--workspace", "repo")
    assert "How we deploy." in forkpoint.text("skills")


def test_one_is_shown_and_it_is_explained_what_calls_for_each(forkpoint: Program) -> None:
    assert forkpoint.text("skills", "show", "deploy") == "Tag it first.\n"
    assert forkpoint.json("skills", "show", "deploy")["words"] == ["deploy"]
    set_trust(forkpoint.folder / "repo", "trusted", forkpoint.settings)
    said = forkpoint.text("skills", "explain", "deploy a.txt", "--workspace", "repo")
    assert said.splitlines() == ["sql     nothing calls for it", "deploy  would be activated: the word 'deploy'"]
    assert "the file a.sql (*.sql)" in forkpoint.text("skills", "explain", "a.sql", "--workspace", "repo")
    assert forkpoint.run("skills", "show", "none").stderr.startswith("error: There is no skill 'none'")


def test_what_a_conversation_was_told_already_is_left_out(forkpoint: Program) -> None:
    made = forkpoint.json("run", "deploy it", "--model", "scripted/echo")
    said = forkpoint.json("skills", "explain", "deploy", "--conversation", made["conversation"])
    assert said["skills"] == [{"name": "deploy", "activated": False, "already": True, "why": "the word 'deploy'"}]


def test_trust_and_doctor_name_what_agents_come_to_here(forkpoint: Program) -> None:
    repo = forkpoint.folder / "repo"
    (repo / "AGENTS.md").write_text("Builds are started with make.")
    done = forkpoint.run("trust", "repo", "--yes")
    assert done.stderr.splitlines()[:2] == ["It runs nothing.", "It tells agents: AGENTS.md, .forkpoint/skills/sql.md"]
    assert done.stderr.splitlines()[-2:] == [
        f"Its instructions: {repo}/AGENTS.md",
        f"Its skills: {repo}/.forkpoint/skills/sql.md",
    ]
    shown = forkpoint.json("trust", "repo", "--show")
    assert (shown["instructions"], shown["skills"]) == ([f"{repo}/AGENTS.md"], [f"{repo}/.forkpoint/skills/sql.md"])
    (forkpoint.folder / "AGENTS.md").write_text("Be brief.")
    set_trust(forkpoint.folder, "trusted", forkpoint.settings)
    found = {one["what"]: one for one in forkpoint.json("doctor", status=1)["findings"]}
    bad = found["skills"]
    assert (bad["state"], "1 skill: deploy" in bad["said"], "bad.md" in bad["said"]) == ("bad", True, True)
    assert f"agents are told {forkpoint.folder}/AGENTS.md" in found["trust"]["said"]


def test_a_conversation_is_condensed_and_its_summary_printed(forkpoint: Program) -> None:
    id = forkpoint.json("run", "deploy it", "--model", "scripted/echo")["conversation"]
    forkpoint.run("run", "-c", id, "And now?")
    made = forkpoint.json("condense", id)
    assert (made["condensed"], "deploy it" in made["summary"]) == (True, True)
