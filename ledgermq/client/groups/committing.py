"""What a program's own `commit` means: which messages or offsets, in which mode, and what it is
told of what was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledgermq.client.consuming.message import Message
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.committer import Committer, Refused, Wish
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.holdings import Holdings
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.offset_store import OffsetEntry
from ledgermq.errors import InvalidRequest, StaleAssignment
from ledgermq.protocol.limits import OFFSET_MAX

METADATA_BYTES_MAX = 4096

Committable = Message | Iterable[Message] | Mapping[TopicPartition, int] | None
"""Messages, which are acknowledged; offsets, below which all is finished; None: what is finished
already.
"""


class Commits:
    def __init__(self, committer: Committer, holdings: Holdings, mode: str) -> None:
        self._committer = committer
        self._holdings = holdings
        self._mode = mode

    async def commit(
        self, what: Message | Iterable[Message] | Mapping[TopicPartition, int] | None, metadata: str
    ) -> dict[TopicPartition, int]:
        """Raises the first of what was refused, after all others were committed."""
        _check_metadata(metadata)
        stale: list[TopicPartition] = []
        if what is None:
            wishes = self._finished(metadata)
        elif isinstance(what, Mapping):
            wishes = self._offsets(what, metadata, stale)
        else:
            wishes = self._messages([what] if isinstance(what, Message) else what, metadata, stale)
        refused = await self.send(wishes)
        for holding, wish in wishes.items():
            if holding.partition not in refused:
                holding.progress.finish_through(wish.offset)
        self._holdings.progressed.set()
        if refused:
            raise next(iter(refused.values()))
        if stale:
            names = ", ".join(f"{topic}/{partition}" for topic, partition in stale)
            raise StaleAssignment(f"{names}: not this member's any more, or moved since; nothing of it was committed")
        return {holding.partition: wish.offset for holding, wish in wishes.items()}

    def entries(self, messages: Iterable[Message]) -> list[OffsetEntry]:
        """What a commit of these messages says, for a program that stores it itself."""
        last: dict[TopicPartition, int] = {}
        for message in messages:
            partition = TopicPartition(message.topic, message.partition)
            holding = self._holdings.held.get(partition)
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"entries takes messages of this group, not {type(message).__name__}")
            if (
                holding is None
                or holding.gone
                or not holding.progress.counts(message.offset, message.handout.generation)
            ):
                name = f"{partition.topic}/{partition.partition}"
                raise StaleAssignment(f"{name}: not this member's any more, or moved since; leave the transaction")
            last[partition] = max(last.get(partition, 0), message.offset)
        return [self._holdings.held[partition].next_entry(offset + 1, "") for partition, offset in last.items()]

    async def commit_all(self) -> None:
        """What is finished, in every mode. Raises as `commit`."""
        refused = await self.send(self._finished("", silent=True))
        if refused:
            raise next(iter(refused.values()))

    async def send(self, wishes: Mapping[Holding, Wish]) -> Refused:
        return await self._committer.commit(wishes)

    def holdings_of(self, messages: Iterable[GroupMessage]) -> list[Holding]:
        """Those of these messages that are still held."""
        partitions = dict.fromkeys(TopicPartition(message.topic, message.partition) for message in messages)
        return [self._holdings.held[partition] for partition in partitions if partition in self._holdings.held]

    def _finished(self, metadata: str, *, silent: bool = False) -> dict[Holding, Wish]:
        holdings = list(self._holdings.held.values())
        wishes = {holding: Wish(holding.to_commit, metadata) for holding in holdings if holding.to_commit is not None}
        if not wishes and not silent and self._mode == "manual":
            waiting = [holding for holding in holdings if holding.outstanding and not holding.answered]
            if waiting:
                raise InvalidRequest(
                    f"nothing of {waiting[0].name} was acknowledged: call message.ack(), or commit(messages)"
                )
        return wishes

    def _offsets(
        self, offsets: Mapping[TopicPartition, int], metadata: str, stale: list[TopicPartition]
    ) -> dict[Holding, Wish]:
        wishes: dict[Holding, Wish] = {}
        for partition, offset in offsets.items():
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                raise InvalidRequest(f"a commit names offsets, not {offset!r}")
            holding = self._holdings.held.get(TopicPartition(*partition))
            if holding is None or holding.reading is None:
                stale.append(TopicPartition(*partition))
                continue
            wishes[holding] = Wish(offset, metadata)
        return wishes

    def _messages(self, messages: Iterable[Message], metadata: str, stale: list[TopicPartition]) -> dict[Holding, Wish]:
        touched: dict[TopicPartition, None] = {}
        for message in messages:
            partition = TopicPartition(message.topic, message.partition)
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"commit takes messages of this group, not {type(message).__name__}")
            if message.ack():
                touched[partition] = None
            elif partition not in stale:
                stale.append(partition)
        found = [self._holdings.held[partition] for partition in touched if partition in self._holdings.held]
        return {holding: Wish(holding.to_commit, metadata) for holding in found if holding.to_commit is not None}


def _check_metadata(metadata: object) -> None:
    """Raises InvalidRequest."""
    try:
        size = len(metadata.encode()) if isinstance(metadata, str) else None
    except UnicodeEncodeError:
        size = None
    if size is None or size > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"metadata of a commit is valid text of at most {METADATA_BYTES_MAX} bytes, not {metadata!r:.200}"
        )
