"""Send the changes of a MariaDB database into a topic: each committed change once, in the order of the binary log,
although this program, a broker or the database is killed at any moment.

    pip install "ledgermq[broker]" mysql-replication
    python examples/relays/mariadb_changes.py MARIADB TARGET TOPIC [--name NAME] [--tables LIST] [--once]

MARIADB is like mysql://user:password@localhost. The server needs a binary log with binlog_format=ROW,
binlog_row_image=FULL and binlog_row_metadata=FULL, the user REPLICATION SLAVE and BINLOG MONITOR. TARGET: addresses of
brokers, or the URL of a root. --name: of this relay. --tables: such as shop.orders,shop.items; by default all. --once:
end when all is sent. docs/relays.md says what is promised.

A transaction of MariaDB becomes a transaction in the topic, which also has the position, a GTID: a record of the keyed
topic `relay-positions`. After a crash the log is read from there. The transactional id fences a relay before that
still goes on.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication import event as log_events
from pymysqlreplication import row_event as row_events

import ledgermq.sync
from ledgermq.errors import TransactionAborted, TransactionOutcomeUnknown, Unavailable

POSITIONS = "relay-positions"
CHANGES_MAX = 10_000
"""After so many, a transaction of the topic ends with the transaction of MariaDB."""
IDLE_S = 60.0
"""After so long a position is stored, too, when only other tables have changed: the server may remove old logs."""
PAUSE_S = 0.5
READ_S_MAX = 300.0
TRANSACTION_TIMEOUT = "15m"
NEEDED = {"log_bin": "1", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
PASSING = (0, 1040, 1053, 1927, 2002, 2003, 2006, 2013)
"""Errors of MariaDB and of lost lines: too many connections, a server that stops or is not there, a broken line."""
NO_SUCH_GTID = 1236
REPLACED = "slave with the same"
"""The server's word for a reader whose place another one with its number has taken."""
STANDALONE, XA = 0x01, 0xC0
"""Flags of a group of events: it is one statement without an end; it prepares or ends a distributed transaction."""
STATEMENTS_OF_ROWS = ("insert", "update", "delete", "replace", "load", "with", "call")
ROWS = {
    row_events.WriteRowsEvent: ("I", "", "values"),
    row_events.UpdateRowsEvent: ("U", "before_values", "after_values"),
    row_events.DeleteRowsEvent: ("D", "values", ""),
}
"""By kind of event: the action, and the names of the row before it and after it."""

Step = Callable[[str], None]
"""Called before each step with its name, for tests that end the program there."""


class ChangesLost(Exception):
    """The server no longer has all changes behind the position, or its log has some that are not told by rows."""


class Unsuitable(Exception):
    """The server does not log what is needed."""


class Torn(Exception):
    """A transaction has no end in the log, which goes on behind it: the server crashed while it was written."""

    def __init__(self, gtid: str) -> None:
        super().__init__(f"the server crashed while it wrote {gtid}")
        self.gtid = gtid


