"""Attack transactions where those of others broke: a bug between two states of one decision, damaged
partitions that a transaction names, producers that were never initialized, and limits that are reached in
the middle; in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import DataDamaged, InvalidRequest, LedgerMQError, TransactionFenced, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_broker.transactions.participating.staged_log import StagedLog
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.routing.routed import partition_of
from ledgermq_broker.transactions.state.limits import EPOCH_MAX, NUMBER_MAX
from ledgermq_broker.transactions.state.types import Reference
from ledgermq_ledger import keys
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.segments.segment import Batch
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask, committed_offset
from tests.broker.test_group_faults import coordinator
from tests.broker.transaction_calls import Producer, beginner, constants_of, served
from tests.waiting import until

BUNDLES = {"bundles": 4}


def staged_batches(cluster: Cluster) -> int:
    return sum(found.participant.staged_batches for found in served(cluster).values())


@pytest.mark.parametrize("error", [RuntimeError("a bug"), Unavailable("a bug"), DataDamaged("a bug")], ids=repr)
@pytest.mark.parametrize("outcome", [pb.COMMITTED, pb.ABORTED])
def test_an_error_after_the_decision_loses_neither_copies_nor_offsets(
    outcome: pb.TransactionState, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the bundle has changed, and so has that of the group, when the group's part fails:
    both are ahead of their log.
    """
    failures = [error]
    real = PartitionCoordinator.settle_pending

    def settle_and_fail(self: PartitionCoordinator, *arguments: object) -> list[LogRecord]:
        records = real(self, *arguments)  # type: ignore[arg-type]
        if records and failures:
            raise failures.pop()
        return records

    monkeypatch.setattr(PartitionCoordinator, "settle_pending", settle_and_fail)

    @in_cluster("a:1", **BUNDLES)
    async def run(cluster: Cluster) -> None:
        await cluster.create("in", 1)
        await cluster.create("out", 3)
        await cluster.produce("in", 0, b"a", b"b")
        producer = await beginner(cluster, "copy")
        for partition in range(3):
            await producer.send("out", partition, b"A")
        assert await producer.stage_offset("g", "in", 0, 2) == ""
        await producer.end(outcome)
        await producer.completed()
        assert not failures
        await cluster.stop("a:1", graceful=False)
        await cluster.start("b:1")
        is_commit = outcome == pb.COMMITTED
        await until(lambda: is_free(cluster, "g", "in"), 60)
        assert await committed_offset(cluster, "g", "in", 0) == (2 if is_commit else None)
        expected = [b"A"] if is_commit else []
        assert [await cluster.read_all("out", partition) for partition in range(3)] == [expected] * 3
        await until(lambda: not staged_batches(cluster), 60)

    run()


async def is_free(cluster: Cluster, group: str, topic: str) -> bool:
    try:
        await committed_offset(cluster, group, topic, 0)
    except LedgerMQError:
        return False
    return True


