"""The bench: a temporary folder with the histories that several measurements share."""

import os
import shutil
from pathlib import Path

from benchmarks import ours
from benchmarks.ours import History
from benchmarks.plan import Plan
from benchmarks.progress import Progress


class Bench:
    """Builds each history once and hands out copies, so that no measurement sees what another one wrote."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
        self.plan = plan
        self.progress = progress
        self._folder = folder
        self._histories: dict[int, History] = {}
        self._count = 0

    async def history(self, size: int) -> History:
        """The history of this size: for reading, and for copying from."""
        if size not in self._histories:
            self._histories[size] = await ours.build(self.new_file(), size, self.progress)
            os.sync()  # what the building left to be written must not be written while a clock runs
        return self._histories[size]

    def copy(self, history: History) -> Path:
        """A file to write to that starts like this history."""
        path = self.new_file()
        shutil.copyfile(history.path, path)
        with path.open("rb+") as file:
            os.fsync(file)
        return path

    def new_file(self) -> Path:
        """Where a new database may be made: alone in a folder of its own."""
        self._count += 1
        folder = self._folder / f"{self._count:04d}"
        folder.mkdir()
        return folder / "store.db"

    def drop(self, *paths: Path) -> None:
        """Removes databases that are closed, with all that stands beside them."""
        for path in paths:
            shutil.rmtree(path.parent)
