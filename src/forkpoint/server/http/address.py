"""Where a server listens, and whether that is safe."""

import ipaddress
import socket

from forkpoint.errors import AddressTaken, OpenToTheWorld

BACKLOG = 4096
"""Connections that may wait to be accepted."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises `AddressTaken`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressTaken(host, port, error.strerror or str(error)) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise AddressTaken(host, port, error.strerror or str(error)) from error
    listening.setblocking(False)
    return listening


def check_safe(host: str, has_keys: bool) -> None:
    """Refuses to listen beyond loopback without a key. Raises `OpenToTheWorld`."""
    if not has_keys and not is_loopback(host):
        raise OpenToTheWorld(host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host. A name counts by all that it stands for."""
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None)}
        return all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in addresses)
    except (OSError, ValueError):
        return False
