"""Every test that is a coroutine runs on asyncio; those that care about the loop ask for both."""

import os
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import time_limit
from tests.postgres import fixtures as databases

from forkpoint.cli.commands.local import bring_library
from forkpoint.conversation import place, portal
from forkpoint.errors import LibraryMissing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(databases, "databases")  # it has an option


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(time_limit, "time limit")
    _restore_ctrl_c()
    _keep_files_in_memory()
    # Where each core runs a worker, threads of llama.cpp that wait by spinning make it many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Root gets the system library that the model in the box needs, after a question at a terminal.

    For others, and after a no, the tests of that model fail and say how to get it.
    """
    if session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), suppress(LibraryMissing):
        bring_library(["local/smollm2"])


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Lets a worker report an error that quotes bytes, as the name of a file may be: xdist sends Unicode only, and the
    worker would die of anything else."""
    return _as_unicode((yield))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_place_is_left_open() -> Iterator[None]:
    """Fails a test that leaves a conversation open in the synchronous API, whose event loop is one for the process.

    A store at ``memory:`` would stay, and a later test would find in it what this one made, or not, as the files of
    tests are shared out among the workers.
    """
    before = _open_places()
    yield
    assert not _open_places() - before, "close what the test opened, such as a fork or what was set aside"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> "Iterator[InMemorySpanExporter]":
    """The spans that were written in the test."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def _as_unicode(part: Any) -> Any:
    """The same part of a report, with half a surrogate pair written as an escape."""
    match part:
        case str():
            return part.encode(errors="backslashreplace").decode()
        case dict():
            return {_as_unicode(key): _as_unicode(value) for key, value in part.items()}
        case list() | tuple():
            return type(part)(map(_as_unicode, part))
        case _:
            return part


def _open_places() -> set[str]:
    """The places that the synchronous API has open now. It starts no thread to find out."""
    loop = portal._loop
    if loop._handle is None or loop._thread is None or not loop._thread.is_alive():
        return set()
    return portal.wait_for("places", _places_of_this_loop)


async def _places_of_this_loop() -> set[str]:
    return {*place._all_shared()}


def _restore_ctrl_c() -> None:
    """Makes Ctrl-C work in tests, in this process and in every worker.

    A script's `./run pytest &` starts the suite with SIGINT ignored. Python then installs no handler, the programs that
    tests start ignore the signal too, and a test that sends it would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_files_in_memory() -> None:
    """Puts the folders of tests into memory, unless somebody has chosen another place for them.

    The suite makes thousands of stores, and a disk takes longer to sync them than all else together. What a store
    promises can be seen in memory as well: no test cuts the power, and a disk that fails is simulated.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not memory.is_dir():
        return
    can_execute = not os.statvfs(memory).f_flag & os.ST_NOEXEC  # tests write programs, and run them
    if can_execute and shutil.disk_usage(memory).free > 2 * 1024**3:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
