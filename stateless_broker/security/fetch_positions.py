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
            at = self._at.pop((part.topic, part.partition), None)
            if at is None or part.HasField("error"):
                continue
            self._at[part.topic, part.partition] = at
            if part.batches:
                at.offset = part.batches[-1].base_offset + part.batches[-1].record_count
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
