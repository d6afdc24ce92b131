"""Groups that are deleted or reset while answers are lost and other programs use the same name: a call deletes the
group that was there when it began, and no later one, and a repeated reset undoes no later one. In virtual time.
"""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq.errors import InvalidRequest, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_offsets.state.group import RESETS_KEPT
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Outsider, ask, committed_offset
from tests.broker.lost_answers import lose_the_answer


async def begin(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a", b"b", b"c")
    assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]


@in_cluster("a:1", "b:1")
async def test_a_deletion_whose_answer_was_lost_succeeds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(cluster)
    async with cluster.client() as client:
        lose_the_answer(monkeypatch, PartitionCoordinator, "delete", stored=True)
        await client.groups.delete("g")
        assert await committed_offset(cluster, "g", "t", 0) is None
        with pytest.raises(UnknownGroup):
            await client.groups.delete("g")


@in_cluster("a:1", "b:1")
async def test_a_deletion_whose_answer_was_lost_deletes_no_later_group_of_the_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(cluster)

    async def another_program_commits() -> None:
        assert await Outsider(cluster, "g").commit(("t", 0, 3)) == [""]

    async with cluster.client() as client:
        lose_the_answer(monkeypatch, PartitionCoordinator, "delete", stored=True, then=another_program_commits)
        with pytest.raises(UnknownGroup, match="the group of that name has"):
            await client.groups.delete("g")
        assert await committed_offset(cluster, "g", "t", 0) == 3
        await client.groups.delete("g")
        assert await committed_offset(cluster, "g", "t", 0) is None


@in_cluster("a:1", "b:1")
async def test_a_deletion_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(cluster)
    async with cluster.client() as client:
        lose_the_answer(monkeypatch, PartitionCoordinator, "delete", stored=False)
        await client.groups.delete("g")
        assert await committed_offset(cluster, "g", "t", 0) is None


@in_cluster("a:1", "b:1")
async def test_a_group_that_was_used_since_it_was_looked_at_is_looked_at_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was lost, so the group that is meant is the one that has the name."""
    await begin(cluster)
    true = PartitionCoordinator.delete

    async def first(self: PartitionCoordinator, group: str, epoch: int) -> pb.DeleteGroupResponse:
        monkeypatch.setattr(PartitionCoordinator, "delete", true)
        await true(self, group, epoch)
        assert await Outsider(cluster, "g").commit(("t", 0, 2)) == [""]
        return await true(self, group, epoch)

    async with cluster.client() as client:
        monkeypatch.setattr(PartitionCoordinator, "delete", first)
        await client.groups.delete("g")
    assert await committed_offset(cluster, "g", "t", 0) is None


@in_cluster("a:1")
async def test_an_earlier_client_deletes_whatever_group_has_the_name(cluster: Cluster) -> None:
    await begin(cluster)
    await ask(cluster, lambda line: line.delete_group(pb.DeleteGroupRequest(group="g")))
    assert await committed_offset(cluster, "g", "t", 0) is None


async def reset_to(client: ledgermq.Client, offset: int) -> None:
    assert not await client.groups.reset("g", await client.groups.plan_reset("g", offset))


@pytest.mark.parametrize("others", [1, RESETS_KEPT - 1])
@in_cluster("a:1", "b:1")
async def test_a_reset_whose_answer_was_lost_does_not_undo_a_later_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    await begin(cluster)
    async with cluster.client() as one, cluster.client() as other:

        async def other_resets() -> None:
            for number in range(others):
                await reset_to(other, 2 + number % 2)

        lose_the_answer(monkeypatch, PartitionCoordinator, "reset", stored=True, then=other_resets)
        await reset_to(one, 0)
        assert await committed_offset(cluster, "g", "t", 0) == 2 + (others - 1) % 2
        await reset_to(one, 0)
        assert await committed_offset(cluster, "g", "t", 0) == 0


@in_cluster("a:1", "b:1")
async def test_a_reset_whose_answer_was_lost_does_not_undo_a_later_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(cluster)

    async def another_program_commits() -> None:
        assert await Outsider(cluster, "g").commit(("t", 0, 3)) == [""]

    async with cluster.client() as client:
        lose_the_answer(monkeypatch, PartitionCoordinator, "reset", stored=True, then=another_program_commits)
        await reset_to(client, 0)
        assert await committed_offset(cluster, "g", "t", 0) == 3


@in_cluster("a:1", "b:1")
async def test_a_reset_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(cluster)
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(monkeypatch, PartitionCoordinator, "reset", stored=False, then=lambda: reset_to(other, 2))
        await reset_to(one, 0)
        assert await committed_offset(cluster, "g", "t", 0) == 0


@in_cluster("a:1")
async def test_a_repeated_reset_is_made_where_the_first_attempt_was_refused(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"a", b"b", b"c")

    async def reset() -> list[str]:
        resets = [pb.OffsetReset(topic="t", partition=partition, offset=2) for partition in range(2)]
        request = pb.ResetOffsetsRequest(group="g", resets=resets, nonce=b"n")
        answer = await ask(cluster, lambda line: line.reset_offsets(request))
        return [result.error.code for result in answer.results]

    assert await reset() == ["", "OFFSET_OUT_OF_RANGE"]
    assert await Outsider(cluster, "g").commit(("t", 0, 3)) == [""]
    await cluster.produce("t", 1, b"d", b"e")
    assert await reset() == ["", ""]
    assert await committed_offset(cluster, "g", "t", 0) == 3
    assert await committed_offset(cluster, "g", "t", 1) == 2


@in_cluster("a:1")
async def test_the_nonce_of_a_reset_has_a_bound(cluster: Cluster) -> None:
    request = pb.ResetOffsetsRequest(group="g", nonce=bytes(17))
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await ask(cluster, lambda line: line.reset_offsets(request))
