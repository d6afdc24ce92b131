"""Check transactions through the brokers' services, without the client: all or nothing over bundles,
fencing, takeovers at each step, offsets of groups, and what becomes of staged bytes; in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from ledgermq.errors import TransactionAborted, TransactionFenced, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.internal.bundle_calls import CALL_S_MAX
from ledgermq_broker.transactions import from_wire
from ledgermq_broker.transactions.counts import TransactionCounts
from ledgermq_broker.transactions.participating.copier import Copier
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.participating.completing import Chunk
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask, committed_offset
from tests.broker.transaction_calls import (
    Producer,
    beginner,
    code_of,
    constants_of,
    coordinator_bundle,
    served,
    stage_frame,
    stage_once,
)
from tests.waiting import until

BUNDLES = {"bundles": 4}


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


@in_cluster("a:1", "b:1", "c:1", **BUNDLES)
async def test_what_is_decided_is_completed_by_whoever_owns_the_bundle_next(cluster: Cluster) -> None:
    """The bundle's owner hangs when the decision is made, and dies then."""
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    for partition in range(3):
        await producer.send("t", partition, b"x%d" % partition)
    deciding = owner_of_bundle(cluster, coordinator_bundle(cluster, "orders"))
    victim = next(address for address in cluster.brokers if address != deciding and owns_some(cluster, address))
    cluster.views[victim].pause()
    assert await producer.commit() == pb.COMMITTED
    assert not await producer.is_complete()
    await cluster.stop(victim, graceful=False)
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"x0"], [b"x1"], [b"x2"]]


@in_cluster("a:1", "b:1", "c:1", **BUNDLES)
async def test_the_next_coordinator_goes_on_with_what_was_decided(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    producer = await beginner(cluster, "orders")
    for partition in range(3):
        await producer.send("t", partition, b"x%d" % partition)
    bundle = coordinator_bundle(cluster, "orders")
    deciding = owner_of_bundle(cluster, bundle)

    async def lost(*_: object) -> bool:
        raise Unavailable("the call is lost")

    served(cluster)[bundle].coordinating._completer._push = lost
    await producer.commit()
    await cluster.stop(deciding, graceful=False)
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(3)] == [[b"x0"], [b"x1"], [b"x2"]]


def owner_of_bundle(cluster: Cluster, bundle: int) -> str:
    return next(address for address, broker in cluster.brokers.items() if bundle in broker.ownership.opened)


def owns_some(cluster: Cluster, address: str) -> bool:
    return bool({1, 2, 3} & cluster.brokers[address].ownership.opened.keys())


@in_cluster("a:1", "b:1", constants=constants_of(chunk_bytes=1), **BUNDLES)
async def test_a_commit_in_many_segments_goes_on_after_a_takeover_between_two(cluster: Cluster) -> None:
    """Each batch takes one segment. The next owner continues from the log without a call; each batch is
    visible once, in order.
    """
    values = [b"%d" % value for value in range(12)]
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    for value in values:
        await producer.send("t", 0, value)
    target, deciding = topic.partitions[0].bundle, coordinator_bundle(cluster, "orders")
    dying = owner_of_bundle(cluster, target)
    found = served(cluster)
    copier = found[target]._copier
    stands = stand_still_after(copier, 5)
    await producer.commit()
    await asyncio.wait_for(stands.wait(), 10)
    assert await cluster.read_all("t", 0) == values[:5]

    async def lost(*_: object) -> bool:
        raise Unavailable("the call is lost")

    if deciding in found:
        found[deciding].coordinating._completer._push = lost
    await cluster.stop(dying, graceful=False)
    await until(lambda: is_served(cluster, "t", len(values)), 60)
    assert await cluster.read_all("t", 0) == values


async def is_served(cluster: Cluster, topic: str, records: int) -> bool:
    return len(cluster.serving(topic, 0)) == 1 and len(await cluster.read_all(topic, 0)) == records


