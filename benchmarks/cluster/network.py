"""A network of its own: hosts are network namespaces, each with links to switches that can be cut, slowed and healed.

A switch is a pair of bridges. A host whose link is moved to the other bridge is cut off from all hosts that stay, and
nobody is told: packets get lost, as behind a broken switch. Hosts that are moved together still reach each other.
"""

import ctypes
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_NEWNET = 0x40000000
_PREFIX = f"fp{os.getpid()}"
_SWITCH = f"{_PREFIX}-switch"


class NotAllowed(Exception):
    """This machine does not let us make network namespaces."""


class Network:
    """Hosts on switches."""

    def __init__(self, *switches: str) -> None:
        self._switches = switches
        self._hosts: dict[str, dict[str, str]] = {}  # by host: its address on each switch
        self._cut: dict[str, set[str]] = {switch: set() for switch in switches}
        self._lock = threading.Lock()
        if shutil.which("ip") is None:
            raise NotAllowed("there is no `ip`. Install with: apt-get install -y iproute2")
        if os.geteuid() != 0:
            raise NotAllowed("network namespaces need root here")
        try:
            _ip("netns", "add", _SWITCH)
            for switch in switches:
                for bridge in (f"{switch}0", f"{switch}1"):
                    _ip("-n", _SWITCH, "link", "add", bridge, "type", "bridge")
                    _ip("-n", _SWITCH, "link", "set", bridge, "up")
        except subprocess.CalledProcessError as error:
            self.close()
            raise NotAllowed(f"this machine does not allow network namespaces or bridges: {error.stderr}") from None
        self.has_netem = False

    def add(self, host: str, *switches: str) -> None:
        """Adds a host, with an address on each of these switches."""
        name = namespace(host)
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        self._hosts[host] = {}
        for switch in switches:
            port = _port(host, switch)
            _ip("-n", _SWITCH, "link", "add", port, "type", "veth", "peer", "name", switch, "netns", name)
            _ip("-n", _SWITCH, "link", "set", port, "master", f"{switch}0", "up")
            address = f"10.{77 + self._switches.index(switch)}.0.{10 + len(self._hosts)}"
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", switch)
            _ip("-n", name, "link", "set", switch, "up")
            self._hosts[host][switch] = address
        self.has_netem = self.has_netem or self._try_netem(host, switches[0])

    def address(self, host: str, switch: str) -> str:
        return self._hosts[host][switch]

    def split(self, switch: str, hosts: Iterable[str]) -> None:
        """Cuts these hosts off from the others on a switch, together."""
        with self._lock:
            for host in hosts:
                if switch in self._hosts[host]:
                    _ip("-n", _SWITCH, "link", "set", _port(host, switch), "master", f"{switch}1")
                    self._cut[switch].add(host)

    def heal(self, switch: str) -> None:
        """Brings everybody on a switch together again."""
        with self._lock:
            for host in self._cut[switch]:
                _ip("-n", _SWITCH, "link", "set", _port(host, switch), "master", f"{switch}0")
            self._cut[switch].clear()

    def slow(self, host: str, switch: str, seconds: float, chance: random.Random) -> str:
        """Makes the link of a host slow and lossy for a while."""
        if self.has_netem:
            where = ["dev", _port(host, switch), "root", "netem"]
            _tc("add", *where, "delay", "120ms", "80ms", "loss", "5%")
            time.sleep(seconds)
            _tc("del", *where)
            return f"link of {host} delayed by 40 to 200 ms with 5 % loss for {seconds:.0f} s"
        until = time.monotonic() + seconds
        while time.monotonic() < until:  # without netem: lost packets, which TCP sends again later
            self.split(switch, [host])
            time.sleep(chance.uniform(0.05, 0.4))
            self.heal(switch)
            time.sleep(chance.uniform(0.05, 0.4))
        return f"link of {host} lost packets in bursts for {seconds:.0f} s"

    def close(self) -> None:
        for host in (*self._hosts, None):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", _SWITCH if host is None else namespace(host))

    def _try_netem(self, host: str, switch: str) -> bool:
        where = ["dev", _port(host, switch), "root", "netem"]
        try:
            _tc("add", *where, "delay", "1ms")
            _tc("del", *where)
        except (subprocess.CalledProcessError, FileNotFoundError):  # not in every kernel
            return False
        return True


def namespace(host: str) -> str:
    return f"{_PREFIX}-{host}"


def prefix(host: str) -> list[str]:
    """What runs a command as a process of a host."""
    return ["ip", "netns", "exec", namespace(host)]


def enter(host: str) -> None:
    """Lets this thread, and those that it starts, be on a host: the sockets that it makes are there."""
    file = os.open(f"/run/netns/{namespace(host)}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(file, _NEWNET) != 0:
            raise NotAllowed(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(file)


def on(host: str, do: Callable[[], T]) -> T:
    """Does something on a host, in a thread of its own."""
    found: list[T] = []

    def work() -> None:
        enter(host)
        found.append(do())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def _port(host: str, switch: str) -> str:
    return f"{host}-{switch}"[:15]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _tc(act: str, *arguments: str) -> None:
    command = ["ip", "netns", "exec", _SWITCH, "tc", "qdisc", act, *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)
