"""The partitions of one topic in a producer: where a record goes, and the batch that it joins."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ledgermq.client.partitioner import StickyPartition, checked, partition_of_key
from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.compressor import Chosen, Compressor
from ledgermq.client.producing.delivery import Delivery
from ledgermq.client.producing.given_sessions import EncodedBatch
from ledgermq.client.producing.partition_queue import PartitionQueue
from ledgermq.client.record import Row
from ledgermq.client.routing import TopicRoute
from ledgermq.client.settings import ProducerSettings
from ledgermq.errors import MessageTooLarge
from ledgermq.protocol.records import data_bytes_at_most, largest_record_bytes
from ledgermq.sources import Sources


class TopicQueues:
    """`changed()` is called when a batch was opened or completed: the dispatcher may have to do
    something.
    """

    def __init__(
        self,
        route: TopicRoute,
        settings: ProducerSettings,
        sources: Sources,
        new_queue: Callable[[TopicRoute, int], PartitionQueue],
        clock_s: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self.route = route
        self.queues: list[PartitionQueue] = []
        self._settings = settings
        self._new_queue = new_queue
        self._clock_s = clock_s
        self._changed = changed
        self._sticky = StickyPartition(sources)
        self._compression: Chosen | None = None
        self._compressors: list[Compressor] = []
        """One a partition: what is alike goes to the same one, by its key."""
        self.update(route)

    def update(self, route: TopicRoute) -> None:
        """Newer knowledge of the same topic (same id): partitions may have been added, settings
        changed.
        """
        self.route = route
        self._record_bytes_max = route.record_bytes_max
        compression = route.compression or self._settings.compression
        if compression != self._compression:
            self._compression, self._compressors = compression, []
        for queue in self.queues:
            if queue.open is not None:
                queue.open.close()  # to values that are not looked at: the limit may be another one
        for partition in range(len(self.queues), route.partitions):
            self.queues.append(self._new_queue(route, partition))
        self._compressors += [Compressor(compression) for _ in range(len(self._compressors), route.partitions)]

    def add(self, row: Row, size: int, partition: int | None) -> Delivery:
        """Raises MessageTooLarge, UnknownPartition; the record is nowhere then."""
        if size > self._record_bytes_max:
            raise MessageTooLarge(
                f"a record of {size} bytes; topic {self.route.name} takes up to {self._record_bytes_max}"
            )
        queue = self.queues[self._partition(row[0], partition)]
        batch = queue.open
        if batch is None or batch.data_bytes + size > self._settings.batch_bytes_max:
            batch = self._open_batch(queue)
        return Delivery(batch, batch.add(row, size))

    def _partition(self, key: bytes | None, partition: int | None) -> int:
        count = len(self.queues)
        if partition is not None:
            return checked(partition, count, self.route.name)
        if self._settings.partitioner is not None:
            return checked(self._settings.partitioner(self.route.name, key, count), count, self.route.name)
        return self._sticky.get(count) if key is None else partition_of_key(key, count)

    def _open_batch(self, queue: PartitionQueue) -> Batch:
        self.seal(queue)
        queue.open = self._new_batch(queue.partition)
        self._changed()
        return queue.open

    def _new_batch(self, partition: int) -> Batch:
        size_max = self._settings.batch_bytes_max
        plain_bytes_max = size_max if self._record_bytes_max >= size_max and self._settings.partitioner is None else -1
        return Batch(
            self.route.name,
            self.route.topic_id,
            partition,
            self._clock_s(),
            self._compressors[partition],
            plain_bytes_max,
        )

    def seal(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            queue.seal()
            self._sticky.leave(queue.partition, len(self.queues))

    def add_arrow(self, rows: pa.RecordBatch, buffer_bytes: int, partition: int | None) -> list[Batch]:
        """Rows of the record schema. Keys decide as for single records; each batch keeps the order
        of its rows.

        Raises MessageTooLarge, UnknownPartition; nothing is taken then.
        """
        if (
            data_bytes_at_most(rows) > self._record_bytes_max
            and (largest := largest_record_bytes(rows)) > self._record_bytes_max
        ):
            raise MessageTooLarge(
                f"a record of {largest} bytes; topic {self.route.name} takes up to {self._record_bytes_max}"
            )
        pieces = [
            (number, piece)
            for number, part in self._parts(rows, partition)
            for piece in _split(part, self._settings.batch_bytes_max)
        ]
        batches = []
        left_bytes, left_rows = buffer_bytes, rows.num_rows
        for number, piece in pieces:
            self.seal(self.queues[number])
            batch = self._new_batch(number)
            held_bytes = left_bytes * piece.num_rows // left_rows
            left_bytes, left_rows = left_bytes - held_bytes, left_rows - piece.num_rows
            batch.fill(piece, held_bytes)
            self.queues[number].add_sealed(batch)
            batches.append(batch)
        for number in {number for number, _ in pieces}:
            self._sticky.leave(number, len(self.queues))
        self._changed()
        return batches

    def add_encoded(self, encoded: EncodedBatch, partition: int, sequence: int) -> Batch:
        """Raises UnknownPartition; nothing is taken then."""
        queue = self.queues[checked(partition, len(self.queues), self.route.name)]
        batch = self._new_batch(queue.partition)
        batch.take_encoded(encoded, sequence)
        queue.add_sealed(batch)
        self._changed()
        return batch

    def _parts(self, rows: pa.RecordBatch, partition: int | None) -> list[tuple[int, pa.RecordBatch]]:
        keys = rows.column("key")
        if partition is not None or (keys.null_count == len(keys) and self._settings.partitioner is None):
            return [(self._partition(None, partition), rows)]
        indices: dict[int, list[int]] = {}
        for row, key in enumerate(keys.to_pylist()):
            indices.setdefault(self._partition(key, None), []).append(row)
        return [(number, rows.take(pa.array(chosen, pa.int64()))) for number, chosen in indices.items()]


def _split(rows: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """In pieces of at most `bytes_max`, or of one row.

    As for single records their data counts, and the rest up to as much again.
    """
    size = rows.nbytes
    if size <= bytes_max or rows.num_rows == 1 or (size <= 2 * bytes_max and data_bytes_at_most(rows) <= bytes_max):
        return [rows]
    half = rows.num_rows // 2
    return _split(rows.slice(0, half), bytes_max) + _split(rows.slice(half), bytes_max)