def stand_still_after(copier: Copier, chunks: int) -> asyncio.Event:
    """The copier hangs after so many chunks, which are durable when the event is set."""
    real, stands, done = copier._copy_chunk, asyncio.Event(), 0

    async def copy(chunk: Chunk) -> None:
        nonlocal done
        if done == chunks:
            await copier._state.durable()
            stands.set()
            await asyncio.Event().wait()
        done += 1
        await real(chunk)

    copier._copy_chunk = copy  # type: ignore[method-assign]
    return stands


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_a_dead_producer_left_is_aborted_after_its_time_out(cluster: Cluster) -> None:
    await cluster.create("t", 3)
    dead = await beginner(cluster, "orders", timeout_ms=20_000)
    for partition in range(3):
        await dead.send("t", partition, b"never")
    await cluster.produce("t", 0, b"other")
    await asyncio.sleep(25)
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 3
    await until(lambda: not any(found.participant.staged_batches for found in served(cluster).values()), 60)
    with pytest.raises(TransactionAborted):
        await dead.commit()
    assert await cluster.read_all("t", 0) == [b"other"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_are_committed_with_the_records_and_wait_meanwhile(cluster: Cluster) -> None:
    await cluster.create("in", 2)
    await cluster.create("out", 1)
    await cluster.produce("in", 0, b"a", b"b")
    producer = await beginner(cluster, "copy")
    await producer.send("out", 0, b"A")
    assert await producer.stage_offset("g", "in", 0, 2) == ""
    with pytest.raises(Unavailable):
        await committed_offset(cluster, "g", "in", 0)
    assert await committed_offset(cluster, "g", "in", 1) is None
    await producer.commit()
    await producer.completed()
    assert await committed_offset(cluster, "g", "in", 0) == 2
    assert await cluster.read_all("out", 0) == [b"A"]
    producer.begin()
    await cluster.produce("in", 0, b"c")
    assert await producer.stage_offset("g", "in", 0, 3) == ""
    await producer.abort()
    await producer.completed()
    assert await committed_offset(cluster, "g", "in", 0) == 2


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_that_a_dead_producer_left_let_the_partition_go(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy", timeout_ms=1000)
    assert await dead.stage_offset("g", "in", 0, 2) == ""
    with pytest.raises(Unavailable):
        await committed_offset(cluster, "g", "in", 0)
    await until(lambda: is_free(cluster, "g", "in"), 60, every_s=1)
    assert await committed_offset(cluster, "g", "in", 0) is None


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_offsets_of_more_groups_than_a_call_takes_let_their_partitions_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_wire, "GROUPS_MAX", 2)
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy", timeout_ms=1000)
    for number in range(3 * 3):  # three in one of the bundles
        assert await dead.stage_offset(f"g{number}", "in", 0, 2) == ""
    assert max(len(part.groups) for part in dead.parts.values()) > 2
    for number in range(3 * 3):
        await until(partial(is_free, cluster, f"g{number}", "in"), 60, every_s=1)


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_offsets_of_a_fenced_epoch_hold_the_partition_up_for_a_moment_only(cluster: Cluster) -> None:
    """A restarted processor does not wait for the transaction that it left open."""
    await cluster.create("in", 1)
    await cluster.create("out", 3)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, "copy")
    assert await dead.stage_offset("g", "in", 0, 2) == ""
    for partition in range(3):
        await dead.send("out", partition, b"never")
    await beginner(cluster, "copy")
    await until(lambda: is_free(cluster, "g", "in"), 2, every_s=0.1)
    assert await committed_offset(cluster, "g", "in", 0) is None
    owned = [found for broker in cluster.brokers.values() for found in broker.transactions.served()]
    own = [found for found in owned if found.bundle == coordinator_bundle(cluster, "copy")]
    await until(lambda: not any(found.participant.staged_batches for found in own), 2)


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
async def test_one_who_waits_for_an_open_transaction_asks_five_times_a_second_at_most(cluster: Cluster) -> None:
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    living = await beginner(cluster, "copy")
    assert await living.stage_offset("g", "in", 0, 2) == ""
    questions: list[pb.Question] = []
    for found in served(cluster).values():
        found.peers.ask = counting(found, questions)  # type: ignore[method-assign, assignment]
    for _ in range(100):
        assert await code_of(lambda: committed_offset(cluster, "g", "in", 0)) == "UNAVAILABLE"
        await asyncio.sleep(0.01)
    assert 2 <= len(questions) <= 7, "one each 0.2 s, however many calls wait"
    await living.commit()
    await until(lambda: is_free(cluster, "g", "in"), 2, every_s=0.05)
    assert await committed_offset(cluster, "g", "in", 0) == 2


