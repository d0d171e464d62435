"""Whether an address accepts connections. Nothing is sent there but TLS's greeting. Tests: tests/cli/test_doctor.py."""

import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from forkpoint.cli import figures
from forkpoint.errors import ModelUnavailable
from forkpoint.llm.providers.clients import STAND_IN, load

PATIENCE = 5.0
"""Seconds that an address has to accept a connection."""


def is_address(text: str) -> bool:
    """Whether a text is an address that something can be sent to."""
    try:
        address = urlsplit(text)
        return address.scheme in {"http", "https"} and bool(address.hostname) and address.port != 0
    except ValueError:
        return False


def address_of(package: str) -> str:
    """Where an SDK sends its requests."""
    sdk = load(package)
    make = sdk.Anthropic if package == "anthropic" else sdk.OpenAI
    with make(api_key=STAND_IN) as client:
        return str(client.base_url)


def reached(url: str) -> str:
    """That an address accepts a connection, in words. Raises `ModelUnavailable`."""
    address = urlsplit(url)
    secure, host = address.scheme == "https", address.hostname or ""
    port = address.port or (443 if secure else 80)
    through = ""
    if (proxy := getproxies().get(address.scheme)) and not proxy_bypass(f"{host}:{port}"):
        way = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        through = f"{host}:{port} is asked through a proxy, and "
        secure, host = way.scheme == "https", way.hostname or ""
        port = way.port or (443 if secure else 80)
    outcome: list[str | Exception] = []
    began = time.monotonic()
    # In a thread that ends with the program, for a name that nobody resolves may take longer than anybody waits.
    trying = threading.Thread(target=_connect, args=(host, port, secure, outcome.append), daemon=True)
    trying.start()
    trying.join(PATIENCE)
    if not outcome:
        raise ModelUnavailable.model_connection(f"{host}:{port}", f"it did not answer within {PATIENCE:g} s")
    if isinstance(outcome[0], Exception):
        raise ModelUnavailable.model_connection(
            f"{host}:{port}", f"{type(outcome[0]).__name__}: {outcome[0]}"
        ) from outcome[0]
    return f"{through}{host}:{port} accepts connections, {outcome[0]}{figures.seconds(time.monotonic() - began)}"


def _connect(host: str, port: int, secure: bool, tell: Callable[[str | Exception], None]) -> None:
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as plain:
            if not secure:
                return tell("")
            import httpx2

            trusted = httpx2.create_ssl_context()  # as a call would have it
            with trusted.wrap_socket(plain, server_hostname=host) as wrapped:
                return tell(f"{wrapped.version()}, ")
    except Exception as error:  # told to whoever waits
        return tell(error)
