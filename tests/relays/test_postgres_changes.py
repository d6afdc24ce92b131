"""The example that relays changes of PostgreSQL, with a real server, which is killed, and a real broker: killed with
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

import psycopg
import pytest

import ledgermq.sync
from examples.relays.postgres_changes import ChangesLost, Relay, key_of
from infra import postgres as postgres_server
from infra.postgres import Postgres
from ledgermq.errors import MessageTooLarge, TransactionFenced, UnknownTopic
from tests.e2e.processes import BrokerProcesses

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STEPS = ("begin", "read", "stage", "commit", "committed", "advanced")
KILLS = [(number, "0") for number in range(1, len(STEPS) + 1)] + [(4, "0.002"), (4, "0.01"), (4, "0.05"), (5, "0.01")]
RUN_S_MAX = 300.0
NUMBERS = count(1)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres_server.running(postgres_server.logical_decoding()) as server:
        yield server


@pytest.fixture
def connection(database: Postgres) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(database.address, autocommit=True)) as connection:
        connection.execute("create table orders (id int primary key, amount numeric, note text)")
        connection.execute("create table plain (text text)")
        yield connection
    with closing(psycopg.connect(database.address, autocommit=True)) as connection:  # the test may have killed it
        connection.execute("drop table orders, plain")
        connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    folder = tmp_path_factory.mktemp("brokers")
    with BrokerProcesses(folder, (folder / "root").as_uri()) as brokers:
        brokers.start()
        yield brokers


@dataclass
class World:
    """A topic and a slot for one test."""

    client: ledgermq.sync.Client
    target: str
    database: Postgres
    topic: str
    slot: str

    def relay(self, **named: Any) -> None:
        Relay(self.client, **{"topic": self.topic, "slot": self.slot} | named).run(self.database.address, once=True)
        with self.client.transactions(f"changes-{self.slot}"):
            """Wait until the last commit shows."""

    def sent(self) -> list[tuple[str, Any]]:
        return list(map(short, self.changes()))

    def changes(self) -> list[dict[str, Any]]:
        with self.client.consumer(self.topic, until_end=True) as consumer:
            return [json.loads(message.value or b"") for message in consumer]

    def spawn(self, dies_in: int, how: str) -> subprocess.Popen[str]:
        words = (self.database.address, self.target, self.topic, self.slot, str(dies_in), how)
        command = [sys.executable, "-m", "tests.relays.dying_changes", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    def store(self, system: str, lsn: str) -> None:
        with self.client.producer() as producer:
            producer.send("relay-positions", json.dumps({"system": system, "lsn": lsn}), key=self.slot).result()


@pytest.fixture
def world(brokers: BrokerProcesses, database: Postgres) -> Iterator[World]:
    number = next(NUMBERS)
    with ledgermq.sync.connect(brokers.addresses) as client:
        client.create_topic(f"changes-{number}", 1)
        yield World(client, brokers.addresses, database, f"changes-{number}", f"slot_{number}")


def short(change: dict[str, Any]) -> tuple[str, Any]:
    row = change.get("columns") or change.get("identity") or [{"value": change.get("content")}]
    return change["action"], row[0]["value"]


def test_every_kind_of_change_comes_once_and_in_order(world: World, connection: psycopg.Connection) -> None:
    world.relay()  # from its first run on
    with connection.transaction():
        connection.execute("insert into orders values (1, 1.10, 'é'), (2, 2, null)")
        connection.execute("update orders set amount = 3 where id = 1")
    with connection.transaction(force_rollback=True):
        connection.execute("insert into orders values (77, 1, 'rolled back')")
    connection.execute("update orders set id = 3 where id = 1")
    connection.execute("delete from orders where id = 2")
    connection.execute("insert into plain values ('no key')")
    connection.execute("select pg_logical_emit_message(true, 'prefix', 'in a transaction')")
    connection.execute("select pg_logical_emit_message(false, 'prefix', 'outside')")
    connection.execute("truncate orders")
    world.relay()
    world.relay()
    kinds = [("I", 1), ("I", 2), ("U", 1), ("U", 3), ("D", 2), ("I", "no key"), ("M", "in a transaction"), ("T", None)]
    changes = world.changes()
    assert list(map(short, changes)) == kinds
    assert len({change["xid"] for change in changes[:3]}) == 1
    with world.client.consumer(world.topic, until_end=True, filter="TAGS IN ('public.orders')") as consumer:
        keys = [message.key for message in consumer]
    assert keys[0] == keys[2] == keys[3] == b'["public.orders", 1]', "by the key before the change"


def test_tables_may_be_chosen(world: World, connection: psycopg.Connection) -> None:
    world.relay(tables="public.plain")
    connection.execute("insert into orders values (1, 1, '')")
    connection.execute("insert into plain values ('yes')")
    world.relay(tables="public.plain")
    assert world.sent() == [("I", "yes")]


def test_other_databases_and_quiet_tables_keep_no_log_back(world: World, connection: psycopg.Connection) -> None:
    world.relay()
    where = "select confirmed_flush_lsn - '0/0'::pg_lsn from pg_replication_slots"
    before = connection.execute(where).fetchone()
    for _ in range(2):  # each ends a segment of 16 MiB; a checkpoint is no change
        connection.execute("select pg_switch_wal()")
        connection.execute("checkpoint")
    world.relay()
    after = connection.execute(where).fetchone()
    assert before is not None
    assert after is not None
    assert after[0] > before[0] + 1_000_000


@pytest.mark.slow
def test_killed_anywhere_each_change_comes_once(world: World, connection: psycopg.Connection) -> None:
    world.relay()
    killed, expected = 0, []
    for number, (dies_in, how) in enumerate(KILLS):
        with closing(psycopg.connect(world.database.address)) as writer:
            for each in range(3):
                writer.execute("insert into orders select n, 1, '' from generate_series(%s::int, %s::int) n", [
                    first := 1000 * number + 100 * each, first + 9])  # fmt: skip
                writer.commit()
                expected += [("I", first + n) for n in range(10)]
        program = world.spawn(dies_in, how)
        _, said = program.communicate(timeout=RUN_S_MAX)
        assert program.returncode in (0, -signal.SIGKILL), said[-3000:]
        killed += program.returncode != 0
        if number % 4 == 3:  # what the slot knew since its last checkpoint is gone: it shows changes again
            world.database.kill()
            world.database.start()
    assert killed >= len(STEPS)
    world.relay()
    assert world.sent() == expected


@pytest.mark.slow
@pytest.mark.parametrize("at", ["commit", "committed"])
def test_a_relay_that_stood_still_sends_nothing_more(world: World, connection: psycopg.Connection, at: str) -> None:
    world.relay()
    connection.execute("insert into orders values (1, 1, '')")
    first = world.spawn(STEPS.index(at) + 1, "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    world.relay()
    connection.execute("insert into orders values (2, 1, '')")
    world.relay()
    _, said = first.communicate("\n", timeout=RUN_S_MAX)
    assert first.returncode == 1
    assert TransactionFenced.__name__ in said or "cannot advance replication slot" in said, said[-3000:]
    connection.execute("insert into orders values (3, 1, '')")
    world.relay()
    assert world.sent() == [("I", 1), ("I", 2), ("I", 3)]


def test_changes_that_the_server_no_longer_has_are_an_error(world: World, connection: psycopg.Connection) -> None:
    world.relay()
    connection.execute("insert into orders values (1, 1, '')")
    world.relay()
    connection.execute("insert into orders values (2, 1, '')")
    connection.execute("select pg_drop_replication_slot(%s)", [world.slot])
    with pytest.raises(ChangesLost, match="is at None"):
        world.relay()
    connection.execute("select pg_create_logical_replication_slot(%s, 'wal2json')", [world.slot])
    with pytest.raises(ChangesLost, match="behind the position"):
        world.relay()
    world.store("1", "0/1")
    with pytest.raises(ChangesLost, match="belongs to server 1"):
        world.relay()
    system = connection.execute("select system_identifier::text from pg_control_system()").fetchone()
    assert system is not None
    world.store(system[0], "FF/0")
    with pytest.raises(ChangesLost, match="has gone back"):
        world.relay()
    assert world.sent() == [("I", 1)]


def test_changes_without_identity_are_an_error_unless_told_otherwise(
    world: World, connection: psycopg.Connection
) -> None:
    world.relay()
    connection.execute("insert into plain values ('one')")
    connection.execute("update plain set text = 'two'")
    with pytest.raises(ChangesLost, match=r"no tuple identifier for UPDATE.*REPLICA IDENTITY FULL"):
        world.relay()
    assert world.changes() == []
    connection.execute("alter table plain replica identity full")
    connection.execute("update plain set text = 'three'")
    world.relay(skip_unidentified=True)
    assert world.sent() == [("I", "one"), ("U", "three")]


def test_what_the_topic_refuses_waits_in_the_slot(world: World, connection: psycopg.Connection) -> None:
    world.relay()
    connection.execute("insert into orders values (1, 1, ''), (2, 1, (select string_agg(md5(n::text), '') from "
                       "generate_series(1, 100000) n))")  # fmt: skip
    with pytest.raises(MessageTooLarge):
        world.relay()
    with pytest.raises(UnknownTopic):
        world.relay(topic="missing")
    world.client.alter_topic(world.topic, settings={"max.message.bytes": str(8 << 20)})
    world.relay()
    assert world.sent() == [("I", 1), ("I", 2)]


def test_keys() -> None:
    change = {"action": "T", "schema": "s", "table": "t"}
    assert key_of(change) == '["s.t"]'
    assert key_of({"action": "M"}) is None
