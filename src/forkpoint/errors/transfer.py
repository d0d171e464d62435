"""Errors of a caller who brings an export into a store. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError


class BadExport(ForkpointError, code="bad_export"):
    """The export cannot be used: line {line} is wrong ({why}). Nothing of it was imported.

    Make the file once more where it comes from, or upgrade Forkpoint if a newer one made it.
    """

    line: int
    why: str


class ImportRefused(ForkpointError, code="import_refused"):
    """The export cannot be imported, because of {what}: {why}. Nothing of its family was changed.

    Use another store for it, or go on with what is here.
    """

    what: str
    why: str


class SecretInside(ForkpointError, code="secret_inside"):
    """Conversation {conversation} was not exported: the setting {setting!r} of its agent holds what looks like a
    secret, and no export has one.

    Use a reference to the secret instead, in the agent of the conversation, and export it again.
    """

    conversation: str
    setting: str
