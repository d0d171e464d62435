"""The version of Forkpoint. Tests: tests/cli/test_program.py."""

__version__ = "0.1.0.dev0"
