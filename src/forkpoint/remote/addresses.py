"""Addresses of servers: which ones are, and how each is written. Tests: tests/remote/test_backend.py."""

import hashlib
import os
from urllib.parse import urlsplit

from forkpoint.errors import BadStoreUrl

KEY = "FORKPOINT_API_KEY"
"""The environment variable that holds the key for a server."""


def is_server(address: str) -> bool:
    """Whether an address is a server's."""
    return address.lower().startswith(("http://", "https://"))


def server_url(address: str) -> str:
    """A server's address, the same however it is spelled. Raises `BadStoreUrl`, which never shows a password."""
    try:
        parts = urlsplit(address.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadStoreUrl("http://...", "it is not an address like http://host:8008") from None
    scheme = parts.scheme.lower()
    shown = f"{scheme}://{'***@' if '@' in parts.netloc else ''}{parts.netloc.rpartition('@')[2]}"
    if "@" in parts.netloc:
        raise BadStoreUrl(shown, f"a password does not belong into it; set {KEY} instead")
    if parts.query or parts.fragment:
        raise BadStoreUrl(shown, f"nothing may stand after its path; a key goes into {KEY}")
    if not host or port == 0 or any(not character.isprintable() or character == " " for character in parts.path + host):
        raise BadStoreUrl(shown, "it names no host, or no port that there is")
    if ":" in host:
        host = f"[{host}]"
    where = host if port in {None, {"http": 80, "https": 443}[scheme]} else f"{host}:{port}"
    return f"{scheme}://{where}{parts.path.rstrip('/')}"


def key_in_use() -> str:
    """What tells the key of this moment from another, without being one."""
    return hashlib.sha256(os.environ.get(KEY, "").encode(errors="surrogateescape")).hexdigest()[:16]
