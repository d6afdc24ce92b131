"""A member of a group by librdkafka, as a process that is killed, stopped and paused: `python -m
tests.chaos.librdkafka.member TARGET GROUP NAME SEED DIARY`. Its diary is that of `tests.chaos.member`.
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaException, Message, TopicPartition

from tests.chaos.librdkafka.program import Program
from tests.chaos.librdkafka.reading import STALL_S, GroupReader, ends_of, offset_of, place_of
from tests.chaos.workload import name_of
from tests.simulation.history import Partition


class Member(Program):
    _reader: GroupReader
    _is_auto = False
    _ends: dict[Partition, int]
    """What was handled, and is not committed; by hand only."""

    def session(self) -> None:
        """auto: librdkafka commits what is stored as handled. By hand: now and then, and before partitions go."""
        over_s = self.over_s()
        self._ends = {}
        self._is_auto = self.random.random() < 0.5
        every_ms = self.random.choice((200, 2000))
        how = {"enable.auto.commit": self._is_auto, "enable.auto.offset.store": False}
        self._reader = GroupReader(self, self._revoked, **how, **{"auto.commit.interval.ms": every_ms})
        try:
            while self.goes_on(over_s):
                self.turn()
                self._reader.poll(self.random.choice((1, 10, 200)), 1.0)
                self._handle(self._reader.taken)
                self._reader.taken = []
                if not self._is_auto and self.random.random() < 0.2:
                    self._commit()
                if self.random.random() < 0.003:
                    self.diary.write("stalled")
                    self.rest(STALL_S)
        finally:
            self._reader.close()

    def _handle(self, messages: list[Message]) -> None:
        for message in messages:
            topic, number = place_of(message)
            self.diary.write(f"handled {topic} {number} {offset_of(message)} {name_of(message.value())}")
        ends = ends_of(messages)
        if not self._is_auto:
            self._ends |= ends
            return
        try:
            self._reader.consumer.store_offsets(offsets=_places(ends))
        except KafkaException as error:
            self.told(error.args[0])

    def _commit(self) -> None:
        """What is refused belongs to another member now."""
        ends, self._ends = self._ends, {}
        if not ends:
            return
        try:
            answers = self._reader.consumer.commit(offsets=_places(ends), asynchronous=False) or ()
        except KafkaException as error:
            self.told(error.args[0])
            return
        for place in answers:
            if place.error is None:
                self.diary.write(f"committed {place.topic} {place.partition} {place.offset}")
            else:
                self.told(place.error)

    def _revoked(self, gone: set[Partition], lost: bool) -> None:
        if not lost and not self._is_auto:
            self._commit()
        self._ends = {place: end for place, end in self._ends.items() if place not in gone}


def _places(ends: dict[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]


if __name__ == "__main__":
    Member(*sys.argv[1:6]).run()