async def damage_group(cluster: Cluster, group: str) -> None:
    """Leave a record that no release has written in the group's partition, and load it again."""
    found = coordinator(cluster, "a:1", group)
    assert found is not None
    found._state._log.append({found._place: [LogRecord(b"no such key", b"")]})
    await found._state.durable()
    found._state.broken(RuntimeError("loaded again"))
    await until(lambda: cluster.brokers["a:1"].internal.refused(keys.OFFSETS_TOPIC))


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_an_abort_passes_a_damaged_group_and_a_commit_can_be_given_up(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.create("out", 3)
    await cluster.produce("in", 0, b"a", b"b")
    aborted, committed = await beginner(cluster, "aborted"), await beginner(cluster, "committed")
    for producer, partition in ((aborted, 0), (committed, 1)):
        await producer.send("out", partition, b"A")
    assert await aborted.stage_offset("g", "in", 0, 2) == ""
    for bundle in aborted.parts:
        if aborted.parts[bundle].groups:
            committed.parts.setdefault(bundle, pb.TransactionPart(bundle=bundle)).groups.append("g")
            damaged = bundle
    await damage_group(cluster, "g")
    await aborted.abort()
    await committed.commit()
    await aborted.completed(60)
    aborted.begin()
    await aborted.send("out", 0, b"B")
    await aborted.commit()
    await aborted.completed(60)
    assert await cluster.read_all("out", 0) == [b"B"]

    async def is_missing() -> bool:
        request = pb.DescribeTransactionRequest(transactional_id="committed")
        info = (await ask(cluster, lambda line: line.describe_transaction(request))).transaction
        return list(info.missing) == [damaged] and bool(info.trouble)

    await until(is_missing, 60)
    request = pb.ResolveTransactionRequest(transactional_id="committed", resolution=pb.GIVE_UP, bundle=damaged)
    assert (await ask(cluster, lambda line: line.resolve_transaction(request))).transaction.complete
    await until(lambda: not staged_batches(cluster), 60)


@in_cluster("a:1", "b:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_what_no_producer_could_commit_is_dropped(cluster: Cluster) -> None:
    """An id that was never initialized, a producer that another id has, and an epoch and numbers that were
    never begun: none of it stays, and the id itself goes on.
    """
    await cluster.create("t", 3)
    honest = await beginner(cluster, "orders", timeout_ms=1000)
    for partition in range(3):  # so that the bundles know the producer
        await honest.send("t", partition, b"first")
    await honest.commit()
    await honest.completed()
    honest.begin()
    forged = [Producer(cluster, "orders") for _ in range(5)]
    for producer in forged:
        producer.ref.CopyFrom(honest.ref)
    forged[0].ref.epoch, forged[0].ref.number = EPOCH_MAX, NUMBER_MAX
    forged[1].ref.epoch += 1
    forged[2].ref.producer_id = bytes(16)
    forged[3].ref.transactional_id = "never"
    forged[3].ref.coordinator = partition_of("never", cluster.brokers["a:1"].metadata.catalog.living("__transactions"))
    forged[4].ref.number = NUMBER_MAX
    with pytest.raises(InvalidRequest, match="a producer id of another transactional id"):
        await forged.pop(3).send("t", 0, b"forged")
    for producer in forged:
        for partition in range(3):
            await producer.send("t", partition, b"forged")
    assert staged_batches(cluster) == 12
    await until(lambda: not staged_batches(cluster), 60)
    honest = await beginner(cluster, "orders")
    for partition in range(3):
        await honest.send("t", partition, b"x")
    await honest.commit()
    await honest.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"first", b"x"]] * 3


def under_another_id(cluster: Cluster, victim: Producer, name: str) -> Producer:
    """Return a producer that names the producer id of `victim` beside a transactional id of its own."""
    thief = Producer(cluster, name)
    thief.ref.CopyFrom(victim.ref)
    thief.ref.transactional_id = name
    thief.ref.coordinator = partition_of(name, cluster.brokers["a:1"].metadata.catalog.living("__transactions"))
    return thief


