"""Simulated readers of the Kafka protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import fetch_request as f
from ledgermq_broker.kafka.wire.generated import list_offsets_request as lo
from ledgermq_broker.kafka.wire.messages import FETCH, LIST_OFFSETS
from tests.broker.kafka_world import records_of
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.history import Assign, Poll
from tests.simulation.kafka_lines import LineBroke
from tests.simulation.kafka_programs import INPUT, OUTPUTS, KafkaProgram, Place

LATEST = -1
Records = list[tuple[int, str]]


class Fetching(KafkaProgram):
    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.positions: dict[int, int] = {}
        """Of the partitions of the input that it reads."""

    async def fetch(self, positions: Mapping[int, int], wait_s: float) -> dict[int, Records]:
        """Return what some partitions of the input have."""
        if not positions:
            await self.pause()
            return {}
        found = await self.fetch_places({(INPUT, number): at for number, at in positions.items()}, wait_s)
        return {number: records for (_, number), records in found.items()}

    async def fetch_places(self, positions: Mapping[Place, int], wait_s: float) -> dict[Place, Records]:
        """Ask one leader for the partitions that it has. Whatever keeps it from an answer, it is asked again later."""
        broker = await self.leader(self.random.choice(sorted(positions)))
        mine = {place: at for place, at in positions.items() if await self.leader(place) == broker}
        by_topic: dict[str, list[f.FetchPartition]] = {}
        for (topic, number), at in mine.items():
            asked = f.FetchPartition(partition=number, fetch_offset=at, partition_max_bytes=1_000_000)
            by_topic.setdefault(topic, []).append(asked)
        request = f.FetchRequest(
            max_wait_ms=round(1000 * wait_s),
            min_bytes=1,
            max_bytes=self.random.choice((1000, 50_000_000)),
            isolation_level=self.own.isolation,
            topics=[f.FetchTopic(topic=topic, partitions=parts) for topic, parts in by_topic.items()],
        )
        try:
            answer = await self.ask(broker, FETCH, 12, request, "fetch", self.timeout_s + wait_s)
        except LineBroke:
            answer = None
        if answer is None or answer.error_code:
            for place in mine:
                self.forget_leader(place)
            await self.pause()
            return {}
        found: dict[Place, Records] = {}
        for topic in answer.responses:
            for part in topic.partitions:
                place = topic.topic, part.partition_index
                if part.error_code:
                    self._refused(place, part.error_code)
                    continue
                records = [(at, (value or b"").decode()) for at, value in records_of(part) if at >= mine[place]]
                if records:
                    found[place] = records
        return found

    def _refused(self, place: Place, code: int) -> None:
        self.world.coverage.saw(f"a fetch of a Kafka client was refused: {Code(code).name}")
        self.forget_leader(place)
        if code == Code.OFFSET_OUT_OF_RANGE:
            self.world.violations.append(Violation("poll skip", f"{self.name}: {place} is out of range"))

    async def end_of(self, place: Place, isolation: int) -> int:
        """Return the latest offset."""
        part = lo.ListOffsetsPartition(partition_index=place[1], timestamp=LATEST)
        topics = [lo.ListOffsetsTopic(name=place[0], partitions=[part])]
        request = lo.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        while True:
            try:
                answer = await self.ask(await self.leader(place), LIST_OFFSETS, 7, request, "", self.timeout_s + 12.0)
                [found] = answer.topics[0].partitions
                if not found.error_code:
                    return int(found.offset)
            except LineBroke:
                pass
            self.forget_leader(place)
            await self.pause()


class KafkaReader(Fetching):
    """Reads all topics from the earliest on; now and then it begins again, where it was or at the earliest."""

    async def work(self) -> None:
        session = 0
        places = [(topic, number) for topic in (INPUT, *OUTPUTS) for number in range(PARTITIONS)]
        positions = dict.fromkeys(places, 0)
        while not self.stopped.is_set():
            session += 1
            if self.random.random() < 0.3:
                positions = dict.fromkeys(places, 0)
            reader = f"{self.label}.{session}"
            for place, at in positions.items():
                self.world.history.add(Assign(reader, self.partition(*place), at))
            over_s = self.now_s() + self.random.choice((5.0, 30.0))
            while self.now_s() < over_s and not self.stopped.is_set():
                await self._read(reader, positions)

    async def _read(self, reader: str, positions: dict[Place, int]) -> None:
        if self.random.random() < 0.1:
            place = self.random.choice(sorted(positions))
            op = self.world.history.ask_end(reader, self.partition(*place))
            self.world.history.tell_end(op, await self.end_of(place, self.own.isolation))
            self.world.coverage.saw("the latest offset was told to a Kafka client")
        for place, records in (await self.fetch_places(positions, 0.5)).items():
            self.world.coverage.saw("a Kafka client has read")
            self.world.history.add(Poll(reader, self.partition(*place), tuple(records)))
            positions[place] = records[-1][0] + 1
