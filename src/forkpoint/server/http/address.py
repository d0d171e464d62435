"""Where a server listens, whether that is safe, and which addresses and names are loopback."""

import ipaddress
import socket

from forkpoint.errors import AddressTaken, BadKeys

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
    """Refuses to listen beyond loopback without a key. Raises `BadKeys`."""
    if not has_keys and not listens_on_loopback(host):
        raise BadKeys.open_to_the_world(host)


def is_loopback_address(address: str) -> bool:
    """Whether a text is an IP address of this machine alone, as the address of a client is."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_loopback_name(name: str) -> bool:
    """Whether a client that calls a server by this name means its own machine, whatever a name server may say.

    No name but ``localhost`` counts: the owner of any other can point it at loopback.
    """
    return name == "localhost" or is_loopback_address(name)


def listens_on_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on a host. A name counts by all that it stands for."""
    try:
        return all(is_loopback_address(str(found[4][0])) for found in socket.getaddrinfo(host, None))
    except OSError:
        return False
