"""A program that moves money: it debits an account in PostgreSQL and sends an event to LedgerMQ, both
or neither. A test stops it before each step.

`python -m tests.real.transfer_program WAY LEDGERMQ POSTGRES TRANSFER` makes one transfer. Before
each step it prints the step's name and waits for a line. `recover_xids` and `recover_names` end what
a process has left. WAY is how the two agree:

two_phase   both are prepared; LedgerMQ's commit is the commit point
one_phase   PostgreSQL is prepared; LedgerMQ's commit in one phase is the commit point
ordinary    as one_phase, with transactions of one id; the name of each is stored in PostgreSQL
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress

import psycopg

from ledgermq.errors import TransactionError
from ledgermq.sync import Client, connect

FORMAT = 17
TOPIC = "transfers"
AMOUNT = 10
PRODUCER = "transfers-1"
STEPS = {
    "two_phase": (
        "begin in LedgerMQ",
        "debit",
        "send",
        "prepare PostgreSQL",
        "prepare LedgerMQ",
        "commit LedgerMQ",
        "commit PostgreSQL",
        "forget",
        "end",
    ),
    "one_phase": (
        "begin in LedgerMQ",
        "debit",
        "send",
        "prepare PostgreSQL",
        "commit LedgerMQ",
        "commit PostgreSQL",
        "forget",
        "end",
    ),
    "ordinary": (
        "begin in LedgerMQ",
        "debit",
        "send",
        "prepare PostgreSQL",
        "commit LedgerMQ",
        "commit PostgreSQL",
        "end",
    ),
}
"""By way."""
LAST_UNDONE = {"two_phase": "prepare LedgerMQ", "one_phase": "commit LedgerMQ", "ordinary": "commit LedgerMQ"}
"""By way, the last step before which a death undoes the transfer."""

Step = Callable[[str], None]


def debit(database: psycopg.Connection, transfer: str) -> None:
    database.execute("update accounts set balance = balance - %s where name = 'ada'", [AMOUNT])
    database.execute("insert into transfers values (%s)", [transfer])


def with_xid(client: Client, database: psycopg.Connection, transfer: str, step: Step, *, one_phase: bool) -> None:
    xid = database.xid(FORMAT, transfer, "")
    with client.transactions.two_phase() as branch:
        step("begin in LedgerMQ")
        branch.tpc_begin(xid)
        step("debit")
        database.tpc_begin(xid)
        debit(database, transfer)
        step("send")
        branch.send(TOPIC, b"%d" % AMOUNT, key=transfer)
        step("prepare PostgreSQL")
        database.tpc_prepare()
        if not one_phase:
            step("prepare LedgerMQ")
            branch.tpc_prepare()
        step("commit LedgerMQ")
        branch.tpc_commit()
        step("commit PostgreSQL")
        database.tpc_commit()
        step("forget")
        client.transactions.forget(xid)
        step("end")


def with_name(client: Client, database: psycopg.Connection, transfer: str, step: Step) -> None:
    recover_names(client, database)  # before the id begins its next epoch
    step("begin in LedgerMQ")
    with client.transactions(PRODUCER) as transactions, transactions.begin() as transaction:
        step("debit")
        database.tpc_begin(transaction.name)
        debit(database, transfer)
        step("send")
        transaction.send(TOPIC, b"%d" % AMOUNT, key=transfer)
        step("prepare PostgreSQL")
        database.tpc_prepare()
        step("commit LedgerMQ")
        transaction.commit()
        step("commit PostgreSQL")
        database.tpc_commit()
        step("end")


def recover_xids(client: Client, database: psycopg.Connection) -> None:
    """Where LedgerMQ has committed, PostgreSQL commits; what is prepared in both is committed, too."""
    with client.transactions.two_phase() as branch:
        prepared = [xid for xid in branch.tpc_recover() if xid.format_id == FORMAT]
        for xid in database.tpc_recover():
            outcome = client.transactions.outcome(xid)  # what is neither prepared nor committed is rolled back
            if outcome.state == "prepared":
                branch.tpc_commit(xid)
            if outcome.committed or outcome.state == "prepared":
                database.tpc_commit(xid)
            else:
                database.tpc_rollback(xid)
            client.transactions.forget(xid)
        for xid in prepared:  # of those that are left, PostgreSQL was not prepared, or has rolled back
            with suppress(TransactionError):  # it was ended above
                branch.tpc_rollback(xid)


def recover_names(client: Client, database: psycopg.Connection) -> None:
    for xid in database.tpc_recover():
        if client.transactions.outcome(xid.gtrid).committed:
            database.tpc_commit(xid)
        else:
            database.tpc_rollback(xid)


def ask(step: str) -> None:
    print(step, flush=True)
    sys.stdin.readline()


def main(way: str, target: str, address: str, transfer: str) -> None:
    with connect(target, timeout_s=60) as client, closing(psycopg.connect(address)) as database:
        if way == "ordinary":
            with_name(client, database, transfer, ask)
        else:
            with_xid(client, database, transfer, ask, one_phase=way == "one_phase")


if __name__ == "__main__":
    main(*sys.argv[1:])
