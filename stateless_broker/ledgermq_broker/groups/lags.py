"""How far groups are behind, as their coordinator sees it: values, and for how long an offset has not moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.admission.queries import QUERIES_MAX

PARTITIONS_MAX = QUERIES_MAX
"""Partitions that one look counts, at most: one request to each owner."""


@dataclass(slots=True)
class GroupLag:
    """`records`: the number of records between the group's committed offsets and the ends of the
    topic's partitions. `behind`: the committed offset of each partition that has such records. `stuck_s`: for how
    long the coordinator has seen one of these offsets unmoved; the longest.
    """

    group: str
    topic: str
    members: int
    records: int = 0
    partitions: int = 0
    behind: dict[int, int] = field(default_factory=dict)
    stuck_s: float = 0.0


class StuckOffsets:
    """Remembers since when each committed offset with records behind it is seen at its place."""

    def __init__(self) -> None:
        self._unmoved: dict[tuple[str, str, int], tuple[int, float]] = {}

    def note(self, rows: Iterable[GroupLag], now_s: float) -> None:
        """Set `stuck_s` of the rows of a look."""
        before, self._unmoved = self._unmoved, {}
        for row in rows:
            since_s = now_s
            for partition, offset in row.behind.items():
                at = (row.group, row.topic, partition)
                seen = before.get(at)
                kept = self._unmoved[at] = seen if seen is not None and seen[0] == offset else (offset, now_s)
                since_s = min(since_s, kept[1])
            row.stuck_s = now_s - since_s


def lag_infos(rows: Iterable[GroupLag], request: pb.ListLagsRequest) -> Sequence[pb.GroupLagInfo]:
    """Return the rows that a request asks for, by group, then topic."""
    return [
        pb.GroupLagInfo(
            group=row.group,
            topic=row.topic,
            records=row.records,
            members=row.members,
            stuck_s=round(row.stuck_s),
            partitions=row.partitions,
        )
        for row in sorted(rows, key=lambda row: (row.group, row.topic))
        if request.topic in ("", row.topic) and request.group in ("", row.group) and row.group > request.after
    ]


def lag_page(infos: Sequence[pb.GroupLagInfo], limit: int) -> pb.ListLagsResponse:
    """Return the first `limit` groups, 0: all, with whether there are more. A group is never cut in two."""
    groups = dict.fromkeys(info.group for info in infos)
    if not limit or len(groups) <= limit:
        return pb.ListLagsResponse(lags=infos)
    chosen = set(list(groups)[:limit])
    return pb.ListLagsResponse(lags=[info for info in infos if info.group in chosen], more=True)
