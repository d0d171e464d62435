"""The address of a PostgreSQL database: what libpq is told, and the options that are ours.
Tests: tests/postgres/test_address.py."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct

from forkpoint.errors import BadStoreUrl

_SCHEMES = ("postgresql://", "postgres://")
_SHOWN = ("host", "hostaddr", "port", "dbname", "service")  # options of libpq that are no secret, and say which server


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """What the address of a PostgreSQL database says."""

    dsn: str  # for libpq: the address without our options
    shown: str  # for errors: the address without password
    read_only: bool = False  # ?mode=ro
    is_pooled: bool = False  # ?pooler=transaction: a connection may be to another session at each transaction
    listen: str | None = None  # ?listen=URL: where notifications are to be had, past the pooler; "" with ?listen=off
    partitions: int | None = None  # ?partitions=N: of the events of a store that is made now
    has_row_security: bool = False  # ?rls=on
    pool: int = 8  # ?pool=N: connections of this process at most, but for eight that are apart (docs/scale.md)


def is_postgres(address: str) -> bool:
    """Whether an address is a PostgreSQL database's."""
    return address.startswith(_SCHEMES)


def postgres_address(address: str) -> PostgresAddress:
    """What an address says. Raises `BadStoreUrl`, which never shows a password."""
    shown = without_password(address)
    if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in address):
        raise BadStoreUrl(ascii(shown)[1:-1], "it has characters in it that no address has")
    place, _, query = address.partition("?")
    authority, _, database = place.partition("://")[2].partition("/")
    if "@" in database or authority.count("@") > 1 or re.match("[^=&]*@", query):
        why = "characters such as / @ ? % in a password are written %2F %40 %3F %25"
        raise BadStoreUrl(shown, why)
    fields: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OURS:
            others.append((name, value))
            continue
        field, read, allowed = _OURS[name]
        if field in fields:
            raise BadStoreUrl(shown, f"{name}= is there twice")
        try:
            fields[field] = read(value)
        except (KeyError, ValueError):
            raise BadStoreUrl(shown, f"{name}= must be {allowed}") from None
    rest = f"?{urlencode(others, safe='/:', quote_via=quote)}" if others else ""
    return PostgresAddress(dsn=place + rest, shown=shown, **fields)


def without_password(address: str) -> str:
    """An address as an error may show it: errors end up in logs."""
    place, _, query = address.partition("?")
    if "@" in query.partition("&")[0] and "@" not in place:  # a password with a question mark in it, not escaped
        return re.sub(r"(?<=//).*@", "***@", address)
    options = [(name, value) for name, value in parse_qsl(query, errors="replace") if name in _SHOWN]
    rest = f"?{urlencode(options, safe='/', errors='replace')}" if options else ""
    return re.sub(r"(?<=//).*@", "***@", place) + rest


def _count(most: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= most:
            raise ValueError(value)
        return int(value)

    return read


def _place_to_listen(value: str) -> str:
    if value != "off" and not is_postgres(value):
        raise ValueError(value)
    return "" if value == "off" else value


_OURS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "mode": ("read_only", {"ro": True, "rw": False}.__getitem__, "ro or rw"),
    "pooler": ("is_pooled", {"transaction": True, "none": False}.__getitem__, "transaction or none"),
    "listen": ("listen", _place_to_listen, "off, or a postgresql:// address with %3A, %2F and so on"),
    "partitions": ("partitions", _count(1024), "a number from 1 to 1024"),
    "rls": ("has_row_security", {"on": True, "off": False}.__getitem__, "on or off"),
    "pool": ("pool", _count(1000), "a number from 1 to 1000"),
}
"""Our options: the field that each sets, how its value is read, and what it may be."""
