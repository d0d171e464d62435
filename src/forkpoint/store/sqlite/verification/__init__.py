"""Verification: whether everything is as it was written."""

from forkpoint.store.sqlite.verification.check import verify

__all__ = ["verify"]
