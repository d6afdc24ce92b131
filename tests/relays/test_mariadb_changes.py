"""The example that relays changes of MariaDB, with a real server, which is killed, and a real broker: killed with
SIGKILL between all of its steps and within its commits, twice at a time, and with a server that has lost changes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import pymysql
import pytest

import ledgermq.sync
from examples.relays import mariadb_changes
from examples.relays.mariadb_changes import ChangesLost, Relay, Unsuitable
from infra import mariadb
from infra.mariadb import DATABASE, MariaDb
from ledgermq.errors import MessageTooLarge, TransactionFenced, UnknownTopic
from tests.e2e.processes import BrokerProcesses

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STEPS = ("begin", "read", "stage", "commit", "committed")
KILLS = [(number, "0") for number in range(1, len(STEPS) + 1)] + [(4, "0.002"), (4, "0.01"), (4, "0.05"), (5, "0.01")]
RUN_S_MAX = 300.0
NUMBERS = count(1)
LOG = ("--log-bin=log", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--gtid-strict-mode=1")
POSITIONS_OF_REPLICAS = (
    "create table mysql.gtid_slave_pos (domain_id int unsigned not null, sub_id bigint unsigned not null, "
    "server_id int unsigned not null, seq_no bigint unsigned not null, primary key (domain_id, sub_id))"
)
"""A server without the tables of its system has none, and refuses to show its log."""


END_BYTES = 31
"""Of the event that ends a transaction, in the log."""


def connected(server: MariaDb) -> Any:
    named = {"user": "root", "database": DATABASE, "autocommit": True, "charset": "utf8mb4"}
    return pymysql.connect(host="127.0.0.1", port=server.port, **named)


def run(connection: Any, *statements: str) -> Any:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


@pytest.fixture(scope="module")
def database() -> Iterator[MariaDb]:
    with mariadb.running(*LOG) as server:
        with closing(connected(server)) as connection:
            run(connection, "set sql_log_bin = 0", "create database mysql", POSITIONS_OF_REPLICAS)
        server.stop()
        server.start()
        yield server


@pytest.fixture
def connection(database: MariaDb) -> Iterator[Any]:
    with closing(connected(database)) as connection:
        run(
            connection,
            "create table orders (id int primary key, amount decimal(10, 2), note mediumtext) charset utf8mb4",
        )
        run(connection, "create table plain (text text)")
        yield connection
    with closing(connected(database)) as connection:  # the test may have killed it
        run(connection, "drop table orders, plain")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    folder = tmp_path_factory.mktemp("brokers")
    with BrokerProcesses(folder, (folder / "root").as_uri()) as brokers:
        brokers.start()
        yield brokers


@dataclass
class World:
    """A topic and a name for one test."""

    client: ledgermq.sync.Client
    target: str
    database: MariaDb
    topic: str
    name: str

    def relay(self, **named: Any) -> None:
        Relay(self.client, **{"topic": self.topic, "name": self.name} | named).run(self.database.address, once=True)
        with self.client.transactions(f"changes-{self.name}"):
            """Wait until the last commit shows."""

    def sent(self) -> list[tuple[str, Any]]:
        return list(map(short, self.changes()))

    def changes(self) -> list[dict[str, Any]]:
        with self.client.consumer(self.topic, until_end=True) as consumer:
            return [json.loads(message.value or b"") for message in consumer]

    def spawn(self, dies_in: int, how: str) -> subprocess.Popen[str]:
        words = (self.database.address, self.target, self.topic, self.name, str(dies_in), how)
        command = [sys.executable, "-m", "tests.relays.dying_changes", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    def store(self, position: str) -> None:
        with self.client.producer() as producer:
            producer.send("relay-positions", position, key=self.name).result()


@pytest.fixture
def world(brokers: BrokerProcesses, database: MariaDb) -> Iterator[World]:
    number = next(NUMBERS)
    with ledgermq.sync.connect(brokers.addresses) as client:
        client.create_topic(f"changes-{number}", 1)
        yield World(client, brokers.addresses, database, f"changes-{number}", f"relay-{number}")


def short(change: dict[str, Any]) -> tuple[str, Any]:
    row = change.get("columns") or change.get("identity") or {"": change.get("statement")}
    return change["action"], next(iter(row.values()))


def test_every_kind_of_change_comes_once_and_in_order(world: World, connection: Any) -> None:
    world.relay()  # from its first run on
    run(connection, "begin", "insert into orders values (1, 1.10, 'é😀'), (2, 2, null)",
        "update orders set amount = 3 where id = 1", "commit")  # fmt: skip
    run(connection, "begin", "insert into orders values (77, 1, 'rolled back')", "rollback")
    run(connection, "begin", "insert into orders values (4, 1, '')", "savepoint here")
    run(connection, "insert into orders values (78, 1, 'rolled back')", "rollback to here", "commit")
    run(connection, "update orders set id = 3 where id = 1", "delete from orders where id = 2")
    run(connection, "insert into plain values ('no key')", "update plain set text = 'other'")
    run(connection, "create table copies select 5 as five", "truncate orders", "drop table copies")
    world.relay()
    world.relay()
    changes = world.changes()
    kinds = list(map(short, changes))
    assert kinds[:8] == [("I", 1), ("I", 2), ("U", 1), ("I", 4), ("U", 3), ("D", 2), ("I", "no key"), ("U", "other")]
    assert [kind[0] for kind in kinds[8:]] == ["Q", "I", "Q", "Q"]
    assert kinds[9] == ("I", 5)
    assert changes[10]["statement"] == "truncate orders"
    assert changes[0]["columns"] == {"id": 1, "amount": "1.10", "note": "é😀"}
    assert changes[1]["columns"]["note"] is None
    assert len({change["gtid"] for change in changes[:3]}) == 1
    with world.client.consumer(world.topic, until_end=True, filter="TAGS IN ('tests.orders')") as consumer:
        keys = [message.key for message in consumer]
    assert keys[0] == keys[2] == keys[4] == b'["tests.orders", 1]', "by the key before the change"


def test_types(world: World, connection: Any) -> None:
    world.relay()
    types = {
        "big": ("bigint unsigned", "18446744073709551615", 2**64 - 1),
        "latin": ("varchar(9) character set latin1", "'é'", "é"),
        "bytes": ("blob", "x'00ff'", "AP8="),
        "json": ("json", "'{\"a\": 1.0}'", '{"a": 1.0}'),
        "at": ("datetime(6)", "'2024-01-02 03:04:05.123456'", "2024-01-02 03:04:05.123456"),
        "day": ("date", "'2024-01-02'", "2024-01-02"),
        "span": ("time(3)", "'34:56:07.89'", "34:56:07.890000"),
        "back": ("time", "'-12:34:56'", "-12:34:56.000000"),
        "misread": ("time(3)", "'-12:34:56.789'", None),
        "one": ("enum('x', 'y')", "'y'", "y"),
        "some": ("set('p', 'q')", "'q,p'", ["p", "q"]),
        "half": ("double", "0.5", 0.5),
        "zero": ("datetime", "'0000-00-00'", None),
        "none": ("datetime null", "null", None),
    }
    run(connection, f"create table kinds ({', '.join(f'{name} {each[0]}' for name, each in types.items())})",
        "set session sql_mode = ''", f"insert into kinds values ({', '.join(each[1] for each in types.values())})",
        "drop table kinds")  # fmt: skip
    world.relay(tables=frozenset({"tests.kinds"}))
    (change,) = world.changes()
    assert change["columns"] == {name: each[2] for name, each in types.items()}
    assert [*change["unreadable"]] == ["zero", "misread"]


def test_tables_may_be_chosen(world: World, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = frozenset({"tests.plain"})
    world.relay(tables=tables)
    run(connection, "insert into orders values (1, 1, '')", "insert into plain values ('yes')")
    world.relay(tables=tables)
    with world.client.table("relay-positions") as table:
        before = table.get(world.name)
    run(connection, "insert into orders values (2, 1, '')")
    world.relay(tables=tables)
    with world.client.table("relay-positions") as table:
        assert table.get(world.name) == before
    monkeypatch.setattr(mariadb_changes, "IDLE_S", 0.0)
    world.relay(tables=tables)
    with world.client.table("relay-positions") as table:
        assert table.get(world.name) != before, "so that the server may remove its logs"
    assert world.sent() == [("I", "yes")]


@pytest.mark.slow
def test_killed_anywhere_each_change_comes_once(world: World, connection: Any) -> None:
    world.relay()
    killed, expected = 0, []
    for number, (dies_in, how) in enumerate(KILLS):
        with closing(connected(world.database)) as writer:
            for each in range(3):
                first = 1000 * number + 100 * each
                run(writer, f"insert into orders select seq, 1, '' from seq_{first}_to_{first + 9}")
                expected += [("I", first + n) for n in range(10)]
        program = world.spawn(dies_in, how)
        _, said = program.communicate(timeout=RUN_S_MAX)
        assert program.returncode in (0, -signal.SIGKILL), said[-3000:]
        killed += program.returncode != 0
        if number % 4 == 3:
            world.database.kill()
            world.database.start()
    assert killed >= len(STEPS)
    world.relay()
    assert world.sent() == expected


@pytest.mark.slow
@pytest.mark.parametrize("at", ["commit", "committed"])
def test_a_relay_that_stood_still_sends_nothing_twice(world: World, connection: Any, at: str) -> None:
    world.relay()
    run(connection, "insert into orders values (1, 1, '')")
    first = world.spawn(STEPS.index(at) + 1, "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    world.relay()
    run(connection, "insert into orders values (2, 1, '')")
    world.relay()
    run(connection, "insert into orders values (3, 1, '')")  # so that the first one has something to commit
    _, said = first.communicate("\n", timeout=RUN_S_MAX)
    if at == "commit":
        assert first.returncode == 1, said[-3000:]
        assert TransactionFenced.__name__ in said, said[-3000:]
    else:  # its next transaction was aborted by its successor: it goes on from the position that the latter has stored
        assert first.returncode == 0, said[-3000:]
    world.relay()
    assert world.sent() == [("I", 1), ("I", 2), ("I", 3)]


def test_a_server_that_ends_while_its_log_is_read_is_asked_again(world: World, connection: Any) -> None:
    world.relay()
    run(connection, "insert into orders values (1, 1, '')")
    seen: list[str] = []

    def step(name: str) -> None:
        seen.append(name)
        if seen.count("read") == 1 and name == "read":
            world.database.kill()
            world.database.start()

    world.relay(step=step)
    assert world.sent() == [("I", 1)]


def test_a_transaction_that_was_torn_by_a_crash_is_left_out(world: World, connection: Any) -> None:
    world.relay()
    run(connection, "insert into orders values (1, 1, '')")
    before = run(connection, "show master status")[0]
    run(connection, "insert into orders values (2, 1, ''), (3, 1, '')")
    world.database.kill()
    log = world.database.data / before[0]
    whole = log.read_bytes()
    log.write_bytes(whole[:-END_BYTES])
    assert len(whole) - END_BYTES > int(before[1]) + 100, "its rows are there"
    world.database.start()
    world.relay()
    with closing(connected(world.database)) as again:
        run(again, "insert into plain values ('after')")
    world.relay()
    assert world.sent() == [("I", 1), ("I", "after")]


def test_changes_that_the_server_no_longer_has_are_an_error(world: World, connection: Any) -> None:
    world.relay()
    run(connection, "insert into orders values (1, 1, '')")
    world.relay()
    with world.client.table("relay-positions") as table:
        position = table.get(world.name, b"").decode()
    run(connection, "insert into orders values (2, 1, '')", "flush binary logs")
    while len(logs := run(connection, "show binary logs")) > 1:  # the server may still need one for a moment
        run(connection, f"purge binary logs to '{logs[-1][0]}'")
    with pytest.raises(ChangesLost, match="required binlog files have been purged"):
        world.relay()
    domain, server, sequence = position.split("-")
    world.store(f"{domain}-{server}-{int(sequence) + 100}")
    with pytest.raises(ChangesLost, match="restored, or another one"):
        world.relay()
    world.store("7-1-1")
    with pytest.raises(ChangesLost, match="restored, or another one"):
        world.relay()
    world.store(f"{domain}-{int(server) + 1}-{sequence}")
    with pytest.raises(ChangesLost, match="not in the master's binlog"):
        world.relay()
    assert world.sent() == [("I", 1)]


UNTOLD = {
    "told by rows": ("set session binlog_format = 'STATEMENT'", "insert into plain values ('x')"),
    "distributed": ("xa start 'x'", "insert into plain values ('x')", "xa end 'x'", "xa prepare 'x'", "xa commit 'x'"),
    "cannot be read": (
        "set global log_bin_compress = 1",
        "insert into plain values (repeat('y', 1000))",
        "set global log_bin_compress = 0",
    ),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_changes_that_are_not_told_by_rows_are_an_error_until_they_are_skipped(
    world: World, connection: Any, what: str
) -> None:
    world.relay()
    run(connection, "insert into plain values ('before')")
    with closing(connected(world.database)) as other:
        first = run(connection, "select @@global.gtid_binlog_pos")[0][0]
        run(other, *UNTOLD[what])
        last = run(connection, "select @@global.gtid_binlog_pos")[0][0]
    with pytest.raises(ChangesLost, match=what):
        world.relay()
    assert world.sent() == []
    place, _, number = first.rpartition("-")
    skip = frozenset(f"{place}-{each}" for each in range(int(number) + 1, int(last.rpartition("-")[2]) + 1))
    run(connection, "insert into plain values ('after')")
    world.relay(skip=skip)
    assert world.sent() == [("I", "before"), ("I", "after")]


def test_a_server_that_does_not_log_rows_whole_is_refused(world: World, connection: Any) -> None:
    run(connection, "set global binlog_row_image = MINIMAL")
    try:
        with pytest.raises(Unsuitable, match="binlog_row_image=MINIMAL, and needs binlog_row_image=FULL"):
            world.relay()
    finally:
        run(connection, "set global binlog_row_image = FULL")


def test_what_the_topic_refuses_waits_in_the_log(world: World, connection: Any) -> None:
    world.relay()
    run(connection, "insert into orders values (1, 1, ''), (2, 1, repeat('0123456789', 320000))")
    with pytest.raises(MessageTooLarge):
        world.relay()
    with pytest.raises(UnknownTopic):
        world.relay(topic="missing")
    world.client.alter_topic(world.topic, settings={"max.message.bytes": str(8 << 20)})
    world.relay()
    assert world.sent() == [("I", 1), ("I", 2)]
