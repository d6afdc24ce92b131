"""Offsets that transactions stage, at the coordinator of a group: when they are judged, and when
they are answered; in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.errors import NotOwner, TransactionAborted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_offsets.state.records import PendingKey
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Outsider, commit_of, committed, committed_offset
from tests.broker.test_group_faults import coordinator
from tests.waiting import until
from tests.worlds.coordinators import id_of, staged_in

KEY = PendingKey(b"\x01" * 16, 1, 1)


def open_here() -> None:
    """The transaction is neither over nor begun."""


async def prepared(cluster: Cluster) -> tuple[Outsider, PartitionCoordinator, Callable[[int], pb.StageOffsetsRequest]]:
    """A group that has committed 3, and a request of a transaction for a later offset."""
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 10)
    group = Outsider(cluster, "g")
    assert await group.commit(("t", 0, 3)) == [""]
    found = coordinator(cluster, "a:1", "g")
    assert found is not None
    epoch, counter = group.tokens["t", 0]
    return (
        group,
        found,
        lambda offset: staged_in(KEY, commit_of("g", ("t", 0, offset), epoch=epoch, counter=counter + 1)),
    )


@in_cluster("a:1")
async def test_staged_offsets_outlive_their_coordinator_and_hold_readers_up(cluster: Cluster) -> None:
    _, found, request = await prepared(cluster)
    answer = await found.stage_offsets(request(7), open_here)
    assert [result.HasField("error") for result in answer.results] == [False]
    assert answer.bundle == found.owner.bundle
    found._state.broken(RuntimeError("a bug"))  # the next coordinator begins from the log
    await until(lambda: coordinator(cluster, "a:1", "g") not in (None, found))
    again = coordinator(cluster, "a:1", "g")
    assert again is not None
    assert again.has_pending("g", *KEY)
    assert [each.groups for each in again.pending_transactions(0)] == [("g",)]
    [busy] = await committed(cluster, "g", ("t", 0))
    assert busy.error.code == "UNAVAILABLE"
    again._state._log.append({again._place: again.settle_pending(*KEY, ["g"], id_of(KEY))})
    assert await committed_offset(cluster, "g", "t", 0) == 7
    with pytest.raises(NotOwner):
        found.has_pending("g", *KEY)
    with pytest.raises(NotOwner):
        found.settle_pending(*KEY, ["g"], id_of(KEY))


@in_cluster("a:1")
async def test_a_transaction_that_is_over_stages_nothing(cluster: Cluster) -> None:
    """Also when it ends while the partition's end is read."""
    group, found, request = await prepared(cluster)
    over: list[str] = []

    def check_open() -> None:
        assert over, "judged before the end was read"
        raise TransactionAborted("it is over")

    true = found._ends.of

    async def of(*arguments: object) -> object:
        over.append("meanwhile")
        return await true(*arguments)  # type: ignore[arg-type]

    found._ends.of = of  # type: ignore[method-assign, assignment]
    await cluster.produce("t", 0, *[b"x"] * 10)
    with pytest.raises(TransactionAborted):
        await found.stage_offsets(request(17), check_open)
    assert not found.has_pending("g", *KEY)
    assert await group.commit(("t", 0, 4)) == [""]


@in_cluster("a:1")
async def test_repeated_and_refused_stages_are_answered_only_by_the_current_owner(cluster: Cluster) -> None:
    _, found, request = await prepared(cluster)
    assert (await found.stage_offsets(request(7), open_here)).results[0] == pb.CommitResult()
    checks: list[str] = []

    async def fenced() -> None:
        checks.append("fence")
        raise NotOwner("another broker has the bundle")

    found.owner.check_fence = fenced  # type: ignore[method-assign]
    stale = request(8)
    stale.commits[0].epoch += 1
    for repeated in (request(7), stale):
        with pytest.raises(NotOwner):
            await found.stage_offsets(repeated, open_here)
    assert len(checks) == 2
