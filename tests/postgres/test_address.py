"""The address of a PostgreSQL database: which options are ours, and that no error shows a password."""

import subprocess
import sys

import pytest

from forkpoint.errors import BadStoreUrl
from forkpoint.store.postgres.address import postgres_address, without_password


def test_an_address_without_options_of_ours_goes_to_libpq_as_it_is() -> None:
    url = "postgresql://me:pw@one,two:5433/db?sslmode=require&target_session_attrs=any"
    address = postgres_address(url)
    assert address.dsn == url
    assert (address.read_only, address.is_pooled, address.listen, address.partitions) == (False, False, None, None)


def test_our_options_are_taken_out_before_libpq_sees_the_address() -> None:
    url = "postgres://h/db?pooler=transaction&connect_timeout=3&partitions=4&rls=on&pool=2&mode=ro&listen=off"
    address = postgres_address(url)
    assert address.dsn == "postgres://h/db?connect_timeout=3"
    assert address.is_pooled
    assert address.read_only
    assert address.has_row_security
    assert (address.listen, address.partitions, address.pool) == ("", 4, 2)


def test_a_folder_of_sockets_survives() -> None:
    address = postgres_address("postgresql://postgres@/db?host=/run/pg%20one&pool=3")
    assert address.dsn == "postgresql://postgres@/db?host=/run/pg%20one"


def test_notifications_may_be_had_at_another_address() -> None:
    address = postgres_address(
        "postgresql://pooler/db?listen=postgresql%3A%2F%2Fme%3Apw%40direct%2Fdb%3Fsslmode%3Ddisable"
    )
    assert address.listen == "postgresql://me:pw@direct/db?sslmode=disable"


@pytest.mark.parametrize(
    "option",
    [
        *("pooler=session", "pooler=", "listen=on", "listen=http://x", "partitions=0", "partitions=x", "pool=-1"),
        *("pool=5000", "rls=yes", "mode=wo", "mode=ro&mode=ro", "partitions=%D9%A3"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(option: str) -> None:
    with pytest.raises(BadStoreUrl) as error:
        postgres_address(f"postgresql://me:s3cret@host/db?{option}")
    assert option.partition("=")[0] in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://me:s3c/ret@host/db", "postgresql://***@host/db"),
        ("postgresql://me:s3c@ret@host/db", "postgresql://***@host/db"),
        ("postgresql://me:s3c?ret@host/db", "postgresql://***@host/db"),
        ("postgresql://host/db?user=me&password=s3cret&host=/run/x", "postgresql://host/db?host=/run/x"),
        ("postgresql://host/db?listen=postgresql%3A%2F%2Fme%3As3cret%40direct%2Fdb", "postgresql://host/db"),
        ("postgresql://host/db?passfile=s3cret&sslpassword=s3cret", "postgresql://host/db"),
    ],
)
def test_no_spelling_of_a_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["postgresql://h/d\0b", "postgresql://h/\ud800", "postgresql://h/\n"], ids=ascii)
def test_characters_that_no_address_has_are_refused(url: str) -> None:
    with pytest.raises(BadStoreUrl) as error:
        postgres_address(url)
    str(error.value).encode()


def test_reading_an_address_imports_nothing_of_psycopg() -> None:
    code = (
        "import sys\n"
        "from forkpoint.store.address import open_store\n"
        "from forkpoint.store.postgres.address import postgres_address\n"
        "postgres_address('postgresql://h/d')\n"
        "print([name for name in sys.modules if name.startswith('psycopg')])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
