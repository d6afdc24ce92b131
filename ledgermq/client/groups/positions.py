"""A member's positions in the partitions that it holds: read them, seek, pause.

Nothing here changes what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ledgermq.client.consuming.reader import Reader
from ledgermq.client.consuming.start import Wanted, check_position
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.holding.holding import Holding, Start
from ledgermq.client.groups.lag import Lag, Lags
from ledgermq.client.groups.membership.holdings import Holdings
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig, UnknownPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Positions:
    """`timeout_s` bounds each look-up of offsets."""

    def __init__(
        self, context: ClientContext, holdings: Holdings, reader: Reader[GroupMessage], timeout_s: float
    ) -> None:
        self._lags = Lags(context)
        self._holdings = holdings
        self._reader = reader
        self._offsets = context.offsets
        self._connections = context.connections
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
        """Return the chosen holdings; None means all. Raises InvalidConfig, UnknownPartition."""
        readable = self._holdings.readable
        if topic is None and partition is not None and len({holding.partition.topic for holding in readable}) > 1:
            raise InvalidConfig("the consumer reads several topics: name one")
        chosen = [
            each
            for each in readable
            if partition in (None, each.partition.partition) and topic in (None, each.partition.topic)
        ]
        if not chosen and partition is not None:
            raise UnknownPartition(f"this member does not hold {topic or '…'}/{partition} at present")
        return chosen

    async def seek(self, position: Wanted, partition: int | None, topic: str | None) -> list[TopicPartition]:
        """Return the partitions that were moved.

        Those that were let go while their offsets were looked up are left out.
        """
        wanted = check_position(position, self._connections.now())
        chosen = self.chosen(partition, topic)
        found: dict[TopicPartition, int] = {}
        if not isinstance(wanted, int):
            deadline = self._connections.deadline(self._timeout_s)
            found = await self._offsets.find({holding.partition: wanted for holding in chosen}, deadline)
        moved = [holding for holding in chosen if holding.kept]
        for holding in moved:
            self._move(holding, wanted if isinstance(wanted, int) else found[holding.partition])
        self._holdings.progressed.set()
        return [holding.partition for holding in moved]

    def _move(self, holding: Holding, target: int) -> None:
        assert holding.reading is not None, "only partitions that are read can be moved"
        holding.move(target)
        if holding.start is Start.UNCHOSEN:  # this start is committed, even if it is 0
            holding.start = Start.CHOSEN
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
    """Return the time; an int is milliseconds since the epoch. Raises InvalidConfig."""
    if isinstance(given, int) and not isinstance(given, bool):
        try:
            return _EPOCH + timedelta(milliseconds=given)
        except OverflowError as error:
            raise InvalidConfig(f"{given} ms since the epoch is outside of the years 1 to 9999") from error
    if not isinstance(given, datetime):
        raise InvalidConfig(f"a time must be a datetime or milliseconds since the epoch, not {given!r}")
    return given
