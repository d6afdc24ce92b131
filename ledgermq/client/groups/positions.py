"""Where a member is in the partitions that it holds, and going elsewhere.

Nothing here changes what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ledgermq.client.connections import Connections
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.consuming.start import Wanted, check_position
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.holdings import Holdings
from ledgermq.client.groups.lag import Lag, Lags
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.offsets import Offsets
from ledgermq.errors import InvalidConfig, UnknownPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Positions:
    def __init__(
        self,
        holdings: Holdings,
        reader: Reader[GroupMessage],
        offsets: Offsets,
        lags: Lags,
        connections: Connections,
        timeout_s: float,
    ) -> None:
        self._lags = lags
        self._holdings = holdings
        self._reader = reader
        self._offsets = offsets
        self._connections = connections
        self._timeout_s = timeout_s

    def all(self) -> dict[TopicPartition, int]:
        return {holding.partition: holding.position for holding in self._holdings.readable}

    async def ends(self) -> dict[TopicPartition, int]:
        return await self._offsets.find(
            dict.fromkeys(self.all(), "latest"), self._connections.deadline(self._timeout_s)
        )

    async def lag(self) -> dict[TopicPartition, Lag]:
        return await self._lags.find(self.all(), self._connections.deadline(self._timeout_s))

    def chosen(self, partition: int | None, topic: str | None) -> list[Holding]:
        """Raises InvalidConfig, UnknownPartition."""
        readable = self._holdings.readable
        if topic is None and partition is not None and len({holding.partition.topic for holding in readable}) > 1:
            raise InvalidConfig("the consumer reads several topics: say which")
        chosen = [
            each
            for each in readable
            if partition in (None, each.partition.partition) and topic in (None, each.partition.topic)
        ]
        if not chosen and partition is not None:
            raise UnknownPartition(f"this member does not hold {topic or '…'}/{partition} at present")
        return chosen

    async def seek(self, position: Wanted, partition: int | None, topic: str | None) -> list[TopicPartition]:
        """The partitions that were moved: those that were let go while their offsets were asked for
        are not.
        """
        wanted = check_position(position, self._connections.now())
        chosen = self.chosen(partition, topic)
        found: dict[TopicPartition, int] = {}
        if not isinstance(wanted, int):
            deadline = self._connections.deadline(self._timeout_s)
            found = await self._offsets.find({holding.partition: wanted for holding in chosen}, deadline)
        moved = [holding for holding in chosen if not holding.gone and not holding.letting_go]
        for holding in moved:
            self._move(holding, wanted if isinstance(wanted, int) else found[holding.partition])
        self._holdings.progressed.set()
        return [holding.partition for holding in moved]

    def _move(self, holding: Holding, target: int) -> None:
        assert holding.reading is not None, "only what is read can be moved"
        holding.progress.move(target)
        if holding.start_unknown:  # where the program chose to begin is kept, even if it is 0
            holding.start_unknown, holding.pin = False, True
        self._reader.seek([(holding.reading, target)])
        self._holdings.settle(holding)

    def set_paused(self, partitions: Iterable[TopicPartition] | None, paused: bool) -> None:
        chosen = (
            self._holdings.readable if partitions is None else [self.chosen(at, topic)[0] for topic, at in partitions]
        )
        for holding in chosen:
            holding.paused_by_program = paused
            self._holdings.settle(holding)


def moment_of(given: datetime | int) -> datetime:
    """Milliseconds since the epoch are a moment too. Raises InvalidConfig."""
    if isinstance(given, int) and not isinstance(given, bool):
        try:
            return _EPOCH + timedelta(milliseconds=given)
        except OverflowError as error:
            raise InvalidConfig(f"{given} ms since the epoch are outside of the years 1 to 9999") from error
    if not isinstance(given, datetime):
        raise InvalidConfig(f"a moment is a datetime or milliseconds since the epoch, not {given!r}")
    return given
