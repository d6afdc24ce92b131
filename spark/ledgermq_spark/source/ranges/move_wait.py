"""Know which partitions of a query are on their way to another bundle, and wait for them (design Y14). No Spark, no
broker.

A partition is planned only while it is whole in one ledger. The catalog says which moves have not
ended; the ledgers say what has left since the catalog was read, and what a plan met while it was
made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from ledgermq.errors import DeadlineExceeded, LedgerMQError
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger

PAUSE_S = 1.0
"""Between two looks at the catalog."""
NAMED_MAX = 3
Chosen = Sequence[tuple[Topic, int]]
"""Partitions of a query."""
T = TypeVar("T")
log = logging.getLogger("ledgermq.spark")


def on_their_way(chosen: Chosen) -> dict[PartitionId, str]:
    """Return the partitions with a move that has not ended, each with a text about it."""
    return {
        PartitionId(topic.id, partition): (
            f"{topic.name}/{partition} moves from bundle {move.source} to {topic.bundles[partition]} (move {move.id})"
        )
        for topic, partition in chosen
        if (move := topic.moves.get(partition)) is not None and not move.ended
    }


def gone(chosen: Chosen, ledgers: Mapping[int, FollowedLedger]) -> dict[PartitionId, str]:
    """Return the partitions that are not where the catalog has them, as far as the ledgers know, each with a text
    about it: they have left since it was read.
    """
    return {
        key: f"{topic.name}/{partition} has left bundle {topic.bundles[partition]}"
        for topic, partition in chosen
        if not ledgers[topic.bundles[partition]].holds(key := PartitionId(topic.id, partition), _move(topic, partition))
    }


def _move(topic: Topic, partition: int) -> int:
    move = topic.moves.get(partition)
    return 0 if move is None else move.id


async def planned_whole(plan: Callable[[], Awaitable[T]], left: Callable[[], Collection[PartitionId]]) -> T | None:
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
    """Bounds how long any one move may hold up a query, and says what it waits for. `seconds_max`: at most so long."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._since_s: dict[str, float] = {}

    def go_on(self) -> None:
        """Note that nothing is waited for any longer."""
        self._since_s = {}

    def put_off(self, reasons: Sequence[str]) -> None:
        """Note what is waited for now.

        Raises DeadlineExceeded when some of it has lasted too long.
        """
        now_s = asyncio.get_running_loop().time()
        new = [reason for reason in reasons if reason not in self._since_s]
        self._since_s = {reason: self._since_s.get(reason, now_s) for reason in reasons}
        if late := [reason for reason, since_s in self._since_s.items() if now_s - since_s >= self._seconds_max]:
            raise DeadlineExceeded(
                f"waited {self._seconds_max:g} s for the end of a move: {_some(late)}. Moves go on while brokers run;"
                " `ledgermq fsck` names damage that holds them up. Run the query again when the move has ended, or let"
                " it wait longer with moveTimeoutS"
            )
        if new:
            log.warning(
                "a partition is read again when its move has ended; the query waits at most %g s for each: %s",
                self._seconds_max,
                _some(new),
            )


def _some(reasons: Sequence[str]) -> str:
    more = len(reasons) - NAMED_MAX
    return ", ".join(reasons[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
