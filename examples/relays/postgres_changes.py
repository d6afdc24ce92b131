"""Send the changes of a PostgreSQL database into a topic: each committed change once, in the order of the commits,
although this program, a broker or the database is killed at any moment.

    pip install "ledgermq[broker]" "psycopg[binary]"
    python examples/relays/postgres_changes.py POSTGRES TARGET TOPIC [--slot NAME] [--tables LIST] [--once]

POSTGRES is like postgresql://user@localhost/shop. The server needs wal_level=logical and the plugin wal2json, the user
the right to replicate. TARGET: addresses of brokers, or the URL of a root. --slot: of the replication slot, also the
name of this relay. --tables: such as public.orders,public.items; by default all. --once: end when all is sent.
docs/relays.md says what is promised.

A transaction of PostgreSQL becomes a transaction in the topic, which also has the position: a record of the keyed
topic `relay-positions`. Only then the slot moves on, so the server keeps what is not yet in the topic. After a crash
the server may show again what was sent: that lies before the position, and is left out. The transactional id fences a
relay before that still goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.errors import Diagnostic, ObjectInUse

import ledgermq.sync
from ledgermq.errors import TransactionAborted, TransactionOutcomeUnknown, Unavailable

POSITIONS = "relay-positions"
CHANGES_MAX = 10_000
"""After so many, a transaction of the topic ends with the transaction of PostgreSQL."""
IDLE_BYTES = 1 << 20
"""So much WAL of other databases and tables may pass before the position moves without a change."""
PAUSE_S = 0.5
TRANSACTION_TIMEOUT = "15m"
OPTIONS = (
    *("format-version", "2", "include-xids", "true", "include-timestamp", "true"),
    *("include-lsn", "true", "include-pk", "true"),
)
PASSING = ("08", "53", "57")
"""Classes of SQLSTATE: connection, resources, a server that starts or stops."""

Step = Callable[[str], None]
"""Called before each step with its name, for tests that end the program there."""


class ChangesLost(Exception):
    """The server no longer has all changes behind the position, or never told them: a new slot has to begin."""


@dataclass(slots=True)
class Place:
    """Everything before `lsn` is in the topic. `system`: the identifier of the server that it belongs to."""

    system: str
    lsn: int

    def stored(self) -> bytes:
        return json.dumps({"system": self.system, "lsn": _text(self.lsn)}).encode()


@dataclass(slots=True)
class Read:
    """What one look at the slot has shown. `reached`: where the last transaction that is new has ended; None: there
    was none. `rows`: of all kinds; with less than CHANGES_MAX it has shown everything.
    """

    reached: int | None = None
    rows: int = 0


@dataclass(slots=True)
class Relay:
    """`skip_unidentified`: leave out changes of rows of which PostgreSQL does not say which they are."""

    client: ledgermq.sync.Client
    topic: str
    slot: str = "ledgermq"
    tables: str = ""
    skip_unidentified: bool = False
    step: Step = lambda _: None
    _warnings: list[str] = field(default_factory=list)

    def run(self, address: str, *, once: bool = False) -> None:
        """Relay until interrupted; `once`: until all is sent. After an error that may pass it connects again.

        Raises ChangesLost; TransactionFenced when another relay has begun with this slot; other errors of the
        client, such as UnknownTopic and MessageTooLarge, and of psycopg. The slot then keeps what was not sent.
        """
        self.client.create_topic(POSITIONS, 1, {"cleanup.policy": "compact"}, if_not_exists=True)
        has_connected = False
        while True:
            try:
                with psycopg.connect(address, autocommit=True) as database:
                    has_connected = True
                    database.add_notice_handler(self._note)
                    self._relay(database, once=once)
                    return
            except (TransactionAborted, TransactionOutcomeUnknown, Unavailable) as error:
                _say(f"once more, from the position that is stored: {error}")
            except psycopg.OperationalError as error:
                state = error.sqlstate
                if not has_connected or not (state is None or state[:2] in PASSING or isinstance(error, ObjectInUse)):
                    raise
                _say(f"once more, with a new connection: {error}")
            time.sleep(PAUSE_S)

    def _relay(self, database: psycopg.Connection, *, once: bool) -> None:
        name = f"changes-{self.slot}"
        with self.client.transactions(name, timeout=TRANSACTION_TIMEOUT) as transactions:  # settles what was open
            place = self._begin(database)
            while True:
                if not self._send_new(database, transactions, place):
                    if once:
                        return
                    time.sleep(PAUSE_S)

    def _begin(self, database: psycopg.Connection) -> Place:
        """Return the position that is stored; without one, that of the slot, which is made if it is not there."""
        with self.client.table(POSITIONS) as table:
            stored = json.loads(table.get(self.slot, b"null"))
        self.step("begin")
        system = _one(database, "select system_identifier::text from pg_control_system()")
        slot = _one(database, "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s", self.slot)
        if stored is None:
            if slot is None:
                made = "select lsn from pg_create_logical_replication_slot(%s, 'wal2json')"
                slot = _one(database, made, self.slot)
            return Place(system, _number(slot))
        place = Place(stored["system"], _number(stored["lsn"]))
        if place.system != system:
            raise ChangesLost(f"the position of {self.slot!r} belongs to server {place.system}, this one is {system}")
        if slot is None or _number(slot) > place.lsn:
            raise ChangesLost(f"slot {self.slot!r} is at {slot}, behind the position {stored['lsn']}")
        if _number(_one(database, "select pg_current_wal_flush_lsn()")) < place.lsn:
            raise ChangesLost(f"the server has gone back, before the position {stored['lsn']}: was it restored?")
        self._advance(database, place)
        return place

    def _send_new(self, database: psycopg.Connection, transactions: Any, place: Place) -> bool:
        """Send what is new, and move on. Return whether there may be more."""
        passed = self._passed(database)
        with transactions.begin() as transaction:
            self.step("read")
            read = self._send(database, transaction, place)
            if read.reached is None and read.rows < CHANGES_MAX and passed > place.lsn + IDLE_BYTES:
                read.reached = passed
            if read.reached is not None:
                transaction.send(POSITIONS, Place(place.system, read.reached).stored(), key=self.slot)
                self.step("stage")
                transaction.flush()
                self.step("commit")
        if read.reached is not None:
            place.lsn = read.reached
            self.step("committed")
            self._advance(database, place)
            self.step("advanced")
        return read.reached is not None

    def _send(self, database: psycopg.Connection, transaction: Any, place: Place) -> Read:
        """Send the changes of whole transactions. Raises ChangesLost."""
        read, repeated = Read(), False
        self._warnings.clear()
        options = OPTIONS + (("add-tables", self.tables) if self.tables else ())
        query = f"select data from pg_logical_slot_peek_changes(%s, null, %s, {', '.join(['%s'] * len(options))})"
        with database.cursor() as cursor:
            for (data,) in cursor.stream(query, [self.slot, CHANGES_MAX, *options]):
                change = json.loads(data)
                read.rows += 1
                if change["action"] == "B":
                    repeated = _number(change["nextlsn"]) <= place.lsn
                elif change["action"] == "C":
                    read.reached = read.reached if repeated else _number(change["nextlsn"])
                elif change["xid"] is None:  # a message outside of transactions, which are all before it or after it
                    read.reached = max(read.reached or 0, _number(change["lsn"]))
                elif not repeated:
                    transaction.send(self.topic, data, key=key_of(change), tag=tag_of(change))
        if read.reached is not None and read.reached <= place.lsn:
            read.reached = None
        if self._warnings and not self.skip_unidentified:
            raise ChangesLost(f"{'; '.join(self._warnings)}: without a primary key a table needs REPLICA IDENTITY FULL")
        return read

    def _passed(self, database: psycopg.Connection) -> int:
        """Return an end of a record up to which a look from now on shows everything; 0: there is none at present.

        What is flushed may end within a record. A slot that was moved there would never show it.
        """
        inserted = _number(_one(database, "select pg_current_wal_insert_lsn()"))
        flushed = _number(_one(database, "select pg_current_wal_flush_lsn()"))
        return inserted if inserted <= flushed else 0

    def _advance(self, database: psycopg.Connection, place: Place) -> None:
        database.execute("select pg_replication_slot_advance(%s, %s)", [self.slot, _text(place.lsn)])

    def _note(self, notice: Diagnostic) -> None:
        if (notice.message_primary or "").startswith("no tuple identifier"):
            self._warnings.append(notice.message_primary or "")


def key_of(change: dict[str, Any]) -> str | None:
    """Return table and primary key, as they were before the change: so all changes of a row stay in their order."""
    if "table" not in change:
        return None
    row = {column["name"]: column["value"] for name in ("columns", "identity") for column in change.get(name) or ()}
    return json.dumps([tag_of(change), *(row.get(column["name"]) for column in change.get("pk") or ())])


def tag_of(change: dict[str, Any]) -> str:
    return f"{change['schema']}.{change['table']}" if "table" in change else "message"


def _one(database: psycopg.Connection, query: str, *values: object) -> Any:
    found = database.execute(query, values or None).fetchone()
    return None if found is None else found[0]


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("postgres")
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--slot", default="ledgermq", help="lower-case letters, digits and '_'")
    parser.add_argument("--tables", default="")
    parser.add_argument("--skip-unidentified", action="store_true")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    with ledgermq.sync.connect(given.target) as client:
        relay = Relay(client, given.topic, given.slot, given.tables, given.skip_unidentified)
        relay.run(given.postgres, once=given.once)


if __name__ == "__main__":
    main()
