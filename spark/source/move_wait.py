"""Wait while partitions of a query are on their way to another bundle (design Y14). No Spark, no broker.

A query is planned only while each of its partitions is whole in one ledger. The catalog says which
moves have not ended; the ledgers say what has left since the catalog was read, and what a plan met
while it was made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ledger.keys import PartitionId
from ledger.topics.catalog import Topic
from ledger.view.followed_ledger import FollowedLedger
from ledgermq.errors import DeadlineExceeded, LedgerMQError

PAUSE_S = 1.0
"""Between two looks at the catalog."""
NAMED_MAX = 3
Chosen = Sequence[tuple[Topic, int]]
"""Partitions of a query."""
T = TypeVar("T")
log = logging.getLogger("ledgermq.spark")


def on_their_way(chosen: Chosen) -> list[str]:
    """Return, as texts, the moves of these partitions that have not ended."""
    return [
        f"{topic.name}/{partition} moves from bundle {move.source} to {topic.bundles[partition]} (move {move.id})"
        for topic, partition in chosen
        if (move := topic.moves.get(partition)) is not None and not move.ended
    ]


def gone(chosen: Chosen, ledgers: Mapping[int, FollowedLedger]) -> list[str]:
    """Return, as texts, the partitions that are not where the catalog has them, as far as the ledgers know: they
    have left since it was read.
    """
    return [
        f"{topic.name}/{partition} has left bundle {topic.bundles[partition]}"
        for topic, partition in chosen
        if not ledgers[topic.bundles[partition]].holds(PartitionId(topic.id, partition), _move(topic, partition))
    ]


def _move(topic: Topic, partition: int) -> int:
    move = topic.moves.get(partition)
    return 0 if move is None else move.id


async def planned_whole(plan: Callable[[], Awaitable[T]], left: Callable[[], Iterable[str]]) -> T | None:
    """Return what is planned; None if a partition has left its ledger by then, because the plan may have met the
    ledger without it. Raises what the plan raises.
    """
    try:
        found = await plan()
    except LedgerMQError:
        if left():
            return None
        raise
    return None if left() else found


class MoveWait:
    """Bounds the time that a query waits, and says what for. `seconds_max`: at most so long."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._since_s: float | None = None
        self._said = ""

    def go_on(self) -> None:
        """Note that nothing is waited for: the next `put_off` begins to count."""
        self._since_s, self._said = None, ""

    def put_off(self, reasons: Sequence[str]) -> None:
        """Note that nothing can be planned now. `reasons`: at least one.

        Raises DeadlineExceeded when that has lasted too long.
        """
        now_s = asyncio.get_running_loop().time()
        since_s = self._since_s = now_s if self._since_s is None else self._since_s
        what = ", ".join(reasons[:NAMED_MAX]) + (f" and {len(reasons) - NAMED_MAX} more" * (len(reasons) > NAMED_MAX))
        if now_s - since_s >= self._seconds_max:
            raise DeadlineExceeded(
                f"waited {self._seconds_max:g} s for the end of a move: {what}. Moves go on while brokers run;"
                " `ledgermq fsck` names damage that holds them up. Run the query again when the move has ended, or let"
                " it wait longer with moveTimeoutS"
            )
        if what != self._said:
            log.warning("the query waits for the end of a move, at most %g s: %s", self._seconds_max, what)
            self._said = what
