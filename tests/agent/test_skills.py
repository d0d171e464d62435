"""Skills: what calls for one, and what is read of files that say whatever they like."""

import os
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from forkpoint.agent.skills.files import (
    LARGEST_INSTRUCTIONS,
    BadSkill,
    Found,
    instructions_in,
    skill_of,
    skills_in,
    together,
)
from forkpoint.agent.skills.front_matter import BadHeader, front_matter
from forkpoint.agent.skills.skill import LARGEST, Skill, explain, named_paths, touched_paths, triggered
from forkpoint.errors import BadAgent
from forkpoint.events import NewEvent, SkillActivated, ToolCall, decode_body, encode_body
from forkpoint.history.wholeness import check_whole

MIGRATIONS = Skill("migrations", "Write each change twice.", words=("migration",), files=("migrations/**", "*.sql"))


def names(skills: Iterable[Skill]) -> list[str]:
    return [skill.name for skill in skills]


def is_triggered(skill: Skill, text: str = "", *touched: str, workspace: str | None = None) -> bool:
    where = None if workspace is None else PurePosixPath(workspace)
    return bool(triggered([skill], text, touched, workspace=where))


# What calls for a skill.


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("migration", "Write the migration."),
        ("migration", "MIGRATION!"),
        ("Migration", "(migration)"),
        ("release notes", "the Release\n  notes, please"),
        ("c++", "is it C++?"),
        (".net", "in .NET"),
        ("straße", "in der STRASSE"),
        ("café", "in the cafe\u0301"),
        ("数据库", "请迁移数据库表"),
        ("日本語", "これは日本語です"),
    ],
)
def test_a_word_is_found_whatever_its_case_and_what_stands_around_it(word: str, text: str) -> None:
    assert is_triggered(Skill("one", "Do.", words=(word,)), text)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("migration", "two migrations"),
        ("migration", "immigration"),
        ("migration", "migration_test"),
        ("release notes", "release the notes"),
        ("c++", "c"),
        (".net", "asp.net"),
        ("go", "a good algorithm"),
        ("a.c", "abc"),
    ],
)
def test_a_word_that_is_only_part_of_another_calls_for_nothing(word: str, text: str) -> None:
    assert not is_triggered(Skill("one", "Do.", words=(word,)), text)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.sql", "deep/down/x.sql"),
        ("migrations/**", "migrations/2026/0001.py"),
        ("migrations/", "migrations/2026/0001.py"),
        ("**/test_*.py", "test_a.py"),
        ("**/test_*.py", "tests/agent/test_a.py"),
        ("src/*/main.py", "src/app/main.py"),
        ("/setup.py", "setup.py"),
        ("a/**/z.txt", "a/b/c/z.txt"),
        ("a/**/z.txt", "a/z.txt"),
        ("Dockerfile", "build/Dockerfile"),
        ("[ab].txt", "b.txt"),
    ],
)
def test_a_file_is_found_by_its_name_anywhere_or_by_its_path(pattern: str, path: str) -> None:
    assert is_triggered(Skill("one", "Do.", files=(pattern,)), "", path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.sql", "x.sql.bak"),
        ("migrations/**", "old/migrations/0001.py"),
        ("src/*/main.py", "src/a/b/main.py"),
        ("/setup.py", "deep/setup.py"),
        ("*.SQL", "x.sql"),
        ("migrations/**", "../migrations/0001.py"),
    ],
)
def test_another_file_is_not(pattern: str, path: str) -> None:
    assert not is_triggered(Skill("one", "Do.", files=(pattern,)), "", path)


@pytest.mark.parametrize(
    "text",
    [
        "Look at migrations/0001.py please",
        "Look at `migrations/0001.py:12:3`, it fails.",
        "(see @migrations/0001.py)",
        'in "migrations/0001.py".',
        "[the first](migrations/0001.py)",
        "migrations\\0001.py",
        "./migrations/0001.py",
        "/work/repo/migrations/0001.py",
        "db.sql!",
    ],
)
def test_a_path_is_seen_in_a_sentence(text: str) -> None:
    assert is_triggered(Skill("one", "Do.", files=MIGRATIONS.files), text, workspace="/work/repo")


def test_a_name_that_looks_like_no_path_is_seen_if_a_pattern_is_just_that() -> None:
    docker = Skill("docker", "Do.", files=("Dockerfile",))
    assert is_triggered(docker, "Does the Dockerfile still build?")
    assert not is_triggered(Skill("any", "Do.", files=("D*",)), "Does the Dockerfile still build?")


