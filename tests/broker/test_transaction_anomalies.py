"""Check Jepsen's list of anomalies of Kafka's transactions, each by name: what clients read breaks no
promise, and the same check does notice a broker without the rule that prevents the anomaly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.housekeeper import Housekeeper
from ledgermq_broker.transactions.participating.copier import Copier
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.producers import Producers
from ledgermq_broker.transactions.state.participating.completing import Chunk
from ledgermq_broker.transactions.state.participating.intake import Intake
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import ask, committed_offset
from tests.broker.transaction_calls import Producer, beginner, code_of, coordinator_bundle, served
from tests.simulation.mutants_of_transactions import completion_before_its_decision_is_durable
from tests.waiting import until

BUNDLES = {"bundles": 4}
TIMEOUT_MS = 20_000
ASKED_WITHIN_S = 60
"""A bundle asks about what was staged 10 s ago, and again every 10 s."""

Patch = pytest.MonkeyPatch
Check = Callable[[Cluster], Awaitable[None]]


class Anomaly(AssertionError):
    """What clients have seen breaks a promise."""


def judge(holds: bool, *found: object) -> None:
    if not holds:
        raise Anomaly(*found)


class Places(NamedTuple):
    """`name`: a transactional id. `near`: a partition of topic `t` whose bundle has the same owner as the
    coordinator of the id. `far`: one of another owner.
    """

    name: str
    near: int
    far: int


async def placed(cluster: Cluster) -> Places:
    await cluster.create("t", 3)
    await Producer(cluster, "first").init()  # creates the topics of transactions
    owners = [await cluster.owner_of("t", partition) for partition in range(3)]
    for name in map(str, range(100)):
        deciding = coordinator_owner(cluster, name)
        if deciding in owners and set(owners) - {deciding}:
            near = owners.index(deciding)
            return Places(name, near, next(p for p, owner in enumerate(owners) if owner != deciding))
    raise AssertionError("one broker owns everything")


def coordinator_owner(cluster: Cluster, name: str) -> str:
    bundle = coordinator_bundle(cluster, name)
    return next(address for address, broker in cluster.brokers.items() if bundle in broker.ownership.opened)


async def outcome_of(cluster: Cluster, ref: pb.TransactionRef) -> int:
    request = pb.TransactionOutcomeRequest(transactional_id=ref.transactional_id, epoch=ref.epoch, number=ref.number)
    return (await ask(cluster, lambda line: line.transaction_outcome(request))).state


async def commit_one(producer: Producer, partition: int, value: bytes) -> None:
    await producer.send("t", partition, value)
    assert await producer.commit() == pb.COMMITTED
    await producer.completed()


def staged_batches(cluster: Cluster) -> int:
    return sum(found.participant.staged_batches for found in served(cluster).values())


# Aborted read (G1a)


async def aborted_read(cluster: Cluster) -> None:
    """The coordinator dies while it puts its decision to commit, which is not stored. The next
    coordinator aborts, and no reader has seen records of the transaction meanwhile.
    """
    name, _, far = await placed(cluster)
    producer = await beginner(cluster, name)
    await commit_one(producer, far, b"first")  # so that the bundle knows the producer
    producer.begin()
    await producer.send("t", far, b"aborted")
    deciding = coordinator_owner(cluster, name)
    cluster.views[deciding].pause()
    committing = asyncio.create_task(producer.commit())
    await asyncio.sleep(1)
    committing.cancel()
    seen = await cluster.read_all("t", far)
    await cluster.stop(deciding, graceful=False)
    state = await outcome_of(cluster, producer.ref)
    assert state == pb.ABORTED
    judge(seen == await cluster.read_all("t", far) == [b"first"], "aborted read", seen)


# Torn transaction


async def torn_transaction(cluster: Cluster) -> None:
    """A producer stalls beyond its time-out between two partitions. The first bundle receives "aborted",
    so the transaction can no longer be committed for the second.
    """
    name, near, far = await placed(cluster)
    producer = await beginner(cluster, name, timeout_ms=TIMEOUT_MS)
    await producer.send("t", near, b"half")
    await until(lambda: not staged_batches(cluster), ASKED_WITHIN_S, every_s=1)
    await producer.send("t", far, b"half")
    code = await code_of(producer.commit)
    await asyncio.sleep(10)
    halves = [await cluster.read_all("t", partition) for partition in (near, far)]
    judge(halves == [[], []], "torn transaction", halves)
    assert code == "TRANSACTION_ABORTED"


def without_recording_the_abort(patch: Patch) -> None:
    """X3: a bundle receives "aborted" only after the abort is recorded."""
    real = Bundles.fate

    def fate(self: Bundles, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        known, asked = self._ids.known, dict(self._ids.asked)
        before = known.get(transaction.transactional_id)
        found = real(self, transaction, part, now_ms)
        if not found.records or before is None:
            return found
        known[transaction.transactional_id] = before
        self._ids.asked = asked
        return Decision([], found.answer)

    patch.setattr(Bundles, "fate", fate)


# Lost write


async def lost_write(cluster: Cluster) -> None:
    """The owner of a bundle dies after the decision and before its part is visible; the producer
    is restarted at once. Its new epoch begins when the commit is complete in all bundles.
    """
    name, _, far = await placed(cluster)
    producer = await beginner(cluster, name)
    await producer.send("t", far, b"committed")
    victim = await cluster.owner_of("t", far)
    cluster.views[victim].pause()
    assert await producer.commit() == pb.COMMITTED
    newer = Producer(cluster, name)
    starting = asyncio.create_task(newer.init())
    await asyncio.wait([starting], timeout=1)
    await cluster.stop(victim, graceful=False)
    await starting
    newer.begin()
    await commit_one(newer, far, b"next")
    found = await cluster.read_all("t", far)
    judge(found == [b"committed", b"next"], "lost write", found)


def without_waiting_for_the_commit_before(patch: Patch) -> None:
    """X6: a new epoch begins only when the commit before it is complete everywhere."""
    patch.setattr(Producers, "check_reuse", lambda self, name, known, kind: None)


# Late write after the end


async def late_write(cluster: Cluster) -> None:
    """A delayed batch arrives after the end of its transaction, and then the call that completes the
    transaction arrives a second time.
    """
    name, _, far = await placed(cluster)
    producer = await beginner(cluster, name)
    await commit_one(producer, far, b"x")
    refused = [await code_of(lambda at=at: producer.stage("t", far, at, b"x")) for at in range(2)]  # type: ignore[misc]
    request = pb.CompleteTransactionRequest(
        transaction=producer.ref, outcome=pb.COMMITTED, part=next(iter(producer.parts.values()))
    )
    assert (await ask(cluster, lambda line: line.complete_transaction(request))).done
    found = await cluster.read_all("t", far)
    judge(found == [b"x"], "late write", found)
    producer.begin()
    await producer.send("t", far, b"aborted")
    await producer.abort()
    await producer.completed()
    refused += [await code_of(lambda at=at: producer.stage("t", far, at, b"aborted")) for at in range(2)]  # type: ignore[misc]
    producer.begin()
    await commit_one(producer, far, b"y")
    found = await cluster.read_all("t", far)
    judge(found == [b"x", b"y"], "late write", found)
    assert refused == ["TRANSACTION_ABORTED"] * 4
    assert not staged_batches(cluster)


def without_the_memory_of_what_is_over(patch: Patch) -> None:
    """X8, X11: a note ends its transaction in the bundle, whichever calls arrive later."""
    real = ServedBundle.is_over

    def is_over(self: ServedBundle, transaction: Transaction) -> bool:
        return real(self, transaction) and self.find(transaction) is None

    patch.setattr(ServedBundle, "is_over", is_over)
    patch.setattr(Intake, "check_open", lambda self, transaction: None)


# Hanging transaction


async def hanging_transaction(cluster: Cluster) -> None:
    """A producer dies with a transaction open. Other clients write and read without a delay. At its
    time-out the transaction is aborted, which releases the group's offsets and the ledger's trimming.
    """
    name, near, far = await placed(cluster)
    await cluster.create("in", 1)
    await cluster.produce("in", 0, b"a", b"b")
    dead = await beginner(cluster, name, timeout_ms=TIMEOUT_MS)
    for partition in (near, far):
        await dead.send("t", partition, b"orphan")
    assert await dead.stage_offset("g", "in", 0, 2) == ""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await cluster.produce("t", far, b"beside")
    assert await cluster.read_all("t", far) == [b"beside"]
    judge(loop.time() - begun_s < 1, "readers waited for a hanging transaction")
    assert staged_batches(cluster) == 2
    await asyncio.sleep(2 * ASKED_WITHIN_S)
    judge(staged_batches(cluster) == 0, "hanging transaction")
    judge(await committed_offset(cluster, "g", "in", 0) is None, "the group's offset")
    await until(lambda: all(trim_is_free(found) for found in served(cluster).values()), 2 * ASKED_WITHIN_S, every_s=1)
    assert await code_of(dead.commit) == "TRANSACTION_ABORTED"
    assert [await cluster.read_all("t", partition) for partition in (near, far)] == [[], [b"beside"]]


def trim_is_free(found: Any) -> bool:
    """Return whether the log start of staged batches is at their end."""
    staged = found._staged
    return bool(staged.owner._ledger.view.log_start(staged.place, staged.topic) == staged.next_offset)


def without_questions(patch: Patch) -> None:
    """X3: a bundle asks about what was staged long ago."""

    async def ask_fates(self: Housekeeper) -> None:
        return None

    patch.setattr(Housekeeper, "ask_fates", ask_fates)


# Zombie write


async def zombie_write(cluster: Cluster) -> None:
    """A process that was replaced wakes up and commits. Its own records do not become visible, and
    neither do those of its successor, which has not committed them, and aborts.
    """
    name, _, far = await placed(cluster)
    zombie = await beginner(cluster, name)
    await zombie.send("t", far, b"zombie")
    newer = await beginner(cluster, name)
    await newer.send("t", far, b"aborted")
    code = await code_of(zombie.commit)
    await asyncio.sleep(5)
    await newer.abort()
    newer.begin()
    await code_of(lambda: zombie.stage("t", far, 1, b"zombie"))
    await newer.send("t", far, b"new")
    await code_of(zombie.commit)
    await newer.commit()
    await newer.completed()
    found = await cluster.read_all("t", far)
    judge(found == [b"new"], "zombie write", found)
    assert code == "TRANSACTION_FENCED"


def without_the_fence(patch: Patch) -> None:
    """Only the newest epoch of an id decides."""
    patch.setattr(Producers, "_check_holder", lambda self, transaction, known: None)


# Repeated commit


async def repeated_commit(cluster: Cluster) -> None:
    """The broker that decides and completes dies as soon as the records are read. The commit, whose
    answer may be lost, is repeated, and each record is visible once.
    """
    name, near, _ = await placed(cluster)
    producer = await beginner(cluster, name)
    await producer.send("t", near, b"x")
    deciding = coordinator_owner(cluster, name)
    committing = asyncio.create_task(producer.commit())
    await until(lambda: is_read(cluster, near))
    cluster.views[deciding].pause()
    committing.cancel()
    await cluster.stop(deciding, graceful=False)
    assert [await producer.commit() for _ in range(3)] == [pb.COMMITTED] * 3
    await producer.completed()
    assert await producer.commit() == pb.COMMITTED
    found = await cluster.read_all("t", near)
    judge(found == [b"x"], "repeated commit", found)


async def is_read(cluster: Cluster, partition: int) -> bool:
    return bool(await cluster.read_all("t", partition))


def without_one_segment_for_copies_and_note(patch: Patch) -> None:
    """X8: the copies and the note about them are one segment."""

    async def copy_chunk(self: Copier, chunk: Chunk) -> None:
        copies = await self._staged.read(chunk.references)
        self._state._log.append({}, copies)
        await self._state.durable()
        await asyncio.sleep(1)
        decision = self._participant.completing.admit(chunk)
        if decision.answer:
            self._state.take(decision, (), lambda: self._pending.settle(chunk.transaction, chunk.groups))

    patch.setattr(Copier, "_copy_chunk", copy_chunk)


ANOMALIES: list[tuple[Check, Callable[[Patch], None]]] = [
    (aborted_read, completion_before_its_decision_is_durable),
    (torn_transaction, without_recording_the_abort),
    (lost_write, without_waiting_for_the_commit_before),
    (late_write, without_the_memory_of_what_is_over),
    (hanging_transaction, without_questions),
    (zombie_write, without_the_fence),
    (repeated_commit, without_one_segment_for_copies_and_note),
]


@pytest.mark.parametrize("check", [check for check, _ in ANOMALIES], ids=lambda check: check.__name__)
@in_cluster("a:1", "b:1", **BUNDLES)
async def test_it_does_not_happen(cluster: Cluster, check: Check) -> None:
    await check(cluster)


@pytest.mark.parametrize(("check", "without"), ANOMALIES, ids=lambda given: given.__name__)
@in_cluster("a:1", "b:1", **BUNDLES)
async def test_it_is_noticed_without_its_rule(
    cluster: Cluster, monkeypatch: Patch, check: Check, without: Callable[[Patch], None]
) -> None:
    without(monkeypatch)
    with pytest.raises(Anomaly):
        await check(cluster)
