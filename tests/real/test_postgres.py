"""What two-phase commit beside PostgreSQL rests on: a transaction that it has prepared survives
kill -9 of the server, can be found after the restart, and is committed or rolled back from there by
any connection.
"""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from infra.postgres import Postgres

pytestmark = pytest.mark.real


def connected(server: Postgres) -> closing[psycopg.Connection]:
    """A connection whose statements are transactions of their own."""
    return closing(psycopg.connect(server.address, autocommit=True))


def prepared(server: Postgres) -> list[str]:
    with connected(server) as connection:
        return [name for (name,) in connection.execute("select gid from pg_prepared_xacts order by gid")]


def balances(server: Postgres) -> dict[str, int]:
    with connected(server) as connection:
        return dict(connection.execute("select name, amount from accounts").fetchall())


def prepare(server: Postgres, account: str, transaction: str) -> None:
    """Take 10 from an account, and prepare that."""
    with connected(server) as connection:
        connection.execute("begin")
        connection.execute("update accounts set amount = amount - 10 where name = %s", [account])
        connection.execute(f"prepare transaction '{transaction}'")


def crash(server: Postgres) -> None:
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        connected(server)
    server.start()


@pytest.fixture
def accounts(postgres: Postgres) -> Postgres:
    with connected(postgres) as connection:
        connection.execute("create table accounts (name text primary key, amount int not null)")
        connection.execute("insert into accounts values ('ada', 100), ('bob', 100), ('eve', 100)")
    return postgres


def test_prepared_transactions_survive_kill_9_of_the_server(accounts: Postgres) -> None:
    with connected(accounts) as undecided:
        undecided.execute("begin")
        undecided.execute("update accounts set amount = 0 where name = 'eve'")
        prepare(accounts, "ada", "transfer-1")
        prepare(accounts, "bob", "transfer-2")
        crash(accounts)
    assert prepared(accounts) == ["transfer-1", "transfer-2"]
    assert balances(accounts) == {"ada": 100, "bob": 100, "eve": 100}
    with connected(accounts) as connection:
        connection.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):  # its row is still locked
            connection.execute("update accounts set amount = 0 where name = 'ada'")
        connection.execute("commit prepared 'transfer-1'")
        connection.execute("rollback prepared 'transfer-2'")
    crash(accounts)
    assert prepared(accounts) == []
    assert balances(accounts) == {"ada": 90, "bob": 100, "eve": 100}


def test_a_decision_that_is_carried_out_twice_is_refused_by_name(accounts: Postgres) -> None:
    """A program that recovers cannot know whether the one before it was answered."""
    prepare(accounts, "ada", "transfer-1")
    with connected(accounts) as connection:
        connection.execute("commit prepared 'transfer-1'")
    crash(accounts)
    with connected(accounts) as connection, pytest.raises(psycopg.errors.UndefinedObject):
        connection.execute("commit prepared 'transfer-1'")
    assert balances(accounts)["ada"] == 90


def test_the_server_syncs_what_it_commits(postgres: Postgres) -> None:
    with connected(postgres) as connection:
        shown = {name: connection.execute(f"show {name}").fetchone() for name in ("fsync", "synchronous_commit")}
    assert shown == {"fsync": ("on",), "synchronous_commit": ("on",)}
