"""Batches that a caller reads from the store by itself: which objects they are in, named for others
than this broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledger import keys
from ledger.object_store.contract import ObjectStore
from ledger.view.fetch_index import IndexedBatch

SHARED_MAX = 16
"""Segments of one partition in one answer."""
SHARED_MS = 15 * 60 * 1000
"""How long the URL of a segment is good, where URLs expire."""


@dataclass(frozen=True, slots=True)
class LocatedBatch:
    """`url`: of the segment."""

    batch: IndexedBatch
    url: str


async def located(store: ObjectStore, bundle: int, batches: Iterable[IndexedBatch]) -> list[LocatedBatch]:
    """The first of these, as many as an answer may name; none where the store's objects cannot be
    shared.
    """
    urls: dict[int, str] = {}
    found: list[LocatedBatch] = []
    for batch in batches:
        if batch.slot not in urls:
            if (
                len(urls) == SHARED_MAX
                or (url := await store.share(keys.segment(bundle, batch.slot), SHARED_MS)) is None
            ):
                break
            urls[batch.slot] = url
        found.append(LocatedBatch(batch, urls[batch.slot]))
    return found
