"""Kill a coordinator of real processes while commits flow (twenty times with the servers' tests):
no commit is ever taken back.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ledgermq.errors import RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_ledger import keys
from tests.e2e.processes import BrokerProcess, BrokerProcesses
from tests.e2e.raw_client import DEADLINE_S, RawClient
from tests.waiting import until

STARTING_MAX = 2
GROUP = "g"
PARTITION = partition_of(GROUP, 16)


async def committed(client: RawClient) -> pb.CommittedPartition:
    request = pb.FetchCommittedRequest(group=GROUP, partitions=[pb.TopicPartition(topic="t", partition=0)])
    answer, _ = await client.at_owner(keys.OFFSETS_TOPIC, PARTITION, lambda line: line.fetch_committed(request))
    return answer.partitions[0]


async def make_topic(client: RawClient, address: str) -> None:
    """The first call of any group makes it, at a broker that need not be the coordinator, and may
    be refused at first: it is repeated.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(RetriableError):
                await client.line(address).fetch_committed(pb.FetchCommittedRequest(group=GROUP))
            with suppress(RetriableError):
                [info] = (
                    await client.line(address).describe_topics(pb.DescribeTopicsRequest(topics=[keys.OFFSETS_TOPIC]))
                ).topics
                if not info.HasField("error"):
                    return
            await asyncio.sleep(0.05)


class Committing:
    """Ascending offsets, one after the other, until `stop`; beside it another reads what is
    committed, and never sees it go back.
    """

    def __init__(self, client: RawClient, epoch: int) -> None:
        self._client = client
        self._epoch = epoch
        self.acknowledged = self.seen = self.looks = 0
        self.longest_gap_s = 0.0
        self._stopping = False

    async def commit_always(self) -> None:
        while not self._stopping:
            offset = self.acknowledged + 1
            begun = time.monotonic()
            one = pb.OffsetCommit(topic="t", partition=0, offset=offset, epoch=self._epoch, counter=offset)
            request = pb.CommitOffsetsRequest(group=GROUP, commits=[one])
            answer, _ = await self._client.at_owner(
                keys.OFFSETS_TOPIC,
                PARTITION,
                lambda line: line.commit_offsets(request),  # noqa: B023
            )
            if answer.results[0].HasField("error"):
                error = error_from_proto(answer.results[0].error)
                assert isinstance(error, RetriableError), error  # the owner of the partition itself is not to be had
                await asyncio.sleep(0.05)
                continue
            self.acknowledged = offset
            self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - begun)

    async def look_always(self) -> None:
        while not self._stopping:
            before = max(self.acknowledged, self.seen)
            found = (await committed(self._client)).offset
            assert found >= before, f"{before} was committed, {found} is told"
            self.seen = found
            self.looks += 1
            await asyncio.sleep(0.01)

    async def until(self, count: int) -> None:
        await until(lambda: self.acknowledged >= count, what=f"the coordinator acknowledges {count}")

    def stop(self) -> None:
        self._stopping = True


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [3, pytest.param(20, marks=pytest.mark.real)])
async def test_no_commit_is_taken_back_by_kills(tmp_path: Path, wanted: int) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        brokers.start_all(4)
        async with RawClient(*brokers.addresses.split(",")) as client:
            await client.create("t", 1)
            for _ in range(5):
                await client.produce("t", 0, *[b"x"] * 20_000)
            await make_topic(client, brokers.running[0].address)
            flow = Committing(client, (await committed(client)).epoch)
            starting: list[BrokerProcess] = []
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(flow.commit_always())
                tasks.create_task(flow.look_always())
                kills = 0
                while kills < wanted:
                    await flow.until(flow.acknowledged + 10)
                    address = await client.owner(keys.OFFSETS_TOPIC, PARTITION)
                    killed = [broker for broker in brokers.running if broker.address == address]
                    # it was killed just now, and no broker has noticed yet; or it is one that has just started
                    if not killed:
                        if starting:
                            await asyncio.to_thread(brokers.wait_ready, starting.pop(0))
                        continue
                    brokers.kill(killed[0])
                    kills += 1
                    starting.append(brokers.spawn(port=int(address.rsplit(":", 1)[1])))
                    if len(starting) > STARTING_MAX:  # the others start while the next coordinator is killed
                        await asyncio.to_thread(brokers.wait_ready, starting.pop(0))
                flow.stop()
            assert (await committed(client)).offset >= flow.acknowledged
            assert flow.acknowledged >= 10 * wanted
            print(f"{flow.acknowledged} commits, {flow.looks} looks, longest gap {flow.longest_gap_s:.2f} s")
