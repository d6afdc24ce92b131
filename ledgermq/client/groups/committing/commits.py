"""What a member commits: messages that its program names, offsets, or what is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.groups.committing.committer import Committer, Refused, Wish
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import (
    InvalidRequest,
    StaleAssignment,
)
from ledgermq.offset_stores.contract import OffsetEntry
from ledgermq.offset_stores.rules import METADATA_BYTES_MAX
from ledgermq.protocol.limits import OFFSET_MAX

Committable = Message | Iterable[Message] | Mapping[TopicPartition, int] | None
"""What a program commits. Messages: they are acknowledged first. Offsets: everything below them
counts as finished. None: commit what is finished already.
"""


class Commits:
    """The program's own commits.

    `held`: the member's holdings, by partition. `progressed` is set once a message is finished.
    `mode`: the setting `commit`.
    """

    def __init__(
        self, committer: Committer, held: Mapping[TopicPartition, Holding], progressed: asyncio.Event, mode: str
    ) -> None:
        self._committer = committer
        self._held = held
        self._progressed = progressed
        self._mode = mode

    async def commit(self, what: Committable, metadata: str) -> dict[TopicPartition, int]:
        """Commit, and return the committed offsets. Raises the first refusal, after all others
        were committed.
        """
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
        self._progressed.set()
        if refused:
            raise next(iter(refused.values()))
        if stale:
            names = ", ".join(map(str, stale))
            raise StaleAssignment(
                f"{names}: not held by this member any longer, or the program seeked since; nothing of it was committed"
            )
        return {holding.partition: wish.offset for holding, wish in wishes.items()}

    def entries(self, messages: Iterable[Message]) -> list[OffsetEntry]:
        """Return the entries that a commit of these messages would send, for a program that stores
        them itself.
        """
        return [holding.next_entry(*wish) for holding, wish in self._through(messages, "entries", "").items()]

    def wishes_of(self, what: Iterable[Message] | Mapping[TopicPartition, int], metadata: str) -> dict[Holding, Wish]:
        """Return the offsets to stage in a transaction: those behind these messages, or the given
        ones.

        Raises StaleAssignment, InvalidRequest.
        """
        _check_metadata(metadata)
        if not isinstance(what, Mapping):
            return self._through(what, "send_offsets", metadata)
        stale: list[TopicPartition] = []
        wishes = self._offsets(what, metadata, stale)
        if stale:
            raise StaleAssignment(f"{', '.join(map(str, stale))}: not held by this member any longer; abort")
        return wishes

    def counts(self, message: GroupMessage) -> bool:
        """Return whether the message is still this member's, and will not be delivered again."""
        holding = self._held.get(partition_of(message))
        return (
            holding is not None
            and not holding.gone
            and holding.progress.counts(message.offset, message.handout.generation)
        )

    def _through(self, messages: Iterable[Message], call: str, metadata: str) -> dict[Holding, Wish]:
        last: dict[TopicPartition, int] = {}
        for message in messages:
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"{call}() takes messages of this group, not {type(message).__name__}")
            partition = partition_of(message)
            if not self.counts(message):
                raise StaleAssignment(
                    f"{partition}: not held by this member any longer, or the program seeked since; roll the"
                    " transaction back"
                )
            last[partition] = max(last.get(partition, 0), message.offset)
        for partition, offset in last.items():
            waiting = self._held[partition].waiting.first
            if waiting is not None and waiting < offset:
                raise InvalidRequest(
                    f"{partition}: offset {waiting} was refused, and is not finished, so {call}() cannot pass it: wait"
                    " until it was delivered again, or use retry=Retry.in_order()"
                )
        return {
            self._held[partition]: Wish(self._held[partition].progress.past_gaps(offset + 1), metadata)
            for partition, offset in last.items()
        }

    async def commit_all(self) -> None:
        """Commit what is finished, in every mode. Raises as `commit`."""
        refused = await self.send(self._finished("", silent=True))
        if refused:
            raise next(iter(refused.values()))

    async def send(self, wishes: Mapping[Holding, Wish]) -> Refused:
        return await self._committer.commit(wishes)

    def holdings_of(self, messages: Iterable[GroupMessage]) -> list[Holding]:
        """Return the holdings of these messages that are still held."""
        partitions = dict.fromkeys(partition_of(message) for message in messages)
        return [self._held[partition] for partition in partitions if partition in self._held]

    def _finished(self, metadata: str, *, silent: bool = False) -> dict[Holding, Wish]:
        holdings = list(self._held.values())
        wishes = {holding: Wish(holding.to_commit, metadata) for holding in holdings if holding.to_commit is not None}
        if not wishes and not silent and self._mode == "manual":
            waiting = [holding for holding in holdings if holding.outstanding and not holding.answered]
            if waiting:
                raise InvalidRequest(
                    f"no message of {waiting[0].partition} was acknowledged: call message.ack(), or commit(messages)"
                )
        return wishes

    def _offsets(
        self, offsets: Mapping[TopicPartition, int], metadata: str, stale: list[TopicPartition]
    ) -> dict[Holding, Wish]:
        wishes: dict[Holding, Wish] = {}
        for partition, offset in offsets.items():
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                raise InvalidRequest(f"a commit takes offsets, not {offset!r}")
            holding = self._held.get(TopicPartition(*partition))
            if holding is None or holding.reading is None:
                stale.append(TopicPartition(*partition))
                continue
            wishes[holding] = Wish(offset, metadata)
        return wishes

    def _messages(self, messages: Iterable[Message], metadata: str, stale: list[TopicPartition]) -> dict[Holding, Wish]:
        touched: dict[TopicPartition, None] = {}
        for message in messages:
            partition = partition_of(message)
            if not isinstance(message, GroupMessage):
                raise InvalidRequest(f"commit() takes messages of this group, not {type(message).__name__}")
            if message.ack():
                touched[partition] = None
            elif partition not in stale:
                stale.append(partition)
        found = [self._held[partition] for partition in touched if partition in self._held]
        return {holding: Wish(holding.to_commit, metadata) for holding in found if holding.to_commit is not None}


def _check_metadata(metadata: object) -> None:
    """Check the metadata of a commit. Raises InvalidRequest."""
    try:
        size = len(metadata.encode()) if isinstance(metadata, str) else None
    except UnicodeEncodeError:
        size = None
    if size is None or size > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"metadata of a commit must be valid text of at most {METADATA_BYTES_MAX} bytes, not {metadata!r:.200}"
        )