@dataclass(slots=True)
class Relay:
    """`tables`: as SCHEMA.TABLE; empty: all. `skip`: GTIDs of transactions to leave out. `server_id`: of a replica,
    which this program is for the server; 0: made of the name.
    """

    client: ledgermq.sync.Client
    topic: str
    name: str = "ledgermq"
    tables: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    server_id: int = 0
    step: Step = lambda _: None
    _place: dict[str, str] = field(default_factory=dict)
    """By domain, the GTID up to which all is in the topic, or concerns other tables."""
    _stored_s: float = 0.0
    _torn: str = ""

    def run(self, address: str, *, once: bool = False) -> None:
        """Relay until interrupted; `once`: until all is sent. After an error that may pass it connects again.

        Raises Unsuitable, ChangesLost; TransactionFenced when another relay has begun with this name; other errors of
        the client, such as UnknownTopic and MessageTooLarge, and of pymysql. The position then stays where it is.
        """
        self.client.create_topic(POSITIONS, 1, {"cleanup.policy": "compact"}, if_not_exists=True)
        server, has_connected = _server(address), False
        while True:
            try:
                with closing(pymysql.connect(**server)) as database:
                    has_connected = True
                    check(database)
                    self._relay(database, server, once=once)
                    return
            except (TransactionAborted, TransactionOutcomeUnknown, Unavailable) as error:
                _say(f"once more, from the position that is stored: {error}")
            except pymysql.err.Error as error:
                code, text = (*error.args, "", "")[:2]
                if code == NO_SUCH_GTID and REPLACED not in text:
                    raise ChangesLost(f"the server does not show what follows {self._position()!r}: {text}") from error
                if not has_connected or code not in (*PASSING, NO_SUCH_GTID):
                    raise
                _say(f"once more, with a new connection: {error}")
            time.sleep(PAUSE_S)

    def _relay(self, database: Any, server: dict[str, Any], *, once: bool) -> None:
        name, end = f"changes-{self.name}", "select @@global.gtid_binlog_pos"
        with self.client.transactions(name, timeout=TRANSACTION_TIMEOUT) as transactions:  # settles what was open
            self._begin(transactions, _one(database, end))
            while True:
                if not self._has_reached(until := _domains(_one(database, end))):
                    try:
                        self._send_new(server, transactions, until)
                    except Torn as error:
                        self._torn = error.gtid
                        _say(f"left out: {error}")
                elif once:
                    return
                else:
                    time.sleep(PAUSE_S)

    def _begin(self, transactions: Any, reached: str) -> None:
        """Take up the position that is stored. Without one, store the end of the log: a crash must not move it."""
        with self.client.table(POSITIONS) as table:
            stored = table.get(self.name)
        self.step("begin")
        self._stored_s = time.monotonic()
        if stored is None:
            self._place = _domains(reached)
            with transactions.begin() as transaction:
                transaction.send(POSITIONS, self._position(), key=self.name)
            return
        self._place, now = _domains(stored.decode()), _domains(reached)
        for domain, gtid in self._place.items():
            if domain not in now or _sequence(now[domain]) < _sequence(gtid):
                raise ChangesLost(f"the server is at {reached!r}, before {gtid}: restored, or another one?")

    def _send_new(self, server: dict[str, Any], transactions: Any, until: dict[str, str]) -> None:
        """Send what is new up to these GTIDs, and move on. Raises Torn, ChangesLost."""
        before, sent = self._place, 0
        self._place = dict(before)
        try:
            with transactions.begin() as transaction:
                self.step("read")
                for gtid, message in self._read(server, until):
                    if message:
                        transaction.send(self.topic, **message)
                        sent += 1
                    else:
                        self._place[gtid.partition("-")[0]] = gtid
                        if sent >= CHANGES_MAX:
                            break
                if sent or (time.monotonic() - self._stored_s >= IDLE_S):
                    transaction.send(POSITIONS, self._position(), key=self.name)
                    self._stored_s = time.monotonic()
                    self.step("stage")
                    transaction.flush()
                    self.step("commit")
        except BaseException:
            self._place = before
            raise
        self._torn = ""
        if sent:
            self.step("committed")

    def _has_reached(self, until: dict[str, str]) -> bool:
        return all(_sequence(self._place.get(domain, "0")) >= _sequence(gtid) for domain, gtid in until.items())

    def _read(self, server: dict[str, Any], until: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each change as a message, and after the last one of a transaction an empty one. Raises Torn."""
        connections = iter(range(2))  # of the log, and of the library's questions; it would go on by itself elsewhere

        def connect(**named: Any) -> Any:
            if next(connections, None) is None:
                raise pymysql.err.OperationalError(2013, "the line broke while the log was read")
            return pymysql.connect(**{"database" if name == "db" else name: value for name, value in named.items()})

        reader = BinLogStreamReader(
            dict(server),
            server_id=self.server_id or 1 + zlib.crc32(self.name.encode()) % (2**32 - 2),
            is_mariadb=True,
            auto_position=self._position(),
            blocking=True,  # else the server closes the line, and resets it: 1.0.17 sends a byte too many
            filter_non_implemented_events=False,
            pymysql_wrapper=connect,
            enable_logging=False,
        )
        with closing(reader):
            yield from self._groups(reader, until)

    def _groups(self, events: Any, until: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        gtid, flags, is_left_out, torn = "", 0, False, self._torn
        for each in events:
            if gtid and isinstance(each, log_events.MariadbGtidEvent | log_events.FormatDescriptionEvent):
                if not is_left_out:
                    raise Torn(gtid)
                gtid = ""
            if isinstance(each, log_events.MariadbGtidEvent):
                gtid, flags = each.gtid, each.flags
                is_left_out = gtid in {torn, *self.skip}
                torn = "" if gtid == torn else torn  # what comes after it with this GTID was committed
                if flags & XA and not is_left_out:
                    raise ChangesLost(f"{gtid} is of a distributed transaction (XA), which cannot be relayed")
            elif gtid:
                if not is_left_out:
                    yield from ((gtid, message) for message in self._messages(gtid, each))
                if isinstance(each, log_events.XidEvent | log_events.XAPrepareEvent) or _ends(each, flags):
                    yield gtid, {}
                    gtid = ""
                    if self._has_reached(until):
                        return
        raise pymysql.err.OperationalError(2013, "the server ended the log before its end")

    def _messages(self, gtid: str, each: Any) -> Iterator[dict[str, Any]]:
        """Yield what an event tells. Raises ChangesLost if it tells a change, and not by rows."""
        about = {"gtid": gtid, "timestamp": each.timestamp}
        if isinstance(each, log_events.NotImplementedEvent | row_events.PartialUpdateRowsEvent):
            raise ChangesLost(f"{gtid} has an event that cannot be read, as with log_bin_compress")
        if isinstance(each, log_events.QueryEvent):
            statement = _bare(each.query)
            if statement.startswith(("rollback", *STATEMENTS_OF_ROWS)):
                raise ChangesLost(f"{gtid} has changes that are not told by rows: {each.query[:200]!r}")
            if statement and not statement.startswith(("commit", "savepoint", "begin")) and not self.tables:
                schema = each.schema.decode()
                change = {"action": "Q", "schema": schema, "statement": each.query} | about
                yield {"value": json.dumps(change), "key": json.dumps([schema]), "tag": "statement"}
        elif type(each) in ROWS and (not self.tables or f"{each.schema}.{each.table}" in self.tables):
            action, before, after = ROWS[type(each)]
            pk = [each.primary_key] if isinstance(each.primary_key, str) else [*each.primary_key]
            for row in each.rows:
                change = {"action": action, "schema": each.schema, "table": each.table} | about
                change |= {"pk": [name for name in pk if name]}
                change |= {"columns": row[after]} if after else {}
                change |= {"identity": row[before]} if before else {}
                if unreadable := _unreadable(row, change):
                    change["unreadable"] = unreadable
                text = json.dumps(change, default=_as_text, ensure_ascii=False)
                yield {"value": text, "key": key_of(change), "tag": f"{each.schema}.{each.table}"}

    def _position(self) -> str:
        return ",".join(self._place.values())


def check(database: Any) -> None:
    """Raise Unsuitable if the server does not log what is needed."""
    for name, needed in NEEDED.items():
        if (found := str(_one(database, f"select @@global.{name}"))) != needed:
            raise Unsuitable(f"the server has {name}={found}, and needs {name}={'ON' if needed == '1' else needed}")


def key_of(change: dict[str, Any]) -> str:
    """Return table and primary key, as they were before the change: so all changes of a row stay in their order."""
    row = change.get("identity") or change["columns"]
    place = [f"{change['schema']}.{change['table']}", *(row.get(name) for name in change["pk"])]
    return json.dumps(place, default=_as_text, ensure_ascii=False)


def _unreadable(row: dict[str, Any], change: dict[str, Any]) -> dict[str, str]:
    """Return the columns that are null for another reason than that they are null. Among them are negative times with
    a fraction, which mysql-replication 1.0.17 takes for others.
    """
    sources = [found for name, found in row.items() if name.endswith("none_sources")]
    unreadable = {column: why for found in sources for column, why in found.items() if why != "null"}
    for values in (change.get("columns", {}), change.get("identity", {})):
        for column, value in values.items():
            if isinstance(value, timedelta) and value < timedelta() and value.microseconds:
                values[column], unreadable[column] = None, "negative time with a fraction"
    return unreadable


def _ends(each: Any, flags: int) -> bool:
    return isinstance(each, log_events.QueryEvent) and bool(flags & STANDALONE or _bare(each.query) == "commit")


def _bare(query: str) -> str:
    """Return a statement in small letters, without comments before it."""
    query = query.lstrip(" \t\r\n(")
    while query.startswith("/*") and not query.startswith(("/*!", "/*m!")):
        query = query.partition("*/")[2].lstrip(" \t\r\n(")
    return "" if query.startswith("#") else query.lower()


def _as_text(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, timedelta):
        sign, micros = ("-" if value < timedelta() else ""), abs(value) // timedelta(microseconds=1)
        seconds, micros = divmod(micros, 1_000_000)
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    if isinstance(value, Decimal | datetime | date):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no type of MariaDB")


def _domains(position: str) -> dict[str, str]:
    return {gtid.partition("-")[0]: gtid for gtid in position.split(",") if gtid}


def _sequence(gtid: str) -> int:
    return int(gtid.rpartition("-")[2])


def _server(address: str) -> dict[str, Any]:
    url = urlsplit(address)
    if url.scheme != "mysql" or not url.hostname:
        raise ValueError(f"{address!r} is not like mysql://user:password@host")
    user, password = unquote(url.username or ""), unquote(url.password or "")
    times = {"connect_timeout": 30, "read_timeout": READ_S_MAX}
    return {"host": url.hostname, "port": url.port or 3306, "user": user, "password": password} | times


def _one(database: Any, query: str) -> Any:
    with database.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    for name in ("mariadb", "target", "topic"):
        parser.add_argument(name)
    parser.add_argument("--name", default="ledgermq")
    parser.add_argument("--tables", default="")
    parser.add_argument("--skip", default="", help="GTIDs of transactions to leave out")
    parser.add_argument("--server-id", type=int, default=0, help="of this replica, other than of each server")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    tables, skip = (frozenset(filter(None, text.split(","))) for text in (given.tables, given.skip))
    with ledgermq.sync.connect(given.target) as client:
        Relay(client, given.topic, given.name, tables, skip, given.server_id).run(given.mariadb, once=given.once)


if __name__ == "__main__":
    main()
