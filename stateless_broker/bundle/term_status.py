"""Report the state of a term of ownership, for metrics and status.

It costs no request.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.log.writer import LedgerWriter
from ledger.topics.catalog import Catalog
from ledger.view.view import LedgerView


@dataclass(frozen=True, slots=True)
class TermStatus:
    """`untrimmed_slots`: segments that are not in Parquet yet, or that a parked partition keeps.

    `compaction_age_ms`, `compaction_bytes`: age and size of the records of user topics that are not
    in Parquet, as far as the fetch index reaches.
    """

    epoch: int
    slot: int
    puts_in_flight: int
    untrimmed_slots: int
    parked: int
    compaction_age_ms: int
    compaction_bytes: int


def term_status(writer: LedgerWriter, view: LedgerView, catalog: Catalog, now_ms: int) -> TermStatus:
    parked = {(part.topic_id, part.partition) for part in view.parked}
    oldest_ms, backlog_bytes = now_ms, 0
    for key in view.index.partitions:
        topic = catalog.topics_by_id.get(key[0])
        backlog = view.index.backlog(key, view.parquet_end(key))
        if backlog is None or topic is None or topic.removed or topic.internal or key in parked:
            continue
        backlog_bytes += backlog[0]
        oldest_ms = min(oldest_ms, backlog[1])
    return TermStatus(
        epoch=writer.epoch,
        slot=writer.durable.slot,
        puts_in_flight=writer.puts_in_flight,
        untrimmed_slots=max(0, writer.durable.slot + 1 - view.checkpoint.trim_slot),
        parked=len(parked),
        compaction_age_ms=now_ms - oldest_ms,
        compaction_bytes=backlog_bytes,
    )
