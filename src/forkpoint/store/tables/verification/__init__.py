"""Verification: whether everything is as it was written."""

from forkpoint.store.tables.verification.check import verify

__all__ = ["verify"]
