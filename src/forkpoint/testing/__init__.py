"""Public tools for testing: small events to build conversations from, and the suite that every store must pass."""
