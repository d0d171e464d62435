"""The documentation is executed: it cannot say what is not so."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.nursery import nursery

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_SHOWN = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n((?:(?!```).)*)```", re.DOTALL)  # in one block each
_TASTE = re.compile(r"## A taste\n\n```python\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_TABLE = re.compile(r"(?:^ *\|.*\n)+", re.MULTILINE)
_HEADED = re.compile(r" *\|.*\n *\|(?: *:?-+:? *\|)+\n")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def run(code: str | Path, folder: Path) -> str:
    program = [str(code)] if isinstance(code, Path) else ["-c", code]
    command = [sys.executable, "-W", "error", *program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=180)
    assert done.returncode == 0, f"it does not run:\n{done.stderr}"
    return done.stdout


def run_at_once(code: str, folder: Path, said: Path) -> str:
    """The same without a start of Python. ``said`` is a folder for the output, and not the program's own."""
    out, err = said / "out", said / "err"
    status = nursery().run(["python", "-c", code], folder, None, [Path(os.devnull), out, err])
    assert status == 0, f"it does not run ({status}):\n{err.read_text()}"
    return out.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="it forks")
@pytest.mark.parametrize("page", [page for page in PAGES if _SHOWN.search(page.read_text())], ids=lambda p: p.name)
def test_code_in_the_docs_prints_what_the_docs_show(page: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    for code, shown in _SHOWN.findall(page.read_text()):
        assert run_at_once(code, folder, tmp_path) == shown


def test_the_program_in_the_readme_runs_again_where_it_ran_before(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    ((code, _),) = _SHOWN.findall((ROOT / "README.md").read_text())
    first, second = (run_at_once(code, folder, tmp_path) for _ in range(2))
    assert first.split(" | ")[0] == second.split(" | ")[0], "it says the same, in a conversation that has more events"


def test_the_taste_in_the_readme_runs(tmp_path: Path) -> None:
    (taste,) = _TASTE.findall((ROOT / "README.md").read_text())
    imports, body = taste.split("\n\n", 1)
    code = f"{imports}\nimport asyncio\nasync def main():\n{textwrap.indent(body, '    ')}\nasyncio.run(main())\n"
    run(code, tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_of_tables_stand_below_a_header(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    orphans = [table.splitlines()[0] for table in _TABLE.findall(text) if not _HEADED.match(table)]
    assert not orphans, "a paragraph or a blank line cuts the table above them in two, or it has no line |---|"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to what is not there"


@pytest.mark.parametrize("name", ["transactions.md", "failed-turns.md"])
def test_every_sentence_about_what_is_left_behind_names_a_test_that_exists(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    named = _TEST.findall(page)
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in _source(ROOT / file)
    ]
    assert not missing
    unproven = [
        point for point in re.findall(r"^- .*?(?=\n- |\n\n)", page, re.DOTALL | re.MULTILINE) if "::" not in point
    ]
    assert not unproven, "each point needs the test that shows it"


def _source(file: Path) -> str:
    """The tests that a file runs: its own, and those of the conformance suite if it subclasses it."""
    text = file.read_text()
    if "StoreConformance" in text:
        suite = ROOT / "src" / "forkpoint" / "testing" / "conformance"
        text += "".join(part.read_text() for part in suite.rglob("*.py"))
    return text


def test_the_index_lists_every_page_once() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    counts = {page: index.count(f"]({page})") for page in pages}
    assert {page: count for page, count in counts.items() if count != 1} == {}, "docs/index.md misses or repeats a page"
