"""Public tools for testing: small events, a clock that a test can move, and the suite that every store must pass.

`samples` and `clock` need nothing else; `conformance` needs pytest.
"""
