"""The files of docs/guides/many-nodes/ are what they say, as far as can be told without starting containers."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from forkpoint.server.agents.file import read_file
from forkpoint.store.postgres.address import postgres_address

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "guides" / "many-nodes"
GUIDE = ROOT / "docs" / "guides" / "many-nodes.md"
SECRETS = {"POSTGRES_PASSWORD": "hidden", "FORKPOINT_SERVER_KEY": "k" * 40, "OPENAI_API_KEY": "sk-x"}


def found(name: str) -> str:
    """Where a program is; the test is skipped if there is none."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@cache
def flags_of_serve() -> frozenset[str]:
    return frozenset(re.findall(r"--[a-z][a-z-]*", said(sys.executable, "-m", "forkpoint", "serve", "--help")))


def compose() -> Any:
    pytest.importorskip("yaml")
    return importlib.import_module("yaml").safe_load((FILES / "compose.yaml").read_text())


@pytest.mark.parametrize("file", [*sorted(FILES.iterdir()), GUIDE], ids=lambda path: path.name)
def test_every_flag_of_a_node_is_one_that_serve_knows(file: Path) -> None:
    known = flags_of_serve()
    used = set()
    for line in file.read_text().replace("\\\n", " ").splitlines():
        if "forkpoint serve" in line or '"forkpoint", "serve"' in line:
            used |= set(re.findall(r"--[a-z][a-z-]*", line))
    assert used <= known, f"serve has no {used - known}"


def test_the_servers_file_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    read_file(str(FILES / "server.toml")).check()


def test_the_services_are_those_that_the_guide_names_and_wait_for_each_other() -> None:
    services = compose()["services"]
    assert set(services) == {"database", "node", "balancer"}
    assert services["node"]["depends_on"]["database"]["condition"] == "service_healthy"
    assert "test" in services["database"]["healthcheck"]
    assert not services["node"].get("ports"), "nodes are reached by the balancer alone"
    assert not services["node"].get("volumes"), "a node keeps nothing"


def test_the_nodes_address_is_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    written = compose()["services"]["node"]["environment"]["FORKPOINT_STORE"]
    address = postgres_address(re.sub(r"\$\{(\w+)[^}]*\}", lambda name: SECRETS[name[1]], written))
    assert address.pool == 8
    assert "hidden" in address.dsn
    assert "hidden" not in address.shown


def test_whatever_stops_a_node_waits_longer_than_it_drains() -> None:
    docker, unit = (FILES / "Dockerfile").read_text(), (FILES / "forkpoint@.service").read_text()
    drains = {int(seconds) for seconds in re.findall(r'--drain[", ]+(\d+)', docker + unit)}
    waits = [int(compose()["services"]["node"]["stop_grace_period"].removesuffix("s"))]
    waits += [int(seconds) for seconds in re.findall(r"TimeoutStopSec=(\d+)", unit)]
    assert drains
    assert min(waits) > max(drains)


def test_the_image_has_what_a_node_on_postgresql_needs() -> None:
    text = (FILES / "Dockerfile").read_text()
    (extras,) = re.findall(r"'forkpoint\[([\w,]+)\]'", text)
    project = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in extras.split(","))
    assert {"server", "postgres"} == set(extras.split(","))
    assert "USER forkpoint" in text
    copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    assert all((FILES / name).exists() for name in copied)


def test_haproxy_takes_its_file_and_asks_nodes_whether_they_are_ready() -> None:
    text = (FILES / "haproxy.cfg").read_text()
    assert "option httpchk GET /ready" in text
    assert "cookie" not in text, "there are no sticky sessions"
    said(found("haproxy"), "-c", "-f", FILES / "haproxy.cfg")


def test_nginx_takes_its_file(tmp_path: Path) -> None:
    text = (FILES / "nginx.conf").read_text()
    assert "ip_hash" not in text, "there are no sticky sessions"
    whole = tmp_path / "nginx.conf"
    whole.write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}; proxy_temp_path {tmp_path}/proxy; "
        f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f"include {FILES / 'nginx.conf'}; }}\n"
    )
    said(found("nginx"), "-t", "-c", whole)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verify = found("systemd-analyze")
    unit = tmp_path / "forkpoint@.service"
    unit.write_text((FILES / "forkpoint@.service").read_text().replace("/opt/forkpoint/bin/forkpoint", sys.executable))
    told = said(verify, "verify", "--man=no", unit)
    ours = [line for line in told.splitlines() if "forkpoint" in line]
    assert not ours, told
