"""A program that makes a backup or restores one, and is killed at a moment of its choice.

    python copying.py FOLDER backup FIRST LAST
    python copying.py FOLDER restore FIRST LAST

For each moment from FIRST to LAST a child of its own works on ``FOLDER/store.db`` and makes ``FOLDER/MOMENT.db``; with
``restore`` that file is there before, a copy of ``FOLDER/old.db`` with its log, and is replaced. A moment is whatever
Python tells an audit hook (a file opened, linked, renamed or removed, a database connected), and each step of copying.
The program prints how each child ended.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import anyio

from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.copies import page_copy
from forkpoint.store.sqlite.copies.restore import restore

page_copy.STEP = 8  # pages: so that there are several steps


class Death:
    """Kills the process at the given moment."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left == -1:  # once: killing is a moment too
            os.kill(os.getpid(), signal.SIGKILL)


async def back_up(folder: Path, moment: int) -> None:
    async with await SqliteStore.open(folder / "store.db") as store:
        await store.conversations()  # the store is open: what is killed is the backup
        die = Death(moment)
        sys.addaudithook(die)
        await store.backup(folder / f"{moment}.db", progress=die)
        die._left = 1_000_000


def bring_back(folder: Path, moment: int) -> None:
    for end in ("", "-wal"):
        shutil.copy(folder / f"old.db{end}", folder / f"{moment}.db{end}")
    die = Death(moment)
    sys.addaudithook(die)
    restore(folder / "store.db", folder / f"{moment}.db", force=True, forget_erasures=True, progress=die)
    die._left = 1_000_000


def main(folder: Path, what: str, first: int, last: int) -> None:
    if what == "backup":
        anyio.run(back_up, folder, 1_000_000)  # so that all is imported
    for moment in range(first, last + 1):
        if os.fork() == 0:
            try:
                anyio.run(back_up, folder, moment) if what == "backup" else bring_back(folder, moment)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(3)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