Asked = Callable[[Transaction, pb.Question, Part | None], Coroutine[Any, Any, State]]


def counting(found: TransactionPartition, questions: list[pb.Question]) -> Asked:
    real = found.peers.ask

    async def ask_counted(transaction: Transaction, question: pb.Question, part: Part | None = None) -> State:
        questions.append(question)
        return await real(transaction, question, part)

    return ask_counted


async def is_free(cluster: Cluster, group: str, topic: str) -> bool:
    return await code_of(lambda: committed_offset(cluster, group, topic, 0)) == ""


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_what_a_removed_topic_would_have_got_is_left_out(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.create("gone", 1)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.send("gone", 0, b"y")
    await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="gone")))
    await asyncio.sleep(1)
    await producer.commit()
    await producer.completed()
    assert await cluster.read_all("t", 0) == [b"x"]
    assert sum(found.participant.staged_batches for found in served(cluster).values()) == 0


@in_cluster("a:1", constants=constants_of(carry_after_ms=2000, carry_slots=5), **BUNDLES)
async def test_what_stays_prepared_is_carried_forward_and_lets_the_log_start_move(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "xid", kind=pb.TWO_PHASE)
    for value in (b"x", b"y", b"z"):
        await producer.send("t", 0, value)
    assert await producer.end(pb.PREPARED) == pb.PREPARED
    found = served(cluster)[topic.partitions[0].bundle]
    staged = found._staged
    first = found.participant.lowest_offset()
    for _ in range(40):
        await cluster.produce("t", 0, b"plain")
        await asyncio.sleep(1)
    carried = found.participant.lowest_offset()
    assert first == 0
    assert carried is not None
    assert carried >= 3
    await until(lambda: log_start(found) == found.participant.lowest_offset(), 200, every_s=1)
    assert log_start(found) > 0
    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    assert (await ask(cluster, lambda line: line.end_transaction(xid("xid")))).state == pb.COMMITTED
    await until(lambda: is_served(cluster, "t", 43), 60)
    values = await cluster.read_all("t", 0)
    assert values == [b"plain"] * 40 + [b"x", b"y", b"z"]
    assert staged.topic.name == keys.STAGED_TOPIC


def xid(name: str) -> pb.EndTransactionRequest:
    """Commit a prepared transaction by its id alone."""
    return pb.EndTransactionRequest(transaction=pb.TransactionRef(transactional_id=name), outcome=pb.COMMITTED)


def log_start(found: TransactionPartition) -> int:
    staged = found._staged
    return staged.owner._ledger.view.log_start(staged.place, staged.topic)


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_segments_that_held_staged_batches_are_trimmed(cluster: Cluster) -> None:
    topic = await cluster.create("t", 1, parquet_max_lag_ms="0")
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    broker = cluster.brokers["a:1"]
    owner = broker.ownership.opened[topic.partitions[0].bundle]
    staged_at = owner.status().slot
    await producer.commit()
    await producer.completed()
    broker.apply(cluster.settings.model_copy(update={"background_compaction": True}))

    async def trimmed() -> bool:
        await cluster.produce("t", 0, b"plain")
        return owner._ledger.view.checkpoint.trim_slot > staged_at

    await until(trimmed, 1000, every_s=10)
    assert (await cluster.read_all("t", 0))[:2] == [b"x", b"plain"]


