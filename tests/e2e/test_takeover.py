"""Real broker processes on one root are killed, stopped, paused; every acknowledged record is
there once, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.client.connection.grpc_connection import GrpcConnection, GrpcConnector
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from tests.broker.cluster import frame_of
from tests.e2e.processes import BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.waiting import until


@pytest.fixture(params=["file", pytest.param("minio", marks=pytest.mark.real)])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcesses]:
    root = (tmp_path / "root").as_uri() if request.param == "file" else request.getfixturevalue("minio_root")
    with BrokerProcesses(tmp_path, root) as processes:
        yield processes


class Producing:
    """Numbered records, one after the other, into one partition, idempotently, until `stop`."""

    def __init__(self, client: RawClient, topic: str, partition: int) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._stopping = False
        self.acknowledged: list[bytes] = []
        self.retries: list[int] = []
        self.gaps_s: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        session = await self._client.open(
            self._topic, self._partition, f"producer-{self._topic}-{self._partition:05d}".encode()[-16:]
        )
        self._task = asyncio.create_task(self._run(session))

    async def _run(self, session: pb.ProducerSession) -> None:
        while not self._stopping:
            value = b"%d" % len(self.acknowledged)
            begun = time.monotonic()
            offset, retries = await self._client.produce(self._topic, self._partition, value, session=session)
            assert offset == len(self.acknowledged), "offsets are dense, and a retry gets the offset of what it repeats"
            self.acknowledged.append(value)
            self.retries.append(retries)
            self.gaps_s.append(time.monotonic() - begun)

    async def until(self, count: int) -> None:
        assert self._task is not None
        task = self._task
        await until(lambda: len(self.acknowledged) >= count or task.done(), what=f"the broker acknowledges {count}")
        if task.done():
            await task

    async def stop(self) -> None:
        self._stopping = True
        assert self._task is not None
        await self._task


@pytest.mark.slow
async def test_producing_goes_on_when_the_owner_is_killed(brokers: BrokerProcesses) -> None:
    brokers.start_all(3)
    async with RawClient(*brokers.addresses.split(",")) as client:
        await client.create("t", 4)
        lanes = [Producing(client, "t", partition) for partition in range(4)]
        for lane in lanes:
            await lane.start()
        for lane in lanes:
            await lane.until(50)
        for _ in range(2):
            brokers.kill(brokers.at(await client.owner("t", 0)))
            reached = [len(lane.acknowledged) for lane in lanes]
            for lane, count in zip(lanes, reached, strict=True):
                await lane.until(count + 50)
        for lane in lanes:
            await lane.stop()
        for partition, lane in enumerate(lanes):
            assert await client.read_all("t", partition) == lane.acknowledged
        print("longest gaps, s:", [round(max(lane.gaps_s), 2) for lane in lanes])


async def test_sigterm_hands_over_and_costs_one_retry_at_most(brokers: BrokerProcesses) -> None:
    brokers.start_all(
        2, "--constant-ownership-wait-s=20", "--heartbeat-interval-ms", "1000"
    )  # a starved successor is waited for
    async with RawClient(*brokers.addresses.split(","), attempt_s=25.0) as client:
        await client.create("t", 1)
        lane = Producing(client, "t", 0)
        await lane.start()
        await lane.until(100)
        settled = len(lane.retries)
        owner = brokers.at(await client.owner("t", 0))
        assert await asyncio.to_thread(brokers.stop, owner) == 0
        await lane.until(len(lane.acknowledged) + 100)
        await lane.stop()
        assert max(lane.retries[settled:]) <= 1
        assert await client.read_all("t", 0) == lane.acknowledged


@pytest.mark.slow
async def test_a_stopped_zombie_acknowledges_nothing_when_it_wakes_up(brokers: BrokerProcesses) -> None:
    brokers.start_all(2)
    async with RawClient(*brokers.addresses.split(",")) as client:
        await client.create("t", 1)
        for i in range(5):
            await client.produce("t", 0, b"%d" % i)
        zombie = brokers.at(await client.owner("t", 0))
        patient = GrpcConnector(request_timeout_s=60).connect(zombie.address)
        await patient.describe_cluster(pb.DescribeClusterRequest())
        brokers.pause(zombie)
        late = asyncio.create_task(_error_of_producing(patient))
        offset, _ = await client.produce("t", 0, b"5")
        assert offset == 5
        assert not late.done() or (await late).code == "UNAVAILABLE", "a silent line is given up after 15 s"
        brokers.resume(zombie)
        error = await late
        assert error.code in ("NOT_OWNER", "UNAVAILABLE"), error
        assert await client.read_all("t", 0) == [b"%d" % i for i in range(6)]
        assert (await client.produce("t", 0, b"6"))[0] == 6
        assert zombie.process.poll() is None


async def _error_of_producing(line: GrpcConnection) -> LedgerMQError:
    try:
        [result] = (await line.produce_once(frame_of("t", 0, b"zombie's"))).results
    except LedgerMQError as error:
        return error
    finally:
        await line.close()
    assert result.HasField("error"), "a fenced broker has acknowledged"
    return error_from_proto(result.error)


@pytest.mark.slow
async def test_a_root_survives_the_death_of_all_its_brokers(brokers: BrokerProcesses) -> None:
    brokers.start_all(3)
    async with RawClient(*brokers.addresses.split(",")) as client:
        await client.create("t", 3)
        for partition in range(3):
            await client.produce("t", partition, b"%d" % partition)
    for broker in list(brokers.running):
        brokers.kill(broker)
    again = brokers.start()
    async with RawClient(again.address) as client:
        for partition in range(3):
            assert await client.read_all("t", partition) == [b"%d" % partition]
