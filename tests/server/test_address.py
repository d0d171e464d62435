"""Tests for the addresses and names of loopback."""

import socket
from typing import Any

import pytest

from forkpoint.errors import BadKeys
from forkpoint.server.http.address import check_safe, is_loopback_address, is_loopback_name, listens_on_loopback


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_an_address_of_loopback_is_loopback_in_every_sense(address: str) -> None:
    assert is_loopback_address(address)
    assert is_loopback_name(address)
    assert listens_on_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.1", "::", "2001:db8::1"])
def test_any_other_address_is_not(address: str) -> None:
    assert not is_loopback_address(address)
    assert not is_loopback_name(address)
    assert not listens_on_loopback(address)


def test_localhost_is_a_name_and_no_address() -> None:
    assert is_loopback_name("localhost")
    assert not is_loopback_address("localhost")


@pytest.mark.parametrize("name", ["", "else.example", "127.0.0.1.else.example", "localhost.else.example"])
def test_a_name_whose_owner_may_point_it_at_loopback_is_not_loopback(name: str) -> None:
    assert not is_loopback_name(name)
    assert not is_loopback_address(name)


@pytest.mark.parametrize(
    ("addresses", "is_safe"),
    [(["127.0.0.1", "::1"], True), (["127.0.0.1", "10.0.0.1"], False), (["::1%lo"], True), (["fe80::1%eth0"], False)],
)
def test_a_server_listens_on_all_that_a_name_stands_for(
    addresses: list[str], is_safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(host: str, port: None) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr("socket.getaddrinfo", found)
    assert listens_on_loopback("some.name") is is_safe


def test_a_name_that_stands_for_nothing_is_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(host: str, port: None) -> list[Any]:
        raise socket.gaierror("not known")

    monkeypatch.setattr("socket.getaddrinfo", nothing)
    check_safe("some.name", has_keys=True)
    with pytest.raises(BadKeys, check=BadKeys.open_to_the_world.made):
        check_safe("some.name", has_keys=False)
