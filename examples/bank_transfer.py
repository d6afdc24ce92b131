"""Move money in PostgreSQL and send an event to LedgerMQ: both or neither, even if this program, a
broker or the database is killed at any moment.

    pip install "ledgermq[broker]" "psycopg[binary]"
    python examples/bank_transfer.py POSTGRES [LEDGERMQ]

POSTGRES is like postgresql://user@localhost/bank; the server needs max_prepared_transactions above 0.
LEDGERMQ is by default the folder ./ledgermq-example, for which the program starts its own broker;
with running brokers, pass their addresses instead. Kill the program at any time, and start it again:
it first ends the transfers that it had begun. docs/two-phase-commit.md explains the steps: PostgreSQL
is prepared, then LedgerMQ's commit decides.
"""

from __future__ import annotations

import json
import random
import sys
import uuid
from pathlib import Path

import psycopg

import ledgermq
from ledgermq.sync import Client, TwoPhase

FORMAT = 2026
"""Marks the transactions of this program; other programs may use the same servers."""
TOPIC = "transfers"
ACCOUNTS = ("ada", "bob", "eve")
START_BALANCE = 1000
TRANSFERS = 20


def create(database: psycopg.Connection) -> None:
    database.execute("create table if not exists accounts (name text primary key, balance int not null)")
    for name in ACCOUNTS:
        database.execute("insert into accounts values (%s, %s) on conflict do nothing", [name, START_BALANCE])
    database.commit()


def transfer(
    client: Client, branch: TwoPhase, database: psycopg.Connection, payer: str, payee: str, amount: int
) -> None:
    """Move money. After an exception, `recover` finds out whether it was moved, and finishes it."""
    xid = database.xid(FORMAT, str(uuid.uuid4()), "")
    branch.tpc_begin(xid)  # in LedgerMQ first: from now on, `outcome` knows the transfer
    database.tpc_begin(xid)
    database.execute("update accounts set balance = balance - %s where name = %s", [amount, payer])
    database.execute("update accounts set balance = balance + %s where name = %s", [amount, payee])
    branch.send(TOPIC, json.dumps({"from": payer, "to": payee, "amount": amount}), key=xid.gtrid)
    database.tpc_prepare()
    branch.tpc_commit()  # the commit point
    database.tpc_commit()
    client.transactions.forget(xid)


def recover(client: Client, database: psycopg.Connection) -> int:
    """Ask LedgerMQ about each transfer that is prepared in PostgreSQL; return how many there were."""
    prepared = [xid for xid in database.tpc_recover() if xid.format_id == FORMAT]
    for xid in prepared:
        if client.transactions.outcome(xid).committed:  # this question aborts an undecided transaction
            database.tpc_commit(xid)
        else:
            database.tpc_rollback(xid)
        client.transactions.forget(xid)
    return len(prepared)


def check(client: Client, database: psycopg.Connection) -> int:
    """Compare each balance with the events of the topic; return how many events there are."""
    expected = dict.fromkeys(ACCOUNTS, START_BALANCE)
    events = 0
    with client.consumer(TOPIC, start="earliest", until_end=True) as consumer:
        for message in consumer:
            event = json.loads(message.value or b"")
            expected[event["from"]] -= event["amount"]
            expected[event["to"]] += event["amount"]
            events += 1
    balances: dict[str, int] = dict(database.execute("select name, balance from accounts").fetchall())
    database.rollback()
    assert balances == expected, f"accounts {balances}, by events {expected}"
    return events


def main(address: str, target: str) -> None:
    with ledgermq.sync.connect(target) as client, psycopg.connect(address) as database:
        client.create_topic(TOPIC, partitions=3, if_not_exists=True)
        print(f"recovered {recover(client, database)} transfers", flush=True)
        create(database)
        with client.transactions.two_phase() as branch:
            for number in range(1, TRANSFERS + 1):
                payer, payee = random.sample(ACCOUNTS, 2)
                amount = random.randint(1, 50)
                transfer(client, branch, database, payer, payee, amount)
                print(f"{number}: {payer} pays {amount} to {payee}", flush=True)
        print(f"{check(client, database)} events, and the balances agree")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/bank_transfer.py POSTGRES [LEDGERMQ]")
    GIVEN = sys.argv[2] if len(sys.argv) > 2 else "ledgermq-example"
    IS_ADDRESS = "://" in GIVEN or ":" in GIVEN
    main(sys.argv[1], GIVEN if IS_ADDRESS else Path(GIVEN).absolute().as_uri())
