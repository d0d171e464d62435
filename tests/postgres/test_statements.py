"""How the statements of PostgreSQL's files become psycopg's."""

import pytest

from forkpoint.store.sql import with_placeholders


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("SELECT :first::bigint >> 32, :a_1", "SELECT %(first)s::bigint >> 32, %(a_1)s"),
        ("VALUES (?, :tenant, ?)", "VALUES (%(0)s, %(tenant)s, %(1)s)"),
        ("SELECT 5 % 2 WHERE a LIKE 'x%'", "SELECT 5 %% 2 WHERE a LIKE 'x%%'"),
        ("SELECT ':no', '?', 'it''s :no', \":no\", :yes", "SELECT ':no', '?', 'it''s :no', \":no\", %(yes)s"),
        ("SELECT 1 -- why :not, don't ask?\n, :x", "SELECT 1 -- why :not, don't ask?\n, %(x)s"),
        ("SELECT a[1:2], '{}'::text", "SELECT a[1:2], '{}'::text"),
    ],
)
def test_parameters_become_placeholders_and_nothing_else_does(written: str, said: str) -> None:
    assert with_placeholders(written) == said