@in_cluster("a:1", "b:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_a_part_that_is_lost_is_given_up_and_the_others_stay(cluster: Cluster) -> None:
    """The producer counts a batch that one bundle does not have. No batch of that part becomes visible;
    after an operator gives the part up, the transactional id can be used again.
    """
    topic = await cluster.create("t", 2)
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.send("t", 1, b"y")
    lost = topic.partitions[1].bundle
    producer.parts[lost].counts[0].batches = 2
    await producer.commit()
    await until(lambda: has_trouble(cluster, "orders", f"bundle {lost}"), 10)
    assert not await producer.is_complete()
    assert [await cluster.read_all("t", partition) for partition in range(2)] == [[b"x"], []]
    request = pb.ResolveTransactionRequest(transactional_id="orders", resolution=pb.GIVE_UP, bundle=lost)
    assert (await ask(cluster, lambda line: line.resolve_transaction(request))).transaction.complete
    await until(lambda: not any(found.participant.staged_batches for found in served(cluster).values()), 60)
    producer.begin()
    await producer.send("t", 1, b"z")
    await producer.commit()
    await producer.completed()
    assert [await cluster.read_all("t", partition) for partition in range(2)] == [[b"x"], [b"z"]]


async def has_trouble(cluster: Cluster, name: str, text: str) -> bool:
    request = pb.DescribeTransactionRequest(transactional_id=name)
    return text in (await ask(cluster, lambda line: line.describe_transaction(request))).transaction.trouble


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


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000, log_start_ms=1000), **BUNDLES)
async def test_the_log_start_of_staged_batches_moves_after_an_attempt_that_failed(cluster: Cluster) -> None:
    """Nothing else is staged in the bundle, so no later transaction can move the log start."""
    topic = await cluster.create("t", 1)
    producer = await beginner(cluster, "orders")
    found = served(cluster)[topic.partitions[0].bundle]
    await asyncio.sleep(3)
    move, failures = found._staged.move_log_start, []

    async def fail(begin: int) -> None:
        failures.append(begin)
        raise Unavailable("the store does not answer")

    found._staged.move_log_start = fail  # type: ignore[method-assign]
    await producer.send("t", 0, b"x")
    await producer.commit()
    await producer.completed()
    await asyncio.sleep(10)
    assert failures
    found._staged.move_log_start = move  # type: ignore[method-assign]
    await until(lambda: log_start(found) == 1, 60)


@in_cluster("a:1", constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_a_coordinator_that_does_not_answer_holds_up_no_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await cluster.create("t", 1)
    await Producer(cluster, "first").init()
    names = [f"id{number}" for number in range(300)]
    silent = coordinator_bundle(cluster, names[0])
    unlucky = [name for name in names if coordinator_bundle(cluster, name) == silent][:64]
    lucky = next(name for name in names if coordinator_bundle(cluster, name) != silent)
    found = served(cluster)[topic.partitions[0].bundle]
    ask_coordinator = found.peers.ask

    async def silence(transaction: Transaction, question: pb.Question, part: Part | None = None) -> State:
        if transaction.transactional_id != lucky:
            await asyncio.sleep(CALL_S_MAX)
            raise Unavailable("no answer")
        return await ask_coordinator(transaction, question, part)

    monkeypatch.setattr(found.peers, "ask", silence)
    for name in unlucky:
        await (await beginner(cluster, name)).send("t", 0, b"x")
    await asyncio.sleep(5)
    dead = await beginner(cluster, lucky, timeout_ms=1000)
    await dead.send("t", 0, b"y")
    await until(lambda: all(info.transaction.transactional_id != lucky for info in staged_in(found)), 45, every_s=1)
    assert len(staged_in(found)) == len(unlucky) == 64


def staged_in(found: TransactionPartition) -> list[pb.StagedInfo]:
    return found.participant.staged_infos()


@in_cluster(constants=constants_of(ask_after_ms=1000), **BUNDLES)
async def test_what_an_owner_with_a_fast_clock_has_staged_is_asked_about_at_once(cluster: Cluster) -> None:
    await cluster.start("a:1", skew_s=3600)
    await cluster.settled()
    topic = await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a", b"b")
    dead = await beginner(cluster, "orders", timeout_ms=1000)
    await dead.send("t", 0, b"x")
    for number in range(9):  # in each bundle some
        assert await dead.stage_offset(f"g{number}", "t", 0, 2) == ""
    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    target = topic.partitions[0].bundle
    await until(lambda: target in served(cluster), 60)
    found = served(cluster)[target]
    await until(lambda: not found.participant.open_count, 60, every_s=1)
    for number in range(9):
        await until(partial(is_free, cluster, f"g{number}", "t"), 60, every_s=1)
