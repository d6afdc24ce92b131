"""Two-phase commit without asyncio, in a cluster of this process."""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.sync import Client
from tests.waiting import wait_until


def values(client: Client) -> list[bytes | None]:
    with client.consumer("t", start="earliest", until_end=True) as consumer:
        return sorted(message.value or b"" for message in consumer)


def test_prepare_recover_commit_and_roll_back() -> None:
    with ledgermq.sync.connect("memory://sync-two-phase") as client:
        client.create_topic("t", 2)
        with client.transactions.two_phase(timeout="1m") as branch:
            for name in ("one", "two"):
                branch.tpc_begin(branch.xid(1, name))
                delivery = branch.send("t", name.encode())
                branch.send_many("t", [b"more"])
                branch.tpc_prepare()
                assert delivery.result(60).offset is None
                with pytest.raises(errors.TransactionError):
                    branch.send("t", b"late")
                if name == "two":
                    branch.tpc_rollback()
                else:
                    client.transactions.two_phase().close()  # of another object: it ends nothing here
                    [found] = branch.tpc_recover()
                    assert found == ledgermq.Xid(1, "one", "")
                    branch.tpc_commit(found)
            branch.tpc_begin("three")
            branch.send("t", b"three")
            branch.tpc_commit()
            branch.tpc_begin("four")
            lost = branch.send("t", b"four")
        assert branch.closed
        with pytest.raises(errors.LedgerMQError):
            lost.result(60)
        states = [client.transactions.outcome(name).state for name in (found, "xid.1.two.", "three", "four")]
        assert states == ["committed", "aborted", "committed", "aborted"]
        wait_until(lambda: values(client) == [b"more", b"one", b"three"])
        client.transactions.forget(found)
        with pytest.raises(errors.TransactionUnknown):
            client.transactions.outcome(found)
        with client.transactions("billing-7") as transactions, transactions.begin() as transaction:
            name = transaction.name
        assert client.transactions.outcome(name).committed


def test_a_record_without_a_transaction_is_refused_where_it_is_sent() -> None:
    with ledgermq.sync.connect("memory://sync-two-phase-refused") as client:
        branch = client.transactions.two_phase(when_full="fail")
        with pytest.raises(errors.TransactionError, match="tpc_begin"):
            branch.send("t", b"early")
        with pytest.raises(errors.InvalidRequest, match="64 bytes"):
            branch.tpc_begin(branch.xid(1, "x" * 65))
        with pytest.raises(errors.InvalidConfig):
            client.transactions.two_phase(acks="received")
