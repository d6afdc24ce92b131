"""Follow how far a stream of fetch answers has come, so that it can be opened again from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ledgermq.protocol import ledgermq_pb2 as pb


class FetchPositions:
    """`partitions`: those that a stream begins with."""

    def __init__(self, partitions: Iterable[pb.FetchPartition]) -> None:
        self._at: dict[tuple[str, int], pb.FetchPartition] = {}
        for part in partitions:
            copy = self._at[part.topic, part.partition] = pb.FetchPartition()
            copy.CopyFrom(part)

    @property
    def partitions(self) -> Sequence[pb.FetchPartition]:
        """Return where the stream goes on. Partitions that had no turn for longest come first."""
        return list(self._at.values())

    def note(self, parts: Iterable[pb.FetchedPartition]) -> None:
        """Note how far an answer has brought its partitions; one with an error is not sent again."""
        for part in parts:
            key = part.topic, part.partition
            at = self._at.pop(key, None)
            if part.HasField("error") or at is None:
                continue
            self._at[key] = at
            if batches := part.batches:
                last = batches[-1]
                at.offset = last.base_offset + last.record_count
                at.topic_id = part.topic_id
            else:  # nothing in between is wanted
                at.offset = max(at.offset, part.next_offset)


def with_partitions(request: pb.FetchRequest, partitions: Iterable[pb.FetchPartition]) -> pb.FetchRequest:
    """Return the same request for other partitions."""
    other = pb.FetchRequest()
    other.CopyFrom(request)
    del other.partitions[:]
    other.partitions.extend(partitions)
    return other