def test_the_address_of_a_page_is_no_path() -> None:
    assert not is_triggered(MIGRATIONS, "https://example.com/migrations/x.sql")
    assert named_paths("see https://example.com/a/b.sql and src/a.py, e.g. b.py") == ("src/a.py", "e.g", "b.py")


def test_the_paths_that_tools_touch_are_those_of_their_arguments() -> None:
    calls = [
        ToolCall("1", "read_file", '{"path": "a.sql"}'),
        ToolCall("2", "write_file", '{"path": "b.sql", "content": "see c.sql"}'),
        ToolCall("3", "shell", '{"command": "cat d/e.txt | grep x > f.log"}'),
        ToolCall("4", "edit", '{"files": ["g.md", 5, "a.sql"], "n": 3}'),
        ToolCall("5", "odd", "no JSON"),
        ToolCall("6", "odd", "[1]"),
        ToolCall("7", "odd", "[" * 100_000),
    ]
    assert touched_paths(calls) == ("a.sql", "b.sql", "d/e.txt", "f.log", "g.md")


def test_a_skill_that_names_nothing_is_called_for_by_its_name() -> None:
    skill = Skill("release-notes", "Be brief.")
    assert is_triggered(skill, "Write the release-notes!")
    assert not is_triggered(Skill("release-notes", "Be brief.", files=("*.md",)), "Write the release-notes!")


def test_each_is_activated_once_and_in_the_order_given() -> None:
    skills = [Skill(name, "Do.", words=("go",)) for name in ("c", "a", "b", "a")]
    assert names(triggered(skills, "go")) == ["c", "a", "b"]
    assert names(triggered(skills, "go", already={"a"})) == ["c", "b"]
    assert triggered(skills, "go", already=("a", "b", "c")) == ()
    assert triggered(skills) == ()


