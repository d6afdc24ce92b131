"""The partitions of one topic in a producer: choose the partition of a record, and the batch that it joins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.connection.routing import TopicRoute
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition, check_partition
from ledgermq.client.messages.record import Given, Outgoing, PartitionAt, Row, rows_of, value_of
from ledgermq.client.producing.arrow.rows import Piece, by_tag, split
from ledgermq.client.producing.delivery import Delivery, StoredRows, again
from ledgermq.client.producing.partition.batch import SHARED_OF_TIME, Batch
from ledgermq.client.producing.partition.compressor import Compressor, TopicExperience
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import Numbering
from ledgermq.client.producing.partition.sessions import EncodedBatch
from ledgermq.client.producing.publishing import Publishing
from ledgermq.client.producing.routing.choices import Choices
from ledgermq.client.settings.partitioner import KeylessPartition, partition_of_key, partitions_of_keys
from ledgermq.client.settings.producers import ChosenCompression, ProducerSettings
from ledgermq.errors import InvalidRecord, MessageTooLarge
from ledgermq.protocol.batches.records import data_bytes_at_most, largest_record_bytes, timestamps_of
from ledgermq.protocol.levels import (
    PRIORITY,
    level_of,
    nearest_level,
    partition_at,
    partitions_in,
    place_of,
)
from ledgermq.protocol.naming.message_ids import MESSAGE_ID, check_id

TAGS_OPEN_MAX = 64
"""With `batch_by` tag, batches of one partition that are open at once; then all are sealed."""

_NO_KEY: Row = (None, None, None, 0, None)


class TopicQueues:
    """The partitions of one topic."""

    def __init__(
        self,
        route: TopicRoute,
        settings: ProducerSettings,
        context: ClientContext,
        wake: asyncio.Event,
        publishing: Publishing,
    ) -> None:
        self.route = route
        self.queues: list[PartitionQueue] = []
        self._settings = settings
        self._connections = context.connections
        self._wake = wake
        self._publishing = publishing
        self._now_us = context.sources.now_us
        self._clock_s = asyncio.get_running_loop().time
        given = settings.partitioner
        self._partitioner = given if callable(given) else None
        self._new_keyless = partial(KeylessPartition, context.sources, "sticky" if callable(given) else given)
        self._keyless: list[KeylessPartition] = []
        """By level of priority; a topic without levels has one."""
        self._sticks = given == "sticky"
        self._by_tag = settings.batch_by == "tag"
        self._choices = Choices(self.queues, context.routing, settings.availability_timeout_s)
        self._compression: ChosenCompression | None = None
        self._compressors: list[Compressor] = []
        """One encoder per partition, because records of one key are alike and go to the same
        partition.
        """
        self._experience = TopicExperience()
        self.update(route)

    def update(self, route: TopicRoute) -> None:
        """Apply a newer description of the same topic (same id): partitions may have been added,
        settings changed.
        """
        self.route = route
        self._record_bytes_max = route.record_bytes_max
        self._levels = route.levels
        size_max = self._settings.batch_bytes_max
        takes_plain = route.record_bytes_max >= size_max and self._sticks and not self._by_tag
        takes_rows = takes_plain and route.levels == 1 and not (route.deduplicates and self._publishing.deduplicates)
        self._bytes_max = size_max if takes_plain else -1, size_max if takes_rows else -1
        """Up to how many bytes batches take plain values, and checked rows: see `Batch`."""
        self._bounds = None if self._publishing.needs_time else route.timestamp_bounds
        self._keyless += [self._new_keyless() for _ in range(len(self._keyless), self._levels)]
        compression = route.compression or self._settings.compression
        if compression != self._compression:
            self._compression, self._compressors, self._experience = compression, [], TopicExperience()
        for queue in self.queues:
            for batch in queue.open_batches():
                batch.close()  # also for values that are not checked one by one: the limit may have changed
        for partition in range(len(self.queues), route.partitions):
            self.queues.append(self._new_queue(partition))
        new = range(len(self._compressors), route.partitions)
        self._compressors += [Compressor(compression, self._experience) for _ in new]

    def _new_queue(self, partition: int) -> PartitionQueue:
        at = TopicPartition(self.route.name, partition)
        publishing = self._publishing
        return PartitionQueue(
            at,
            self.route.topic_id,
            numbering=publishing.numbering,
            window_batches=self._settings.window_batches,
            backoff=self._connections.backoff(),
            session=publishing.session(at) if publishing.numbering is Numbering.GIVEN else None,
        )

    def add(self, row: Row, size: int, partition: int | None, deadline_s: float | None = None) -> Delivery:
        """Add a record. `deadline_s`: as in `Batch`. Raises MessageTooLarge, UnknownPartition, and why the partition
        takes no record at present; then the record is not queued.
        """
        if size > self._record_bytes_max:
            raise MessageTooLarge(
                f"the record has {size} bytes; topic {self.route.name} takes up to {self._record_bytes_max}"
            )
        message_id = None if row[2] is None else self._message_id(row[2])
        queue = self.queues[self._partition(row, partition, message_id)]
        if queue.refuses is not None:
            raise again(queue.refuses)
        if self._by_tag and queue.turn_to(row[4]) >= TAGS_OPEN_MAX:
            self.seal(queue)
        batch, has_id = queue.open, message_id is not None
        expect_end = partition.expect_end if type(partition) is PartitionAt else None
        # Brokers refuse a timestamp out of bounds with its whole batch: such a record is alone in its batch.
        is_alone = self._bounds is not None and not self._bounds.hold(row[3], row[3], self._now_us())
        if (
            batch is None
            or batch.data_bytes + size > self._settings.batch_bytes_max
            or ((batch.has_ids != has_id or is_alone or expect_end is not None) and batch.record_count)
            or not batch.shares(deadline_s, self._clock_s())
        ):
            batch = self._open_batch(queue, deadline_s)
        batch.has_ids = has_id
        delivery = Delivery(batch, batch.add(row, size))
        batch.expect_end = expect_end
        if is_alone or expect_end is not None:
            self.seal(queue, only_open=self._by_tag)
        return delivery

    def _message_id(self, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """Return the id by which the topic recognizes the record; None: it has none. Raises InvalidRecord if
        the program has given one that nothing would look at.
        """
        value = value_of(headers, MESSAGE_ID)
        if value is None:
            return None
        if self.route.deduplicates and self._publishing.deduplicates:
            return check_id(value)
        if type(value) is not Given:
            return None
        if not self.route.deduplicates:
            raise InvalidRecord(
                f"topic {self.route.name} does not recognize messages by their ids: set dedup.window.ms, or leave out"
                " the id"
            )
        raise InvalidRecord(
            "an id is for records that a producer sends with acks=durable: those of transactions, and delayed ones,"
            " take none"
        )

    def _partition(self, row: Row, partition: int | None, message_id: bytes | None = None) -> int:
        if partition is not None:
            return check_partition(partition, len(self.queues), self.route.name)
        level = 0 if row[2] is None else self._level(row[2])
        count = partitions_in(level, self._levels, len(self.queues))
        return partition_at(self._place(row, level, count, message_id), level, self._levels)

    def _place(self, row: Row, level: int, count: int, message_id: bytes | None) -> int:
        """Return which of the `count` partitions of a level takes the record."""
        key, value, headers, timestamp_us, tag = row
        if self._partitioner is not None:
            record = Outgoing(self.route.name, value, key, headers, tag, timestamp_us)
            return check_partition(self._partitioner(record, count), count, self.route.name)
        if key is not None:
            return partition_of_key(key, count)
        if message_id is not None:
            return partition_of_key(message_id, count)
        keyless, choices = self._keyless[level], self._choices
        if choices.are_free:
            return keyless.get(count)
        return keyless.get(count, choices.avoided(level, self._levels), choices.preferred(level, self._levels))

    def _level(self, headers: Sequence[tuple[str, bytes | None]]) -> int:
        """Return the level of a record. Raises InvalidRecord for a priority that the program has given, and the
        topic does not have; one that came along with the headers counts as the nearest level.
        """
        value = value_of(headers, PRIORITY)
        if type(value) is not Given:
            return 0 if value is None else nearest_level(value, self._levels)
        if self._levels == 1:
            raise InvalidRecord(
                f"topic {self.route.name} has no levels of priority: set priority.levels, or leave out the priority"
            )
        if int(value) >= self._levels:
            raise InvalidRecord(
                f"priority {int(value)} is too high: topic {self.route.name} has the levels 0 to {self._levels - 1}"
            )
        return int(value)

    def avoid(self, queue: PartitionQueue) -> None:
        self._choices.avoid()
        for batch in queue.open_batches():
            batch.close()  # values that are not checked one by one would join it

    def _open_batch(self, queue: PartitionQueue, deadline_s: float | None) -> Batch:
        self.seal(queue, only_open=self._by_tag)
        queue.open = self._new_batch(queue, deadline_s)
        self._wake.set()
        return queue.open

    def _new_batch(self, queue: PartitionQueue, deadline_s: float | None = None) -> Batch:
        compressor = self._compressors[queue.at.partition]
        quiet = not self._settings.raise_on_error
        batch = Batch(queue.at, self.route.topic_id, self._clock_s(), compressor, *self._bytes_max, quiet=quiet)
        if deadline_s is not None:
            batch.end_by(deadline_s)
            queue.deadlines.add(batch)
        return batch

    def seal(self, queue: PartitionQueue, *, only_open: bool = False) -> None:
        if only_open and self._by_tag:  # the batches of other tags stay open, and so does the choice of the partition
            queue.seal_open()
        elif queue.open_batches():
            queue.seal()
            self._leave(queue.at.partition)

    def _leave(self, partition: int) -> None:
        """Let records without a key go to another partition of the level."""
        level = level_of(partition, self._levels)
        count, preferred = partitions_in(level, self._levels, len(self.queues)), None
        if self._sticks:
            preferred = self._choices.preferred(level, self._levels)
        self._keyless[level].leave(place_of(partition, self._levels), count, preferred)

    def check_arrow(self, piece: Piece, partition: int | None) -> None:
        """Raise MessageTooLarge or UnknownPartition if the topic cannot take a row. An error of the user's
        partitioner is raised by `add_arrow`.
        """
        if (
            data_bytes_at_most(piece.rows) > self._record_bytes_max
            and (largest := largest_record_bytes(piece.rows)) > self._record_bytes_max
        ):
            raise MessageTooLarge(
                f"a record has {largest} bytes; topic {self.route.name} takes up to {self._record_bytes_max}"
            )
        given = [partition] if piece.partitions is None else pc.min_max(piece.partitions).as_py().values()
        for number in given:
            if number is not None:
                check_partition(number, len(self.queues), self.route.name)

    def add_arrow(
        self, piece: Piece, buffer_bytes: int, partition: int | None, deadline_s: float | None = None
    ) -> list[StoredRows]:
        """Add rows of the record schema. `partition`, or else the piece, or else keys choose partitions as
        for single records; each batch keeps the order of its rows. `deadline_s`: as in `Batch`. Raises
        MessageTooLarge, UnknownPartition; then no row is queued.
        """
        self.check_arrow(piece, partition)
        rows = piece.rows
        pieces = [
            (number, part)
            for number, together in self._parts(piece, partition)
            for alike in (by_tag(together, TAGS_OPEN_MAX) if self._by_tag else (together,))
            for part in split(alike, self._settings.batch_bytes_max)
        ]
        for number, _ in pieces:
            if (refusal := self.queues[number].refuses) is not None:
                raise again(refusal)
        runs: list[StoredRows] = []
        left_bytes, left_rows = buffer_bytes, rows.num_rows
        all_taken = self._is_taken(rows)
        for number, part in pieces:
            queue = self.queues[number]
            self.seal(queue)
            held_bytes = left_bytes * part.num_rows // left_rows
            left_bytes, left_rows = left_bytes - held_bytes, left_rows - part.num_rows
            taken = all_taken or self._is_taken(part)
            if not taken or (batch := self._joinable(queue, part, deadline_s)) is None:
                batch = self._new_batch(queue, deadline_s)
                batch.is_alone = not taken
                queue.add_sealed(batch)
            runs.append(batch.add_arrow(part, held_bytes))
        for number in dict.fromkeys(number for number, _ in pieces):
            self._leave(number)
        self._wake.set()
        return runs

    def _joinable(self, queue: PartitionQueue, rows: pa.RecordBatch, deadline_s: float | None) -> Batch | None:
        """Return the batch of Arrow rows that waits last in its queue, if rows that brokers take may travel with it.

        As for single records, a batch grows while it waits. Otherwise the few batches on their way to a distant
        store would be as small as what a program sends at a time. It grows for a part of its time only, because what
        joins it fails with it.
        """
        batch, now_s = queue.last_sealed(), self._clock_s()
        if (
            batch is None
            or self._by_tag
            or batch.is_alone
            or not batch.takes_arrow
            or not batch.shares(deadline_s, now_s)
            or now_s - batch.born_s > SHARED_OF_TIME * self._settings.delivery_timeout_s
            or batch.data_bytes + rows.nbytes > self._settings.batch_bytes_max
        ):
            return None
        return batch

    def _is_taken(self, rows: pa.RecordBatch) -> bool:
        """Return whether brokers take these keys and timestamps; they refuse wrong ones with their whole batch."""
        if self.route.is_keyed and rows.column("key").null_count:
            return False
        if self._bounds is None or (low_high := timestamps_of(rows)) is None:
            return True
        return self._bounds.hold(*low_high, self._now_us())

    def add_encoded(self, encoded: EncodedBatch, partition: int, sequence: int) -> Batch:
        """Queue a batch that is encoded already, with its sequence, and return it. Raises UnknownPartition."""
        queue = self.queues[check_partition(partition, len(self.queues), self.route.name)]
        batch = self._new_batch(queue)
        batch.take_encoded(encoded, sequence)
        queue.add_sealed(batch)
        self._wake.set()
        return batch

    def _parts(self, piece: Piece, partition: int | None) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of each partition. Raises UnknownPartition; then no row is queued."""
        rows, keys = piece.rows, piece.rows.column("key")
        headers = rows.column("headers")
        may_differ = self._levels > 1 and headers.null_count < len(headers)  # in their levels
        together = piece.partitions is None and keys.null_count == len(keys) and self._sticks and not may_differ
        if partition is not None or together:
            return [(self._partition(_NO_KEY, partition), rows)]
        looks = self._partitioner is not None or may_differ
        if piece.partitions is None and not looks and (self._sticks or not keys.null_count):
            return self._by_keys(rows, keys)
        numbers: Iterable[int | None] = repeat(None) if piece.partitions is None else piece.partitions.to_pylist()
        given = rows_of(rows) if looks else ((key, *_NO_KEY[1:]) for key in keys.to_pylist())
        indices: dict[int, list[int]] = {}
        for index, (row, number) in enumerate(zip(given, numbers, strict=False)):
            indices.setdefault(self._partition(row, number), []).append(index)
        return [(number, rows.take(pa.array(chosen, pa.int64()))) for number, chosen in indices.items()]

    def _by_keys(self, rows: pa.RecordBatch, keys: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of each partition, in their order. Each different key is looked at once."""
        different = keys.dictionary_encode()
        places = partitions_of_keys(different.dictionary, partitions_in(0, self._levels, len(self.queues)))
        numbers = pc.multiply(places, self._levels).take(different.indices)  # all of the lowest level
        if numbers.null_count:
            numbers = numbers.fill_null(self._partition(_NO_KEY, None))
        order = pc.array_sort_indices(numbers)  # a stable one
        runs = pc.run_end_encode(numbers.take(order))
        first, found = 0, []
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            # not a slice, which would keep the rows of all partitions while one waits
            found.append((number, rows.take(order.slice(first, end - first))))
            first = end
        return found
