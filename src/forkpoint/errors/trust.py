"""Errors of what a person relies on: approvals, and the trust in a workspace. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class BadWorkspace(ForkpointError, code="bad_workspace"):
    """{path!r} cannot be the workspace: {why}. Name a folder that exists."""

    path: str
    why: str

    @form
    def workspace_not_made(self, kind: str, path: str, why: str) -> None:
        """The fork cannot have a {kind} of {path!r}: {why}. Nothing was made, and nothing was changed; share the
        folder, choose another kind, or name a folder that exists."""

    @form
    def trust_refused(self, path: str, why: str) -> None:
        """Nothing can be said here of whether {path} is trusted: {why}. Nothing was made or changed; leave `trust` out,
        or ask whoever runs the server."""


class NotKept(ForkpointError, code="not_kept"):
    """{why} Check the file and its folder, and try again."""

    why: str
