"""Templates in settings: ``run --template`` and ``forkpoint templates``."""

from pathlib import Path

import pytest
from tests.cli.program import Program, one_line

from forkpoint.testing import Reply

REVIEW = """
[templates.review]
message = "Review {what} in {language}: {input} {{kept}} {\\"a\\": 1}"
model = "scripted/echo"
instructions = "Be brief."
defaults = { language = "English" }
"""


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    made = Program(tmp_path)
    made.settings.parent.mkdir(parents=True)
    return made


def test_a_template_is_filled_with_the_pipe_and_the_parameters(forkpoint: Program) -> None:
    forkpoint.settings.write_text(REVIEW)
    arguments = ("run", "-t", "review", "-p", "what={input}", "-q")
    assert forkpoint.run(*arguments, stdin="+ {what}").stdout == (
        'You said: Review {input} in English: + {what} {kept} {"a": 1}\n'
    )
    said = forkpoint.run(*arguments, "the file", "--param", "language=German", stdin="+ one").stdout
    assert said == 'You said: Review {input} in German: the file\n\n+ one {kept} {"a": 1}\n'


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("text",), "it needs parameters: give -p what=VALUE"),
        (("-p", "what=x"), "it needs an input: pipe a text, or give it as the message"),
        (("text", "-p", "what=x", "-p", "other=y"), "it has no parameter other; it has what, language"),
        (("text", "-p", "what"), "is not of the form KEY=VALUE"),
    ],
)
def test_what_does_not_fit_a_template_is_refused(forkpoint: Program, arguments: tuple[str, ...], why: str) -> None:
    forkpoint.settings.write_text(REVIEW)
    done = forkpoint.run("run", "--template", "review", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in one_line(done.stderr)
    assert forkpoint.run("run", "text", "-p", "what=x").returncode == 2, "parameters without a template"


def test_the_command_line_wins_over_a_template(forkpoint: Program) -> None:
    forkpoint.script(Reply("```\ncode\n```"))
    forkpoint.settings.write_text('[templates.code]\nmodel = "scripted/echo"\nextract = true\n')
    said = forkpoint.text("run", "-t", "code", "Go.", "--model", "scripted/script.json")
    assert said == "code\n"
    assert forkpoint.text("run", "-t", "code", "Go.", "--agent", "builds:agent") == "code\n"
    done = forkpoint.run("run", "-t", "code")
    assert (done.returncode, "there is nothing to say" in one_line(done.stderr)) == (2, True)


def test_a_template_that_is_not_there_is_answered_with_those_that_are(forkpoint: Program) -> None:
    forkpoint.settings.write_text(REVIEW)
    done = forkpoint.run("run", "hi", "--template", "reveiw")
    assert done.stderr == "error: There is no template 'reveiw' here. Name one of these: review.\n"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("message = 5", "templates.x.message in {file} cannot be used: it must be a text"),
        ("colour = 'red'", "templates.x.colour in {file} cannot be used: it is not known"),
        ("extract = 'yes'", "templates.x.extract in {file} cannot be used: it must be true or false"),
        ("message = 'a'\ndefaults = {b = 'c'}", "templates.x.defaults in {file} cannot be used: its message has no"),
        ("schema = 5", "templates.x.schema in {file} cannot be used: it must be a table"),
    ],
)
def test_an_error_names_file_table_and_field(forkpoint: Program, table: str, why: str) -> None:
    forkpoint.settings.write_text(f"[templates.x]\n{table}\n")
    done = forkpoint.run("run", "hi", "--template", "x")
    assert done.returncode == 1
    assert why.format(file=forkpoint.settings) in done.stderr
    assert why.format(file=forkpoint.settings) in forkpoint.run("doctor", COLUMNS="").stdout


def test_templates_are_listed_and_shown(forkpoint: Program) -> None:
    assert "No templates. A table [templates.NAME]" in forkpoint.run("templates").stderr
    forkpoint.settings.write_text(REVIEW)
    heading, row = forkpoint.text("templates", COLUMNS="300").splitlines()
    assert heading.split() == ["template", "parameters", "message", "from"]
    assert row.startswith("review    what, language  Review {what} in {language}")
    assert "instructions  Be brief." in forkpoint.text("templates", "review")
    assert forkpoint.json("templates", "review")["defaults"] == {"language": "English"}
    assert [one["name"] for one in forkpoint.json("templates")["items"]] == ["review"]


def test_a_projects_templates_count_only_where_it_is_trusted_as_it_is(forkpoint: Program) -> None:
    project = forkpoint.folder / ".forkpoint" / "config.toml"
    project.parent.mkdir()
    project.write_text('[templates.ours]\nmessage = "Ours: {input}"\nmodel = "scripted/echo"\n')
    (forkpoint.folder / ".git").mkdir()
    arguments = ("run", "-t", "ours", "hi", "-q")
    assert "There is no template 'ours' here" in forkpoint.run(*arguments).stderr
    forkpoint.text("trust", ".", "--yes")
    assert forkpoint.run(*arguments).stdout == "You said: Ours: hi\n"
    project.write_text('[templates.ours]\nmessage = "Theirs: {input}"\nmodel = "scripted/echo"\n')
    changed = forkpoint.run(*arguments)
    assert (changed.returncode, changed.stdout) == (1, "")
    project.write_text('[templates.ours]\nagent = "builds:agent"\n')
    forkpoint.run("trust", ".", "--yes")
    assert "a project's template names no code" in forkpoint.run(*arguments).stderr
