"""Remember the ids that programs gave to messages, for as long as the window of their topic
(deduplication, design P8 to P10).

This is a part of the fold: it is fed by the batch entries of valid segments, in order, and is the
same in every process that reads them. An entry names the ids of its records as hashes of 16 bytes,
and the time until which they are remembered. Time is that of the ledger: the latest time that an
owner wrote into a segment (`LedgerState.append_us`), never a clock of the reading process.

    entry: ids │ 16 bytes │ 16 bytes │ …    one for each record, zeros for a record without an id
           until                            time of the append + window of the topic

At most as many ids are remembered in a ledger as `cluster.json` allows producer states. No id is
forgotten before its time to make room: the owner refuses new ones instead, and their producers try
again. A principal may have as many as are free (`ledgermq_ledger.log.partitions.shares`), so none of them takes all
for the length of its window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ledgermq.errors import DuplicateMessage, InvalidRecord, ResourceExhausted
from ledgermq.protocol.naming.message_ids import NO_ID, count_ids, split_ids
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares

RETRY_MS_MIN, RETRY_MS_MAX = 20, 5000


@dataclass(frozen=True, slots=True)
class IdRun:
    """The ids of one stored batch. `slot`: of its segment. `principal`: a hash of the name of the principal that sent
    it; 0: not known.
    """

    base_offset: int
    until_us: int
    slot: int
    ids: bytes
    count: int
    principal: int


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What `MessageIds.judge` found. `slot`: that of the newest segment which holds one of the
    originals; 0: all of them are in the batch itself.
    """

    error: DuplicateMessage
    slot: int


Seen = dict[bytes, tuple[IdRun, int]]
"""By id: its run, and its row there."""


