"""Groups that are deleted while answers are lost and other programs use the same name: a call deletes the group that
was there when it began, and no later one. In virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ledgermq.errors import Unavailable, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.groups.partition import PartitionCoordinator
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Outsider, ask, committed_offset

Then = Callable[[], Awaitable[object]]


def lose_the_answer(patch: pytest.MonkeyPatch, *, stored: bool, then: Then | None = None) -> None:
    """Lose the first answer to a deletion, or with `stored=False` the first request; then something else happens
    before the next attempt.
    """
    true = PartitionCoordinator.delete

    async def first(self: PartitionCoordinator, group: str, epoch: int) -> pb.DeleteGroupResponse:
        patch.setattr(PartitionCoordinator, "delete", true)
        if stored:
            await true(self, group, epoch)
        if then is not None:
            await then()
        raise Unavailable("the answer is lost")

    patch.setattr(PartitionCoordinator, "delete", first)


async def begin(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a", b"b", b"c")
    assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]


@in_cluster("a:1", "b:1")
async def test_a_deletion_whose_answer_was_lost_succeeds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await begin(cluster)
    async with cluster.client() as client:
        lose_the_answer(monkeypatch, stored=True)
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
        lose_the_answer(monkeypatch, stored=True, then=another_program_commits)
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
        lose_the_answer(monkeypatch, stored=False)
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
