"""The OpenAPI document of a server, and the examples in it. Tests: tests/server/test_openapi.py."""
