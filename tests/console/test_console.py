"""Console blocks of the documentation are executed: a page is a session, and shows what its commands print."""

import difflib
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.console.page import Before, Command, read
from tests.console.session import rewritten, session

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WITH_COMMANDS = [page for page in PAGES if any(isinstance(step, Command) for step in read(page))]

_OTHERS = re.compile(r"\b(curl|git|jq)\b")  # programs that a machine need not have
_BLOCK = re.compile(r"^ *```console\n.*?```$", re.DOTALL | re.MULTILINE)
_STRAY = re.compile(r"^ *\$ .+", re.MULTILINE)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell on a pseudo-terminal")


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_in_the_docs_print_what_the_docs_show(page: Path) -> None:
    name, text = str(page.relative_to(ROOT)), page.read_text()
    steps = read(page)
    commands = "\n".join(step.command for step in steps if isinstance(step, Before | Command))
    if missing := [program for program in set(_OTHERS.findall(commands)) if shutil.which(program) is None]:
        pytest.skip(f"there is no {' and no '.join(missing)} here")
    with session() as running:
        outcomes = [outcome for step in steps if (outcome := running.take(step))]
    real = rewritten(text, outcomes)
    difference = difflib.unified_diff(text.splitlines(), real.splitlines(), name, "what it prints", lineterm="")
    assert text == real, "\n".join([f"./run python -m tests.console --write {name} mends it:", *difference])


def test_commands_stand_in_console_blocks() -> None:
    strays = [f"{page.name}: {line}" for page in PAGES for line in _STRAY.findall(_BLOCK.sub("", page.read_text()))]
    assert not strays, "write ```console before it: such blocks are executed"
