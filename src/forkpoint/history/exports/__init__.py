"""Exports: conversations as one file of lines, each a JSON object, that can be checked without a store.

`lines` says what the lines are. `check` says whether a file is as it was written, and `chains` whether its chains of
records are. docs/export.md is the contract.
"""
