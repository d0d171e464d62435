"""What a database server lacks, and the setting that mends it."""

from collections.abc import Callable

import pytest
from tests.postgres.server import Server

from forkpoint.errors import StoreUnavailable
from forkpoint.store.postgres.address import postgres_address
from forkpoint.store.postgres.care.examination import Examination, examine


def examined(address: str) -> Examination:
    return examine(postgres_address(address))


def test_settings_that_break_a_promise_are_named_with_what_mends_them(make_server: Callable[..., Server]) -> None:
    server = make_server(fsync="off", synchronous_commit="off", synchronous_standby_names="nobody")
    found = examined(server.url())
    assert found.format is None
    assert [flaw.partition(":")[0] for flaw in found.flaws] == ["fsync is off", "synchronous_commit is off"]
    assert "set fsync = on" in found.flaws[0]
    assert found.advice == (), "no commit waits for a standby"


def test_commits_that_wait_for_no_standby_although_standbys_are_named_break_a_promise(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(synchronous_commit="local", synchronous_standby_names="nobody")
    found = examined(server.url())
    assert [flaw.partition(":")[0] for flaw in found.flaws] == ["synchronous_commit is local"]
    assert "RESET synchronous_commit" in found.flaws[0]
    assert not any("every commit waits" in advice for advice in found.advice)
    server.configure(synchronous_commit="remote_write")
    found = examined(server.url())
    assert found.flaws == ()
    assert [advice.partition(":")[0] for advice in found.advice] == [
        "no standby of synchronous_standby_names = 'nobody' is connected",
        "synchronous_commit is remote_write",
    ]
    server.configure(synchronous_standby_names="", synchronous_commit="local")
    assert examined(server.url()).flaws == (), "without standbys it says the same as on"


def test_a_server_without_a_synchronous_standby_is_usable_and_gets_advice(postgres: str) -> None:
    found = examined(postgres)
    assert "there is no synchronous standby" in found.advice[0]
    assert not any("LISTEN" in flaw or "pooler" in flaw for flaw in found.flaws)


def test_a_standby_takes_no_writes(make_server: Callable[..., Server]) -> None:
    standby = make_server().standby()
    assert any("this server is a standby" in flaw for flaw in examined(standby.url()).flaws)


def test_a_pooler_that_forgets_statements_and_never_delivers_is_found_out(pgbouncer: str) -> None:
    flaws = " ".join(examined(pgbouncer).flaws)
    assert "add ?pooler=transaction to the address" in flaws
    assert "add ?listen=URL" in flaws


def test_an_address_that_names_its_pooler_has_nothing_to_mend(pgbouncer: str) -> None:
    flaws = " ".join(examined(f"{pgbouncer}{'&' if '?' in pgbouncer else '?'}pooler=transaction&listen=off").flaws)
    assert "pooler" not in flaws
    assert "LISTEN" not in flaws


def test_a_role_without_the_settings_of_a_session_gets_advice_if_it_comes_through_a_pooler(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    pooled = f"{server.url()}?pooler=transaction"
    advice = examined(pooled).advice[-1]
    assert "jit = on" in advice
    assert "lock_timeout = 0" in advice
    for statement in advice.partition("for long: ")[2].split("; "):
        server.execute(statement)
    assert not any("pooler" in one for one in examined(pooled).advice)
    assert not any("jit" in one for one in examined(server.url()).advice)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        examined("postgresql://ann:secret@127.0.0.1:1/db")
    assert "***@127.0.0.1:1/db" in str(refused.value)
    assert "secret" not in str(refused.value)