@pytest.mark.parametrize("comes_first", [True, False])
@in_cluster("a:1", "b:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_another_id_beside_a_producer_id_drops_nothing_of_its_owner(cluster: Cluster, comes_first: bool) -> None:
    """The question about the false id is answered "aborted", which dropped everything that the producer had
    staged; its commit was then answered COMMITTED, and its records were lost.
    """
    await cluster.create("in", 1)
    await cluster.create("t", 3)
    await cluster.produce("in", 0, b"a", b"b")
    await beginner(cluster, "mine")
    victim = await beginner(cluster, "victim")
    thief = under_another_id(cluster, victim, "mine")
    if not comes_first:
        await victim.send("t", 0, b"credit")
    sent = asyncio.gather(
        *(thief.send("t", partition, b"junk") for partition in range(3)),
        *(thief.stage_offset(group, "in", 0, 1) for group in "gh"),
        return_exceptions=True,
    )
    await asyncio.sleep(0.5)
    if comes_first:
        await victim.send("t", 0, b"credit")
    await victim.send("t", 1, b"debit")
    async with asyncio.timeout(60):
        while await victim.stage_offset("g", "in", 0, 2):  # the offsets of the thief are pending
            victim.tokens.clear()  # the member reads again what is committed
            await asyncio.sleep(0.2)
    await asyncio.sleep(10)  # questions are asked, and answered
    assert await victim.commit() == pb.COMMITTED
    await victim.completed()
    await asyncio.sleep(5)
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"credit"], [b"debit"], []]
    assert await committed_offset(cluster, "g", "in", 0) == 2
    await sent
    await until(lambda: not staged_batches(cluster), 60)


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_answers_show_no_producer_id_that_a_call_accepts(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.create("t", 1)
    await cluster.produce("in", 0, b"a")
    victim = await beginner(cluster, "victim")
    await victim.send("t", 0, b"x")
    assert await victim.stage_offset("g", "in", 0, 1) == ""
    shown = shown_producer_id(victim.ref.producer_id)
    described = await ask(cluster, lambda line: line.describe_group(pb.DescribeGroupRequest(group="g")))
    [pending] = described.group.pending
    listed = [
        await ask(cluster, lambda line, at=at: line.list_transactions(pb.ListTransactionsRequest(partition=at)))  # type: ignore[misc]
        for at in range(3)
    ]
    staged = [info.transaction for answer in listed for info in (*answer.staged, *answer.transactions)]
    assert {ref.producer_id for ref in [pending.transaction, *staged]} == {shown}
    assert shown != victim.ref.producer_id
    assert len(shown) == len(victim.ref.producer_id)
    thief = Producer(cluster, "victim")
    thief.ref.CopyFrom(pending.transaction)
    with pytest.raises(TransactionFenced):
        await thief.end(pb.ABORTED)
    await victim.commit()
    await victim.completed()
    assert await cluster.read_all("t", 0) == [b"x"]


@in_cluster("a:1", constants=constants_of(carry_after_ms=2000, carry_slots=5), **BUNDLES)
async def test_a_damaged_batch_does_not_keep_others_from_being_carried_forward(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1)
    damaged, sound = (
        await beginner(cluster, "one", kind=pb.TWO_PHASE),
        await beginner(cluster, "two", kind=pb.TWO_PHASE),
    )
    for producer in (damaged, sound):
        await producer.send("t", 0, b"x")
        assert await producer.end(pb.PREPARED) == pb.PREPARED
    found = served(cluster)[topic.partitions[0].bundle]
    real = found._staged.read

    async def read(references: Sequence[Reference]) -> list[Batch]:
        if references[0].offset == 0:
            raise DataDamaged("the segment of the first batch cannot be read")
        return await real(references)

    found._staged.read = read  # type: ignore[method-assign]

    async def is_carried() -> bool:
        await cluster.produce("t", 0, b"plain")
        info = sorted(reference.offset for reference in references_of(found))
        return info[0] == 0 and info[1] > 1

    await until(is_carried, 120, every_s=1)


def references_of(found: TransactionPartition) -> list[Reference]:
    return [
        reference
        for staged in found.participant._state.all()
        for value in staged.records.values()
        for reference in value.references
    ]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_topic_that_is_removed_while_its_copies_are_read_holds_up_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create("gone", 1)
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    await producer.send("gone", 0, b"y")
    for partition in range(3):
        await producer.send("t", partition, b"x")
    real = StagedLog.read
    removed: list[str] = []

    async def read(self: StagedLog, references: Sequence[Reference]) -> list[Batch]:
        batches = await real(self, references)
        if not removed:
            removed.append("gone")
            await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="gone")))
            await asyncio.sleep(3)
        return batches

    monkeypatch.setattr(StagedLog, "read", read)
    await producer.commit()
    await producer.completed(120)
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"x"]] * 3
    await until(lambda: is_created(cluster, "gone"), 300, every_s=1)
    assert await cluster.read_all("gone", 0) == []


async def is_created(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.create(name, 1)
    except LedgerMQError:
        return False
    return True
