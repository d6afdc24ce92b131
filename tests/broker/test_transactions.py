"""Check commits and aborts of transactions through the brokers' services, without the client."""

from __future__ import annotations

import pytest

from ledgermq.errors import TransactionAborted, TransactionFenced
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.counts import TransactionCounts
from ledgermq_broker.transactions.state.types import State
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import (
    Producer,
    beginner,
    code_of,
    coordinator_bundle,
    served,
    stage_frame,
    stage_once,
)
from tests.broker.transaction_looks import BUNDLES, is_served
from tests.waiting import until


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_commit_over_three_bundles_shows_all_and_an_abort_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    for partition in range(3):
        await producer.send("t", partition, b"a%d" % partition)
        await producer.send("t", partition, b"b%d" % partition)
    assert len(producer.parts) == 3
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[], [], []]
    assert await producer.commit() == pb.COMMITTED
    await producer.completed()
    expected = [[b"a%d" % partition, b"b%d" % partition] for partition in range(3)]
    assert [await cluster.read_all("t", partition) for partition in range(3)] == expected
    producer.begin()
    for partition in range(3):
        await producer.send("t", partition, b"never")
    assert await producer.abort() == pb.ABORTED
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == expected
    assert all(not found.participant.staged_bytes for found in served(cluster).values())


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_the_process_of_an_older_epoch_is_fenced_and_leaves_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    zombie = await beginner(cluster, "orders")
    await zombie.send("t", 0, b"old")
    newer = await beginner(cluster, "orders")
    assert newer.ref.epoch == zombie.ref.epoch + 1
    assert newer.ref.producer_id == zombie.ref.producer_id
    with pytest.raises(TransactionFenced):
        await zombie.commit()
    await newer.send("t", 0, b"new")
    await newer.commit()
    await newer.completed()
    assert await cluster.read_all("t", 0) == [b"new"]
    with pytest.raises(TransactionAborted):
        await zombie.send("t", 0, b"late")
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 0


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_an_end_may_be_repeated_and_never_changes(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    assert [await producer.commit() for _ in range(3)] == [pb.COMMITTED] * 3
    assert await producer.abort() == pb.COMMITTED
    await producer.completed()
    producer.begin()
    await producer.send("t", 0, b"y")
    assert [await producer.abort() for _ in range(2)] == [pb.ABORTED] * 2
    with pytest.raises(TransactionAborted):
        await producer.commit()
    assert await cluster.read_all("t", 0) == [b"x"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_batch_whose_answer_was_lost_is_staged_once(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.stage("t", 0, 0, b"x")
    assert await code_of(lambda: producer.stage("t", 0, 0, b"other")) == "TRANSACTION_ABORTED"
    assert await code_of(lambda: producer.stage("t", 0, 2, b"gap")) == "OUT_OF_ORDER_SEQUENCE"
    await producer.commit()
    await producer.completed()
    assert await cluster.read_all("t", 0) == [b"x"]
    assert await code_of(lambda: producer.stage("t", 0, 1, b"late")) == "TRANSACTION_ABORTED"


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_of_a_frame_each_bundle_is_judged_by_itself(cluster: Cluster) -> None:
    """A gap in one partition does not hold up another one, and each result names its bundle."""
    await cluster.create("t", 3)
    await cluster.create("closed", 1, accept_publish="false")
    producer = await beginner(cluster, "orders")
    owners = {partition: await cluster.owner_of("t", partition) for partition in range(3)}
    mine = [partition for partition in range(3) if owners[partition] == owners[0]]
    frame = stage_frame(
        producer.ref,
        *(("t", partition, 0, [b"x"]) for partition in range(3)),
        ("t", 0, 5, [b"gap"]),
        ("closed", 0, 0, [b"no"]),
        ("unknown", 0, 0, [b"no"]),
    )
    results = await stage_once(cluster, owners[0], frame)
    codes = [result.error.code for result in results]
    assert codes[:3] == ["" if partition in mine else "NOT_OWNER" for partition in range(3)]
    assert codes[3:] == ["OUT_OF_ORDER_SEQUENCE", "PUBLISH_NOT_ACCEPTED", "UNKNOWN_TOPIC"]
    assert len({result.bundle for result in results[:3]}) == 3
    assert {results[p].error.owner for p in range(3) if p not in mine} <= set(cluster.brokers)


@in_cluster("a:1", **BUNDLES)
async def test_a_small_transaction_is_completed_in_one_segment_of_a_bundle(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1)
    target = topic.partitions[0].bundle
    await Producer(cluster, "first").init()
    name = next(name for name in map(str, range(100)) if coordinator_bundle(cluster, name) != target)
    producer = await beginner(cluster, name)
    for value in range(20):
        await producer.send("t", 0, b"%d" % value)
    owner = cluster.brokers["a:1"].ownership.opened[target]
    before = owner.status().slot
    await producer.commit()
    await producer.completed()
    assert owner.status().slot == before + 1
    assert await cluster.read_all("t", 0) == [b"%d" % value for value in range(20)]


@in_cluster("a:1", **BUNDLES)
async def test_what_a_fenced_epoch_staged_is_dropped_when_the_next_one_begins(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    dead = await beginner(cluster, "orders")
    living = await beginner(cluster, "payments")
    for partition in range(3):
        await dead.send("t", partition, b"never")
        await living.send("t", partition, b"later")
    await beginner(cluster, "orders")
    await until(lambda: sum(found.participant.staged_batches for found in served(cluster).values()) == 3, 1)
    await living.commit()
    await living.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"later"]] * 3


@in_cluster("a:1", **BUNDLES)
async def test_transactions_that_follow_one_another_at_once_wait_for_the_one_before(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    counts = Counted()
    producer = await beginner(cluster, "orders")
    for found in served(cluster).values():
        object.__setattr__(found._parts, "counts", counts)
    line = cluster.line("a:1")
    for number in range(10):
        for partition in range(3):
            await producer.send("t", partition, b"%d" % number)
        request = pb.EndTransactionRequest(
            transaction=producer.ref, outcome=pb.COMMITTED, parts=producer.parts.values()
        )
        assert (await line.end_transaction(request)).state == pb.COMMITTED, "not to be repeated"
        producer.begin()
    producer.ref.number -= 1
    await producer.completed()
    for partition in range(3):
        assert await cluster.read_all("t", partition) == [b"%d" % number for number in range(10)]
    assert counts.causes == ["producer"] * 10


class Counted(TransactionCounts):
    def __init__(self) -> None:
        self.causes: list[str] = []

    def ended(self, partition: int, state: State, cause: str) -> None:
        self.causes.append(cause)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_hostile_fields_are_refused_and_change_nothing(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")

    def changed(**fields: object) -> pb.TransactionRef:
        ref = pb.TransactionRef()
        ref.CopyFrom(producer.ref)
        for name, value in fields.items():
            setattr(ref, name, value)
        return ref

    bad = [
        changed(transactional_id=""),
        changed(transactional_id="a/b"),
        changed(transactional_id="x" * 1000),
        changed(producer_id=b"short"),
        changed(producer_id=b""),
        changed(epoch=0),
        changed(number=0),
        changed(number=2**64 - 1),
        changed(coordinator=producer.ref.coordinator + 1),
        changed(coordinator=2**32 - 1),
        pb.TransactionRef(),
    ]
    part = next(iter(producer.parts.values()))
    line = cluster.line("a:1")
    for ref in bad:
        results = await stage_once(cluster, "a:1", stage_frame(ref, ("t", 0, 0, [b"x"])))
        assert [result.error.code for result in results] == ["INVALID_REQUEST"], ref
        for call in (
            lambda ref=ref: line.complete_transaction(
                pb.CompleteTransactionRequest(transaction=ref, outcome=pb.ABORTED, part=part)
            ),
            lambda ref=ref: line.ask_transaction(
                pb.AskTransactionRequest(transaction=ref, question=pb.FATE, part=part)
            ),
            lambda ref=ref: line.stage_offsets(pb.StageOffsetsRequest(transaction=ref, group="g")),
        ):
            assert await code_of(call) == "INVALID_REQUEST", ref
    wrong = pb.TransactionPart(bundle=part.bundle)
    wrong.counts.add(branch=bytes(33), batches=1)
    twice = pb.TransactionPart(bundle=part.bundle, groups=["g", "g"])
    for parts in ([pb.TransactionPart(bundle=99)], [part, part], [wrong], [twice], [pb.TransactionPart(bundle=0)]):
        request = pb.EndTransactionRequest(transaction=producer.ref, outcome=pb.COMMITTED, parts=parts)
        assert await code_of(lambda request=request: ask(cluster, lambda line: line.end_transaction(request))) == (
            "INVALID_REQUEST"
        )
    for outcome in (0, 4, 6, 77):
        request = pb.EndTransactionRequest(transaction=producer.ref, outcome=outcome)  # type: ignore[arg-type]
        assert await code_of(lambda request=request: ask(cluster, lambda line: line.end_transaction(request))) == (
            "INVALID_REQUEST"
        )
    frame = stage_frame(producer.ref, ("t", 0, 1, [b"y"]), branch=bytes(33))
    assert [result.error.code for result in await stage_once(cluster, "a:1", frame)] == ["INVALID_REQUEST"]
    await producer.commit()
    await producer.completed()
    assert await cluster.read_all("t", 0) == [b"x"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_operators_see_what_is_open_and_decide_about_what_is_prepared(cluster: Cluster) -> None:
    assert (await cluster.line("a:1").list_transactions(pb.ListTransactionsRequest())).partitions == 0
    await cluster.create("t", 1)
    producer = await beginner(cluster, "xid", kind=pb.TWO_PHASE)
    await producer.send("t", 0, b"x")
    await producer.end(pb.PREPARED)
    partitions = (await cluster.line("a:1").list_transactions(pb.ListTransactionsRequest(partition=2))).partitions
    listed = [
        await ask(cluster, lambda line, p=p: line.list_transactions(pb.ListTransactionsRequest(partition=p)))  # type: ignore[misc]
        for p in range(partitions)
    ]
    assert [info.transaction.transactional_id for answer in listed for info in answer.transactions] == ["xid"]
    assert [info.batches for answer in listed for info in answer.staged] == [1]
    request = pb.ResolveTransactionRequest(transactional_id="xid", resolution=pb.COMMIT)
    answer = await ask(cluster, lambda line: line.resolve_transaction(request))
    assert answer.transaction.state == pb.COMMITTED_BY_OPERATOR
    await until(lambda: is_served(cluster, "t", 1), 10)
    described = await ask(
        cluster, lambda line: line.describe_transaction(pb.DescribeTransactionRequest(transactional_id="xid"))
    )
    assert described.transaction.complete
    assert described.coordinator in cluster.brokers
