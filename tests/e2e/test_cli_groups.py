"""The command line against a real broker process: groups, transactions, unresolved messages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import ledgermq.sync
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.e2e.shell import Shell, shell_beside_a_broker
from tests.waiting import wait_until

shell = pytest.fixture(scope="module")(shell_beside_a_broker)


@pytest.mark.slow
def test_a_group_from_its_first_message_to_its_deletion(shell: Shell, tmp_path: Path) -> None:
    shell.json("topic", "create", "grouped", "--partitions", 2)
    assert shell("produce", "grouped", stdin="\n".join(f"m{number}" for number in range(10)) + "\n").code == 0
    assert sorted(shell("consume", "grouped", "--group", "g", "--until-end").out.split()) == [
        f"m{number}" for number in range(10)
    ]
    assert shell("consume", "grouped", "--group", "g", "--until-end").out == ""
    assert "g" in [group["group"] for group in shell.json("group", "list")["groups"]]
    described = shell.json("group", "describe", "g")
    assert (described["state"], described["lag"]) == ("empty", 0)
    assert sum(row["committed"] for row in described["offsets"]) == 10
    assert "--dry-run" in shell("group", "reset", "g", "--to", "earliest", "--dry-run").err
    assert shell.json("group", "describe", "g")["lag"] == 0
    assert sum(row["after"] for row in shell.json("group", "reset", "g", "--to", "1h", "--yes")["resets"]) == 0
    assert shell.json("group", "describe", "g")["lag"] == 10
    file = tmp_path / "offsets.json"
    assert shell("group", "reset", "g", "--to", "latest", "--yes").code == 0
    assert shell("group", "export", "g", file).code == 0
    assert shell("group", "import", "copy", file).code == 0
    assert shell.json("group", "describe", "copy")["lag"] == 0
    assert shell("group", "delete", "g", "--yes").code == 0
    groups = [group["group"] for group in shell.json("group", "list")["groups"]]
    assert ("copy" in groups, "g" in groups) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["describe", "nobody"], 4, "UNKNOWN_GROUP"),
        (["delete", "nobody", "--yes"], 4, "UNKNOWN_GROUP"),
        (["describe", "a/b"], 2, "INVALID_GROUP_NAME"),
        (["reset", "nobody"], 2, "--to, --shift and --like"),
        (["reset", "nobody", "--to", "earliest", "--shift", "1"], 2, "--to, --shift and --like"),
        (["reset", "nobody", "--to", "someday"], 2, "--to 'someday'"),
        (["reset", "nobody", "--to", "earliest"], 4, "UNKNOWN_GROUP"),
        (["reset", "nobody", "--to", "earliest", "--partition", "t"], 2, "TOPIC:N"),
        (["reset", "nobody", "--to", "earliest", "--topic", "none"], 4, "UNKNOWN_TOPIC"),
        (
            ["reset", "nobody", "--to", "earliest", "--partition", "parted:99"],
            4,
            "topic 'parted' has partitions 0 to 0, not 99",
        ),
        (["import", "nobody", "/nowhere"], 2, "/nowhere"),
        (["import", "nobody", "/dev/null"], 2, "/dev/null"),
    ],
)
def test_bad_group_commands(shell: Shell, arguments: list[str], code: int, text: str) -> None:
    shell("topic", "create", "parted", "--partitions", 1, "--if-not-exists")
    done = shell("group", *arguments)
    assert done.code == code, done.err
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_group_keeps_the_place_itself(shell: Shell) -> None:
    shell.json("topic", "create", "placed")
    done = shell("consume", "placed", "--group", "g9", "--partition", 0)
    assert done.code == 2
    assert "group reset" in done.err


@pytest.mark.slow
def test_transactions_are_listed_resolved_and_forgotten(shell: Shell) -> None:
    assert shell("transaction", "list").err == "No transaction is open.\n"
    with ledgermq.sync.connect(shell.address) as client, client.transactions("billing-7") as transactions:
        with transactions.begin() as transaction:
            transaction.send("invoices", b"x")
        with transactions.begin() as transaction:
            transaction.send("invoices", b"y")
            transaction.flush()
            found = shell.json("transaction", "list", "--staged")
            assert [(row["id"], row["number"], row["batches"], row["bundle"] > 0) for row in found["staged"]] == [
                ("billing-7", 2, 1, True)
            ]
            transaction.abort()
    prepare(shell.address, "payment-1", "payment-2")
    rows = shell.json("transaction", "list")["transactions"]
    assert [(row["id"], row["kind"], row["state"]) for row in rows] == [
        (f"payment-{number}", "two_phase", "prepared") for number in (1, 2)
    ]
    listed = shell("transaction", "list", "--all")
    assert all(text in listed.out for text in ("billing-7", "ordinary", "aborted", "payment-2", "prepared"))
    described = shell.json("transaction", "describe", "payment-1")
    assert (described["state"], described["coordinator"], described["staged"]) == ("prepared", shell.address, [])
    asked = shell("transaction", "commit", "payment-1", stdin="n\n")
    assert (asked.code, "heuristic decision" in asked.err, "database" in asked.err) == (1, True, True)
    assert shell.json("transaction", "commit", "payment-1", "--yes")["state"] == "committed_by_operator"
    assert shell("transaction", "abort", "payment-2", stdin="y\n").code == 0
    assert shell.json("transaction", "list")["transactions"] == []
    lost = shell("transaction", "give-up", "payment-1", "--bundle", 1, stdin="y\n")
    assert (lost.code, "DATA WILL BE LOST" in lost.err, "not incomplete in bundle 1" in lost.err) == (2, True, True)
    for name in ("payment-1", "payment-2"):
        assert shell("transaction", "forget", name, "--yes").code == 0
    gone = shell("transaction", "describe", "payment-1")
    assert (gone.code, "TRANSACTION_UNKNOWN" in gone.err, "transaction list --all" in gone.err) == (4, True, True)
    refused = shell("transaction", "abort", "two words", "--yes")
    assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True)


@pytest.mark.slow
def test_unresolved_messages_are_listed_shown_published_and_dropped(shell: Shell) -> None:
    """The copies are written here as brokers write them, so no coordinator knows of their ids."""
    assert shell("transaction", "unresolved", "list").err == "No unresolved message waits for a decision.\n"
    shell.json("topic", "create", "orders", "--partitions", 2)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number in range(4):
            added = {"transactional-id": f"order-{number}", "topic": "orders", "partition": "1", "checks": "15"}
            headers = {"mine": "x", **{f"half.{name}": value for name, value in added.items()}}
            producer.send("shops.unresolved", f"coffee {number}", key=f"k{number}", headers=headers)
    rows = shell.json("transaction", "unresolved", "list")["messages"]
    assert [(row["group"], row["id"], row["topic"], row["partition"], row["key"], row["checks"]) for row in rows] == [
        ("shops", f"order-{number}", "orders", 1, f"k{number}", 15) for number in range(4)
    ]
    shown = json.loads(shell("transaction", "unresolved", "show", "shops", "order-1").out)
    assert (shown["value"], shown["offset"]) == ("coffee 1", 1)
    kept = shell("transaction", "unresolved", "commit", "shops", "order-1", "--unverified", stdin="n\n")
    assert (kept.code, "Publish 1 unresolved messages of shops (order-1)?" in kept.err) == (1, True)
    done = shell("transaction", "unresolved", "commit", "shops", "order-1", "order-2", "--unverified", "--yes")
    assert (done.code, "2 unresolved messages of shops are published." in done.err) == (0, True)
    assert shell("transaction", "unresolved", "rollback", "shops", "--all", stdin="y\n").code == 0
    # a commit shows a moment after its command
    wait_until(lambda: shell.json("transaction", "unresolved", "list", "shops")["messages"] == [])
    decided = shell.json("transaction", "unresolved", "list", "--all")["messages"]
    assert [row["decision"] for row in decided] == ["rollback", "commit", "commit", "rollback"]
    for wrong in (["commit", "shops", "order-0"], ["commit", "shops", "order-9"], ["rollback", "shops"]):
        refused = shell("transaction", "unresolved", *wrong, "--yes")
        assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True)
    read = ("consume", "orders", "--until-end", "--format", "jsonl")
    wait_until(lambda: len(shell(*read).out.splitlines()) >= 2)
    rows = [json.loads(line) for line in shell(*read).out.splitlines()]
    assert [(row["partition"], row["key"], row["value"]) for row in rows] == [
        (1, f"k{number}", f"coffee {number}") for number in (1, 2)
    ]
    assert [[header["key"] for header in row["headers"]] for row in rows] == [["mine"], ["mine"]]


def prepare(address: str, *names: str) -> None:
    """Prepare two-phase transactions without records, as a transaction manager does."""

    async def call() -> None:
        line = GrpcConnector(request_timeout_s=10).connect(address)
        for name in names:
            begun = await line.init_transactions(pb.InitTransactionsRequest(transactional_id=name, kind=pb.TWO_PHASE))
            ref = pb.TransactionRef(transactional_id=name, coordinator=begun.coordinator, number=1)
            ref.producer_id, ref.epoch = begun.producer_id, begun.epoch
            await line.end_transaction(pb.EndTransactionRequest(transaction=ref, outcome=pb.PREPARED))
        await line.close()

    asyncio.run(call())
