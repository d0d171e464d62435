"""Shows what console blocks of pages really print, or writes it into them.

./run python -m tests.console [--write] PAGE ...
"""

import argparse
import difflib
import sys
from pathlib import Path

from tests.console.page import read
from tests.console.session import rewritten, session


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.console", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into the page")
    parser.add_argument("page", nargs="+", type=Path)
    options = parser.parse_args()
    different = [page for page in options.page if _differs(page, write=options.write)]
    sys.exit(1 if different and not options.write else 0)


def _differs(page: Path, *, write: bool) -> bool:
    text = page.read_text()
    with session() as running:
        outcomes = [outcome for step in read(page) if (outcome := running.take(step))]
    real = rewritten(text, outcomes)
    print(*difflib.unified_diff(text.splitlines(), real.splitlines(), str(page), str(page), lineterm=""), sep="\n")
    if write:
        page.write_text(real)
    return real != text


if __name__ == "__main__":
    main()