class MessageIds:
    """The ids of all partitions of a ledger: a mutable fold. The index by id is made for the first
    judgement, so that a fold which only follows costs no memory for it.
    """

    def __init__(self, ids_max: int) -> None:
        self.ids_max = ids_max
        self.count = 0
        self.shares = Shares("message_ids", "ids of messages")
        self._runs: dict[PartitionId, deque[IdRun]] = {}
        self._seen: dict[PartitionId, Seen] | None = None

    def copy(self) -> MessageIds:
        twin = MessageIds(self.ids_max)
        twin.count = self.count
        twin.shares = self.shares.copy()
        twin._runs = {key: runs.copy() for key, runs in self._runs.items()}
        return twin

    def expire(self, now_us: int) -> None:
        """Forget the ids whose time is over, oldest first. A partition whose window was shortened
        keeps the younger ones until the older are over.
        """
        over = [key for key, runs in self._runs.items() if runs[0].until_us <= now_us]
        for key in over:
            runs = self._runs[key]
            while runs and runs[0].until_us <= now_us:
                self._forget(key, runs.popleft())
            if not runs:
                self._drop(key)

    def _forget(self, key: PartitionId, run: IdRun) -> None:
        self.count -= run.count
        self.shares.add(run.principal, -run.count)
        if self._seen is None:
            return
        seen = self._seen.get(key, {})
        for message_id in split_ids(run.ids):
            if message_id in seen and seen[message_id][0] is run:
                del seen[message_id]

    def _drop(self, key: PartitionId) -> None:
        del self._runs[key]
        if self._seen is not None:
            self._seen.pop(key, None)

    def add(self, entry: fmt.BatchEntry, slot: int) -> None:
        """Add a batch of a valid segment."""
        if entry.message_ids:
            count = count_ids(entry.message_ids)
            run = IdRun(entry.base_offset, entry.ids_until_us, slot, entry.message_ids, count, entry.principal)
            self._add(PartitionId(entry.topic_id, entry.partition), run)

    def _add(self, key: PartitionId, run: IdRun) -> None:
        self.count += run.count
        self.shares.add(run.principal, run.count)
        self._runs.setdefault(key, deque()).append(run)
        if self._seen is not None:
            _enter(self._seen.setdefault(key, {}), run)

    def judge(self, key: PartitionId, ids: bytes, now_us: int, principal: int = NO_PRINCIPAL) -> Duplicates | None:
        """Return None if no record of the batch is a duplicate: then there is room for its ids.
        `now_us`: the time of the append. What is over by then is forgotten. `principal`: see `IdRun`.

        Raises ResourceExhausted (try again when the oldest ids are over), QuotaExceeded (the same, for this
        principal only), InvalidRecord (the batch has more ids than a ledger ever remembers, of a principal or of
        all).
        """
        self.expire(now_us)
        seen = self._index().get(key, {})
        found: list[tuple[int, int]] = []
        repeated: list[tuple[int, int]] = []
        slot = 0
        own: dict[bytes, int] = {}
        for row, message_id in enumerate(split_ids(ids)):
            if message_id == NO_ID:
                continue
            original = seen.get(message_id)
            if original is not None and original[0].until_us > now_us:
                run, place = original
                found.append((row, run.base_offset + place))
                slot = max(slot, run.slot)
            elif message_id in own:
                repeated.append((row, own[message_id]))
            else:
                own[message_id] = row
        if found or repeated:
            text = f"{len(found) + len(repeated)} records have ids that were stored within the window of their topic"
            error = DuplicateMessage(text)
            error.stored, error.repeated = tuple(found), tuple(repeated)
            return Duplicates(error, slot)
        self._check_room(len(own), now_us, principal)
        return None

    def _check_room(self, more: int, now_us: int, principal: int) -> None:
        most = self.ids_max // 2 if principal else self.ids_max
        if more > most:
            whose = "of one principal " if principal else ""
            raise InvalidRecord(
                f"a batch with {more} ids: a ledger remembers {most} {whose}at most; send smaller batches"
            )
        free = self.ids_max - self.count
        if more <= free and not self.shares.is_over(principal, more, free):
            return  # the search for the oldest run below looks at every partition
        wait_ms = (min((runs[0].until_us for runs in self._runs.values()), default=now_us) - now_us) // 1000
        retry_ms = min(RETRY_MS_MAX, max(RETRY_MS_MIN, wait_ms))
        if more > free:
            raise ResourceExhausted(
                f"the ledger remembers {self.count} ids of messages, and {self.ids_max} at most: wait until the oldest"
                " are over, or set a shorter dedup.window.ms",
                retry_after_ms=retry_ms,
            )
        self.shares.check(principal, more, free, where="the ledger of this bundle", retry_after_ms=retry_ms)

    def _index(self) -> dict[PartitionId, Seen]:
        if self._seen is None:
            self._seen = {}
            for key, runs in self._runs.items():
                seen = self._seen[key] = {}
                for run in runs:
                    _enter(seen, run)
        return self._seen

    def drop_topic(self, topic_id: int) -> None:
        """Drop a removed topic."""
        for key in [key for key in self._runs if key.topic_id == topic_id]:
            self.drop_partition(key)

    def drop_partition(self, key: PartitionId) -> None:
        """Drop the ids of a partition that takes no more batches here."""
        if key in self._runs:
            for run in self._runs[key]:
                self.count -= run.count
                self.shares.add(run.principal, -run.count)
            self._drop(key)

    def ids_of(self, key: PartitionId) -> list[fmt.MessageIds]:
        """Return the ids of a partition, from the oldest on."""
        return [_encode(key, run) for run in self._runs.get(key, ())]

    def encode(self) -> Iterator[fmt.MessageIds]:
        """Yield the runs of all partitions, by partition and from the oldest on."""
        for key in sorted(self._runs):
            yield from self.ids_of(key)

    def take_in(self, stored: Iterable[fmt.MessageIds], slot: int) -> None:
        """Add ids that another ledger remembered, as if their batches were in `slot` of this one."""
        for run in stored:
            self._add(PartitionId(run.topic_id, run.partition), _decode(run, slot))

    def load(self, stored: Iterable[fmt.MessageIds]) -> None:
        for run in stored:
            self._add(PartitionId(run.topic_id, run.partition), _decode(run, run.slot))


def _decode(run: fmt.MessageIds, slot: int) -> IdRun:
    return IdRun(run.base_offset, run.until_us, slot, run.ids, count_ids(run.ids), run.principal)


def _encode(key: PartitionId, run: IdRun) -> fmt.MessageIds:
    return fmt.MessageIds(
        topic_id=key.topic_id,
        partition=key.partition,
        base_offset=run.base_offset,
        until_us=run.until_us,
        slot=run.slot,
        ids=run.ids,
        principal=run.principal,
    )


def _enter(seen: Seen, run: IdRun) -> None:
    for row, message_id in enumerate(split_ids(run.ids)):
        if message_id != NO_ID:
            seen[message_id] = (run, row)
