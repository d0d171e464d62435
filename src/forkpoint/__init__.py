"""Forkpoint: conversations for AI agents in which every turn is a transaction and every commit a fork point."""

__version__ = "0.1.0.dev0"
