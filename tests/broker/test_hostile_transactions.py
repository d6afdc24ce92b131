"""Attack transactions where those of others broke: a bug between two states of one decision, damaged
partitions that a transaction names, producers that were never initialized, and limits that are reached in
the middle; in virtual time.
"""

from __future__ import annotations

import pytest

from ledger.log.log_record import LogRecord
from ledgermq.errors import DataDamaged, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from stateless_broker.groups.partition import PartitionCoordinator
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import committed_offset
from tests.broker.transaction_calls import beginner, served
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
