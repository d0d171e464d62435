"""A server whose database is not there yet waits for it; one whose database refuses it says so and ends."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.cli.program import Program, one_line
from tests.postgres.server import Server

from forkpoint.errors import StoreUnusable
from forkpoint.store import open_store


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    processes: list[subprocess.Popen[str]] = []

    def serve(store: str) -> "subprocess.Popen[str]":
        program = Program(tmp_path)
        processes.append(program.start("serve", "--model", "scripted/echo", "--port", "0", "--store", store))
        return processes[-1]

    yield serve
    for process in processes:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The next line on stderr that matches."""
    assert process.stderr is not None
    for said in process.stderr:
        if re.search(pattern, said):
            return said
    raise AssertionError(f"it ended with status {process.wait()}")


def test_a_database_that_starts_later_is_waited_for(
    make_server: Callable[..., Server], serving: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    server = make_server()
    server.stop()
    process = serving(server.url())
    assert "did not answer" in line(process, r"Trying again in 0\.5 s")
    line(process, r"Trying again in 1 s")
    server.start()
    url = line(process, "Forkpoint serves at").split()[3].rstrip(".")
    assert httpx2.get(f"{url}/ready").status_code == 200


SERVES = """
import sys
from forkpoint.llm import LLM
from forkpoint.server import lifecycle
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.settings import ServerSettings

agents = Catalog.of_model(LLM("scripted/echo"))
place = {"host": "127.0.0.1", "port": 0, "told": lambda url: print(url, file=sys.stderr)}
lifecycle.run(sys.argv[1], agents, None, ServerSettings(), **place)
"""


def test_a_database_that_goes_away_while_a_server_starts_is_waited_for(make_server: Callable[..., Server]) -> None:
    """The server has read its keys and its file from the store by then."""
    server = make_server()
    server.stop()
    command = [sys.executable, "-c", SERVES, server.url()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert "did not answer" in line(process, "Trying again in")
            server.start()
            assert httpx2.get(f"{line(process, '^http').strip()}/ready").status_code == 200
        finally:
            process.kill()


def test_a_signal_ends_the_wait(serving: Callable[[str], "subprocess.Popen[str]"]) -> None:
    process = serving("postgresql://me:s3cret@127.0.0.1:1/db")
    assert "s3cret" not in line(process, "Trying again")
    process.terminate()
    assert process.wait() != 0


def test_a_database_that_refuses_is_not_waited_for(postgres: str, tmp_path: Path) -> None:
    absent = postgres.rpartition("/")[0] + "/nowhere"
    done = Program(tmp_path).run("serve", "--model", "scripted/echo", "--port", "0", "--store", absent)
    assert done.returncode == 1
    assert 'database "nowhere" does not exist' in one_line(done.stderr)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_wrong_password_is_told_from_a_server_that_is_away(make_server: Callable[..., Server]) -> None:
    server = make_server()
    rules = server.folder / "pg_hba.conf"
    rules.write_text("local all strict scram-sha-256\nlocal all all trust\n")
    server.execute("CREATE ROLE strict LOGIN PASSWORD 'right'")
    server.configure(work_mem="5MB")  # it reads its rules with its settings
    for user in ("strict:wrong", "strict", "nobody"):
        with pytest.raises(StoreUnusable) as error:
            await open_store(server.url().replace("postgres@", f"{user}@"))
        assert error.value.code == "login_refused"