def test_all_that_are_activated_at_once_have_a_bound_and_the_rest_comes_later() -> None:
    large = [Skill(f"s{n}", "x" * (LARGEST // 2), words=("go",)) for n in range(5)]
    small = Skill("small", "x", words=("go",))
    first = triggered([*large, small], "go")
    assert names(first) == ["s0", "s1"], "there was no room left even for a small one"
    assert names(triggered([*large, small], "go", already=names(first))) == ["s2", "s3"]
    assert len(triggered([Skill("whole", "x" * LARGEST, words=("go",)), small], "go")) == 1


def test_it_can_be_explained_what_calls_for_each() -> None:
    skills = [MIGRATIONS, Skill("other", "Do.", words=("other",))]
    assert [why for _, why in explain(skills, "a migration")] == ["the word 'migration'", None]
    assert [why for _, why in explain(skills, "see db/x.sql")] == ["the file db/x.sql (*.sql)", None]
    assert [why for _, why in explain(skills, "", ["x.sql"])] == ["the file x.sql (*.sql)", None]


def test_a_huge_message_and_hostile_patterns_cost_little() -> None:
    deep = "/".join(["**", "*a*a*a*"] * 20) + "/b"
    stars = Skill("stars", "Do.", words=("needle",), files=("*a" * 100 + "b", deep))
    text = "a" * 2_000_000 + " needle " + "a/" * 2_000_000
    paths = ["/".join(["aaaa"] * 200), *(f"{n}{'a' * 900}" for n in range(5000))]
    before = time.process_time()
    assert not is_triggered(stars, text, *paths)
    assert is_triggered(stars, "needle " + text)
    assert is_triggered(stars, text + " needle")
    assert time.process_time() - before < 2


def test_thousands_of_words_in_a_long_message_cost_little() -> None:
    skills = [Skill(f"s{n}", "Do.", words=tuple(f"zz{n}x{m}" for m in range(100))) for n in range(30)]
    touched = [Skill(f"t{n}", "Do.", words=tuple(f".a{n}x{m}" for m in range(100))) for n in range(30)]
    text = "zz " * 50_000 + " ".join(f"b{word}" for skill in touched for word in skill.words)
    before = time.process_time()
    assert triggered([*skills, *touched], text) == ()
    assert names(triggered([*skills, *touched], f"{text} zz7x50 .a3x1")) == ["s7", "t3"]
    assert time.process_time() - before < 3


def test_patterns_and_paths_are_compared_up_to_a_bound() -> None:
    deep = "/".join(["**", "a*"] * 30)
    skills = [Skill(f"s{n}", "Do.", files=tuple(f"{deep}/b{n}x{m}" for m in range(100))) for n in range(30)]
    paths = [f"{n}/{'/'.join(['aa'] * 60)}" for n in range(500)]
    before = time.process_time()
    assert triggered(skills, "", paths) == ()
    assert time.process_time() - before < 20


# Skills in code.


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": 'a"b'},
        {"name": "a b"},
        {"name": "-a"},
        {"name": "a" * 65},
        {"content": " \n"},
        {"content": "\udc80"},
        {"content": "x" * (LARGEST + 1)},
        {"description": "x" * 2000},
        {"words": ("",)},
        {"words": (5,)},
        {"words": ["x"] * 101},
        {"files": ("*.{a,b}",)},
        {"files": ("a\\b",)},
        {"files": ("../x",)},
        {"files": ("a**/b",)},
    ],
)
def test_a_skill_that_cannot_be_used_is_refused_when_it_is_made(given: dict[str, object]) -> None:
    with pytest.raises(BadAgent, match="its skill"):
        Skill(**{"name": "one", "content": "Do.", **given})  # type: ignore[arg-type]


def test_one_word_is_one_word_and_not_its_letters() -> None:
    assert Skill("one", "Do.", words="deploy", files=["*.sql"]).words == ("deploy",)  # type: ignore[arg-type]
    assert Skill("one", "Do.", files=["*.sql"]) == Skill("one", "Do.", files=("*.sql",))  # type: ignore[arg-type]


def test_an_activated_skill_can_be_stored_whatever_its_file_is_called(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"odd-\xff")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    (folder / "one.md").write_text("Do.")
    (folder / os.fsdecode(b"two-\xff.md")).write_text("Do.")
    found = skills_in(folder)
    (skill,) = found.skills
    body = skill.activated()
    check_whole(NewEvent(body))
    assert decode_body(encode_body(body)) == body == SkillActivated("one", "Do.", skill.source)
    assert str(tmp_path) in str(skill.source)
    assert [str(problem).isprintable() for problem in found.problems] == [True]


# Files.


def test_a_skill_is_read_with_its_front_matter() -> None:
    text = """---
# how we work
name: db
description: "How we change it: carefully"
words: [migration, "schema, change", 'x' ]
files:
  - migrations/**
  - "*.sql"
---

Write each change twice.

---
And more.
"""
    skill, unknown = skill_of(text, "file-name")
    assert not unknown
    assert skill == Skill(
        "db",
        "Write each change twice.\n\n---\nAnd more.",
        "How we change it: carefully",
        ("migration", "schema, change", "x"),
        ("migrations/**", "*.sql"),
    )


def test_a_text_without_front_matter_is_called_after_its_file() -> None:
    assert skill_of("Do it.\n", "deploy")[0] == Skill("deploy", "Do it.")
    assert skill_of("---\n---\nDo it.", "deploy")[0] == Skill("deploy", "Do it.")
    assert skill_of("---\nname:\ndescription:\nwords: []\n---\nDo it.", "deploy")[0] == Skill("deploy", "Do it.")
    assert skill_of("---\nwords: deploy\n---\nDo it.", "deploy")[0].words == ("deploy",)


def test_what_others_put_there_has_no_effect_and_is_told() -> None:
    text = "---\nname: pdf\nlicense: MIT\nmetadata:\n  author: {a: 1}\n  - odd\nallowed-tools:\n- Bash\n---\nDo it."
    skill, unknown = skill_of(text, "x")
    assert skill == Skill("pdf", "Do it.")
    assert [why.partition(" ")[0] for why in unknown] == ["`license`", "`metadata`", "`allowed-tools`"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("---\nname: x\nDo it.", "does not end"),
        ("---", "does not end"),
        ("---\nname: x\n---\n \n", "says nothing"),
        ("---\nname: a b\n---\nDo.", "has a name"),
        ("---\nname: [x]\n---\nDo.", "name is a list"),
        ("---\nname: x\nname: y\n---\nDo.", "line 3 of its front matter sets name again"),
        ("---\njust text\n---\nDo.", "line 2 of its front matter is neither"),
        ("---\n- x\n---\nDo.", "line 2 of its front matter is neither"),
        ("---\ndescription: a: b\n---\nDo.", "put the text in quotes"),
        ("---\ndescription: a # b\n---\nDo.", "put the text in quotes"),
        ("---\ndescription: >\n  folded\n---\nDo.", "begins with >"),
        ("---\ndescription: two\n  lines\n---\nDo.", "line 3 of its front matter is neither"),
        ("---\nfiles:\n- *.sql\n---\nDo.", r"begins with \*"),
        ("---\nfiles: [*.sql]\n---\nDo.", r"begins with \*"),
        ('---\nwords: ["a]\n---\nDo.', "quote that does not end"),
        ("---\nwords: [a, , b]\n---\nDo.", "empty item"),
        ("---\nwords: [a\n---\nDo.", "does not end on it"),
        ("---\nwords: [a, [b]]\n---\nDo.", r"begins with \["),
        ("---\nwords:\n  -\n---\nDo.", "empty item"),
        ('---\nname: "x" y\n---\nDo.', "with something after it"),
        ('---\nname: "\\u0041"\n---\nDo.', "quotes or"),
        ("---\nfiles: a\\b\n---\nDo.", "folders are told apart"),
        ("---\n" + "#\n" * 600 + "---\nDo.", "does not end"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line_and_not_guessed(text: str, why: str) -> None:
    with pytest.raises(BadHeader, match=why):
        skill_of(text, "one")


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: &a [*a, *a, *a]\nwords: *a\n---\nDo.",
        "---\nwords: " + "[" * 100_000 + "]" * 100_000 + "\n---\nDo.",
        "---\nwords: [" + "a," * 100_000 + "]\n---\nDo.",
        "---\nname: !!python/object/apply:os.system [id]\n---\nDo.",
        "---\n<<: {name: x}\n---\nDo.",
        "---\nname: ../../etc/passwd\n---\nDo.",
        "---\nname: x\x1b[2J\n---\nDo.",
        "---\nfiles: ['" + "**/" * 80 + "x']\nwords: ['\ud800']\n---\nDo.",
    ],
    ids=["anchors", "nested", "many", "tagged", "merged", "path", "escape", "surrogate"],
)
def test_hostile_front_matter_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    with pytest.raises(BadHeader) as error:
        skill_of(text, "one")
    assert time.process_time() - started < 1
    assert len(str(error.value)) < 1000


def test_what_has_no_effect_is_told_in_few_words() -> None:
    _, (why,) = skill_of("---\n" + "x" * 200_000 + ": y\n---\nDo.", "one")
    assert len(why) < 1000


def test_a_line_of_dashes_further_down_is_no_front_matter() -> None:
    assert front_matter("Hello\n---\nname: x\n---\n", ("name",)) == ({}, "Hello\n---\nname: x\n---\n")


def test_a_folder_has_files_and_folders_with_skills(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_bytes(b"\xef\xbb\xbf---\r\nwords: [b]\r\n---\r\nDo b.\r\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "SKILL.md").write_text("Do a.")
    (tmp_path / "a" / "more.md").write_text("Not a skill.")
    (tmp_path / "empty").mkdir()
    for name in (".hidden.md", "README.md", "notes.txt"):
        (tmp_path / name).write_text("Not a skill.")
    found = skills_in(tmp_path)
    assert found.problems == ()
    assert [(skill.name, skill.content, skill.words) for skill in found.skills] == [
        ("a", "Do a.", ()),
        ("b", "Do b.", ("b",)),
    ]
    assert found.skills[0].source == (tmp_path / "a" / "SKILL.md").as_posix()


def test_a_folder_that_is_not_there_or_is_none_has_no_skills(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert skills_in(tmp_path / "none") == skills_in(tmp_path / "file") == Found()


def test_a_file_of_100_mb_costs_nothing_and_is_named(tmp_path: Path) -> None:
    with (tmp_path / "huge.md").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    (tmp_path / "fine.md").write_text("Do.")
    before = time.process_time()
    found = skills_in(tmp_path)
    assert time.process_time() - before < 0.2
    assert names(found.skills) == ["fine"]
    (problem,) = found.problems
    assert problem == BadSkill((tmp_path / "huge.md").as_posix(), "it has 104,857,600 bytes, and may have 262,144")


def test_what_cannot_be_used_is_told_and_the_rest_is_used(tmp_path: Path) -> None:
    (tmp_path / "fine.md").write_text("Do.")
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")
    (tmp_path / "binary.md").write_bytes(b"a\0b")
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "gone.md").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "bad name.md").write_text("Do.")
    found = skills_in(tmp_path)
    assert names(found.skills) == ["fine"]
    told = {Path(problem.source).stem: problem.why for problem in found.problems}
    assert told.keys() == {"latin", "binary", "folder", "gone", "loop", "pipe", "bad name"}
    assert told["pipe"] == told["folder"] == "it is not a file"
    assert told["latin"] == "it is not UTF-8"


def test_a_project_s_link_does_not_lead_out_of_it_and_a_user_s_may(tmp_path: Path) -> None:
    secret, project = tmp_path / "secret", tmp_path / "project"
    skills = project / ".forkpoint" / "skills"
    skills.mkdir(parents=True)
    secret.write_text("the key")
    (project / "inside.md").write_text("Do.")
    (skills / "out.md").symlink_to(secret)
    (skills / "in.md").symlink_to(project / "inside.md")
    found = skills_in(skills, within=project)
    assert names(found.skills) == ["in"]
    assert [problem.why for problem in found.problems] == [f"it is a link that leads out of {project}"]
    assert names(skills_in(skills).skills) == ["in", "out"]


def test_a_folder_with_too_much_in_it_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        (tmp_path / f"s{n}.md").write_text("Do.")
    monkeypatch.setattr("forkpoint.agent.skills.files._MOST_SKILLS", 4)
    found = skills_in(tmp_path)
    assert (names(found.skills), len(found.problems)) == (["s0", "s1", "s2", "s3"], 1)
    monkeypatch.setattr("forkpoint.agent.skills.files._MOST_ENTRIES", 5)
    found = skills_in(tmp_path)
    assert (found.skills, len(found.problems)) == ((), 1)


def test_of_two_with_one_name_the_first_is_used_and_the_other_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nname: one\n---\nFrom the file.")
    (tmp_path / "b.md").write_text("---\nname: one\n---\nFrom the other.")
    found = together(Found((Skill("one", "From code."),)), skills_in(tmp_path))
    assert [skill.content for skill in found.skills] == ["From code."]
    assert [Path(problem.source).name for problem in found.problems] == ["b.md", "a.md"]
    assert "the agent has one of that name" in found.problems[1].why


# What a project tells.


def test_instructions_are_those_of_the_project_then_of_the_folders_down_to_the_workspace(tmp_path: Path) -> None:
    project = tmp_path / "project"
    workspace = project / "a" / "b"
    workspace.mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("Outside.")
    (project / "AGENTS.md").write_text("All of it.\r\n")
    (workspace / "AGENTS.md").write_text("Here.")
    (project / "other").mkdir()
    (project / "other" / "AGENTS.md").write_text("Elsewhere.")
    (project / "a" / "AGENTS.md").write_text(" \n")
    told = instructions_in(project, workspace)
    assert told.text == "Instructions in AGENTS.md:\n\nAll of it.\n\nInstructions in a/b/AGENTS.md:\n\nHere."
    assert told.sources == ((project / "AGENTS.md").as_posix(), (workspace / "AGENTS.md").as_posix())
    assert instructions_in(project, project / "other" / "new").text.endswith("Elsewhere.")
    assert instructions_in(workspace, project).text == "", "the workspace is not in that project"


def test_instructions_are_the_same_wherever_the_project_is_checked_out(tmp_path: Path) -> None:
    texts = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "AGENTS.md").write_text("Be brief.")
        texts.add(instructions_in(tmp_path / name, tmp_path / name).text)
    assert len(texts) == 1


def test_instructions_have_a_bound_and_lead_nowhere_else(tmp_path: Path) -> None:
    workspace = tmp_path / "project" / "a"
    workspace.mkdir(parents=True)
    (tmp_path / "secret").write_text("the key")
    (tmp_path / "project" / "AGENTS.md").write_text("x" * (LARGEST_INSTRUCTIONS - 5))
    (workspace / "AGENTS.md").write_text("too much")
    told = instructions_in(tmp_path / "project", workspace)
    assert len(told.text) < LARGEST_INSTRUCTIONS + 100
    assert ["no room left" in problem.why for problem in told.problems] == [True]
    with (workspace / "AGENTS.md").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    assert "104,857,600 bytes" in instructions_in(tmp_path / "project", workspace).problems[0].why
    (workspace / "AGENTS.md").unlink()
    (workspace / "AGENTS.md").symlink_to(tmp_path / "secret")
    told = instructions_in(tmp_path / "project", workspace)
    assert "the key" not in told.text
    assert "leads out of" in told.problems[0].why
