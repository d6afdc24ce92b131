"""Groups under random faults, in virtual time: brokers are killed, stopped and started; members
join, leave, stop responding and commit.

Checked forevery seed: no committed offset goes back; no commit counts under another member's
epoch; a partition that was let go under a newer epoch is never committed under an older one; and
when all is quiet each partition has one holder.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from ledgermq.errors import GroupError, InvalidRequest, RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.groups import Member, ask, commit_of, settled
from tests.virtual_time import run_virtual
from tests.waiting import until

PARTITIONS, RECORDS = 8, 3000
SECONDS = 60.0
TRY_S = 8.0


@dataclass
class Judge:
    """By partition: the highest offset and epoch whose commit was acknowledged; by (partition,
    epoch): the member that committed.
    """

    offsets: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    committers: dict[tuple[int, int], str] = field(default_factory=dict)
    commits = 0
    looks = 0

    def acknowledged(self, member: str, partition: int, epoch: int, offset: int, epoch_before: int) -> None:
        """`epoch_before`: the highest epoch that was acknowledged for the partition before this
        commit was sent.
        """
        assert epoch >= epoch_before, f"partition {partition}: epoch {epoch} committed after epoch {epoch_before}"
        assert self.committers.setdefault((partition, epoch), member) == member, (
            f"partition {partition}, epoch {epoch}: two members"
        )
        self.offsets[partition] = max(offset, self.offsets.get(partition, 0))
        self.epochs[partition] = max(epoch, self.epochs.get(partition, 0))
        self.commits += 1


class Life:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.judge = Judge()
        self.members: dict[str, Member] = {}
        self.over = False
        self.started = 0

    async def member_life(self, lane: int) -> None:
        """Joins, works, and leaves, falls silent or works on; again and again, each time as another
        member.
        """
        life = 0
        while not self.over:
            life += 1
            member = Member(self.cluster, "g", f"m{lane}-{life}", ["t"])
            self.members[member.name] = member
            try:
                await self.work(member)
                if self.random.random() < 0.5:
                    await member.leave()
            except (GroupError, TimeoutError):
                pass
            self.members.pop(member.name, None)
            await asyncio.sleep(self.random.uniform(0, 3))

    async def work(self, member: Member) -> None:
        await member.join()
        positions: dict[int, int] = {}
        until_s = asyncio.get_running_loop().time() + self.random.expovariate(1 / 20)
        while not self.over and asyncio.get_running_loop().time() < until_s:
            await member.beat(self.random.choice((0, 200, 1000)))
            for (_, partition), given in list(member.owned.items()):
                await self.commit(member, partition, given.epoch, positions)
            await asyncio.sleep(self.random.uniform(0, 0.3))

    async def commit(self, member: Member, partition: int, epoch: int, positions: dict[int, int]) -> None:
        offset = max(positions.get(partition, 0), self.judge.offsets.get(partition, 0)) + self.random.randint(0, 2)
        positions[partition] = offset = min(offset, RECORDS)
        member.counter += 1
        before = self.judge.epochs.get(partition, 0)
        request = commit_of("g", ("t", partition, offset), member=member.name, epoch=epoch, counter=member.counter)
        with suppress(InvalidRequest, RetriableError):
            [result] = (await ask(self.cluster, lambda line: line.commit_offsets(request))).results
            if not result.error.code:
                self.judge.acknowledged(member.name, partition, epoch, offset, before)
            assert result.error.code != "OFFSET_OUT_OF_RANGE", result.error.message

    async def look(self) -> None:
        wanted = pb.FetchCommittedRequest(
            group="g", partitions=[pb.TopicPartition(topic="t", partition=p) for p in range(PARTITIONS)]
        )
        seen = [0] * PARTITIONS
        while not self.over:
            before = [max(seen[p], self.judge.offsets.get(p, 0)) for p in range(PARTITIONS)]
            anywhere = self.random.randrange(
                100
            )  # also at one that was stopped, and still believes to be the coordinator
            found = (await ask(self.cluster, lambda line: line.fetch_committed(wanted), anywhere)).partitions
            seen = [part.offset for part in found]
            assert all(now >= then for now, then in zip(seen, before, strict=True)), (before, seen)
            self.judge.looks += 1
            await asyncio.sleep(self.random.uniform(0, 0.5))

    async def misfortune(self) -> None:
        while not self.over:
            await asyncio.sleep(self.random.uniform(1, 6))
            addresses = sorted(self.cluster.brokers)
            victim = self.random.choice(addresses)
            kind = self.random.choice(("kill", "stop", "pause", "pause"))
            if kind == "pause":
                view = self.cluster.views[victim]
                view.pause()
                await asyncio.sleep(self.random.uniform(0.1, 12))
                view.resume()
            else:
                self.started += 1
                await self.cluster.start(f"n{self.started}:1")
                await self.cluster.stop(victim, graceful=kind == "stop")

    async def end(self) -> None:
        await asyncio.sleep(SECONDS)
        self.over = True


async def live(seed: int) -> Judge:
    async with cluster_of("a:1", "b:1", "c:1", bundles=4, offsets_partitions=3) as cluster:
        await cluster.create("t", PARTITIONS)
        for partition in range(PARTITIONS):
            await cluster.produce("t", partition, *[b"x"] * RECORDS)
        life = Life(cluster, seed)
        async with asyncio.TaskGroup() as tasks:
            for work in (life.end(), life.look(), life.misfortune(), *(life.member_life(lane) for lane in range(4))):
                tasks.create_task(work)
        last = Member(cluster, "g", "last", ["t"])
        await last.join()
        await settled([last], quiet_s=15)
        assert len(last.owned) == PARTITIONS, "the others are gone"
        await until(lambda: True)
        return life.judge


@pytest.mark.parametrize("seed", range(3))
def test_random_lives(seed: int) -> None:
    judge = run_virtual(lambda: live(seed))
    assert judge.commits > 100
    assert judge.looks > 20
