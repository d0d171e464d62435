"""Cache identity: the key that a conversation shows a provider, and why.

**The promise kept here: no conversation can change another's key.** The identity is a document of the conversation,
stored with it, and reaches a provider in a frozen `CallContext` that is built for each call. No `LLM`, agent or client
ever holds one, so there is nothing that a fork could overwrite.

A root's key comes from its inner id: opaque, and never a client's text. A fork has its own, or inherits its source's on
request; a sub-agent that starts with its parent's history inherits. Inheriting pays only while the prompt starts with
the same blocks, so with another manifest the inherited key is dropped, and the identity says why. Opening a
conversation later reads the document and changes nothing.
"""

import hashlib
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.errors import BadSetting
from forkpoint.events import JsonText
from forkpoint.llm.documents import read_document

CachePolicy: TypeAlias = Literal["own", "inherit"]
"""What a fork does with its source's cache identity."""

LONGEST_KEY = 64  # characters that OpenAI takes


class CacheIdentity(Struct, frozen=True, omit_defaults=True):
    """What a conversation shows a provider: the key, and the session that routing headers carry.

    ``inherited_from`` names the conversation whose identity this is; None means its own. ``manifest`` is the hash that
    an inherited key is good for. ``dropped`` says why an inherited identity was given up.
    """

    key: str
    session: str
    inherited_from: str | None = None
    manifest: str | None = None
    dropped: str | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.key) <= LONGEST_KEY:
            raise BadSetting("a conversation", "its cache key", f"it must have 1 to {LONGEST_KEY} characters")

    def to_json(self) -> JsonText:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "CacheIdentity":
        return read_document(cls, text, of="a conversation", what="The cache identity")


def own_identity(conversation: str) -> CacheIdentity:
    """The identity that a conversation has by itself. The same id always gives the same."""
    digest = hashlib.sha256(b"forkpoint cache identity\0" + conversation.encode()).hexdigest()
    return CacheIdentity(key=f"fp_{digest[:40]}", session=_as_uuid(digest[:32]))


def fork_identity(
    source: CacheIdentity, source_id: str, fork_id: str, policy: CachePolicy, *, manifest: str, source_manifest: str
) -> CacheIdentity:
    """The identity of a fork or of a sub-agent that starts with its parent's history.

    The hashes are of the manifests that the fork and its source use: with two different ones there is no common
    prefix, so nothing is inherited, and the reason is kept.
    """
    if policy == "own":
        return own_identity(fork_id)
    shown = under_manifest(source, source_id, source_manifest)  # what the source itself would show now
    inherited = replace(shown, inherited_from=source_id, manifest=source_manifest, dropped=None)
    return under_manifest(inherited, fork_id, manifest)


def under_manifest(identity: CacheIdentity, conversation: str, manifest: str) -> CacheIdentity:
    """The identity to go on with when a conversation's manifest is this one now.

    An own identity stays. An inherited one stays while the manifest is the one it was inherited for; with another it
    is dropped, for good and with the reason.
    """
    if identity.inherited_from is None or identity.manifest == manifest:
        return identity
    why = f"inherited from {identity.inherited_from}, dropped: its manifest {_short(identity.manifest)} is now "
    return replace(own_identity(conversation), dropped=why + _short(manifest))


class CallContext(Struct, frozen=True):
    """Everything of a conversation that a single call shows a provider, besides its prompt."""

    identity: CacheIdentity
    tenant: str = ""
    fork_base: int | None = None  # how many events of the path were there before this branch was made

    @property
    def salt(self) -> str:
        """One for each tenant, so that no tenant can probe what another has in the cache."""
        return hashlib.sha256(b"forkpoint cache salt\0" + self.tenant.encode()).hexdigest()


def _as_uuid(hex32: str) -> str:
    return "-".join((hex32[:8], hex32[8:12], hex32[12:16], hex32[16:20], hex32[20:]))


def _short(hash: str | None) -> str:
    return (hash or "?")[:12]
