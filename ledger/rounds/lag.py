"""How far Parquet is behind a ledger. Pure."""

from __future__ import annotations

from ledger.log.history import History
from ledger.parquet.plan import Fate, backlogs_of
from ledger.parquet.report import Lag
from ledger.topics.catalog import Catalog


def lag_of(history: History, catalog: Catalog) -> Lag:
    """Raises Unavailable when the catalog is older than the newest checkpoint's view of it."""
    backlogs = [
        backlog for backlog in backlogs_of(history, catalog).values() if backlog.fate in (Fate.WRITE, Fate.WAIT)
    ]
    return Lag(
        records=sum(
            backlog.end - max(backlog.counters.parquet_end, backlog.batches[0][2].base_offset) for backlog in backlogs
        ),
        bytes=sum(backlog.bytes for backlog in backlogs),
        written_ms=min((backlog.batches[0][1] for backlog in backlogs), default=None),
    )
