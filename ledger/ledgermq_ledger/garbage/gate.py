"""The one place that is asked whether an object may be deleted. Every deletion of this package goes through
`Gate.delete`; what keeps an object although nothing of the log needs it any longer is a rule here.

    trashed topic   its files and versions stay until the grace is over (design D11)
    held topic      the same, by the bundle's newest checkpoint (legal hold, or a deletion that is in force)

A remover decides by what it has read, some time ago perhaps. So it builds its gate from what it read last, just
before it deletes. Pure but for the deletion itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import is_held

DELETE_BATCH = 500


class Gate:
    """`catalog`, `checkpoint`: what the remover knows; None where it is about objects of no topic."""

    def __init__(self, catalog: Catalog | None = None, checkpoint: fmt.Checkpoint | None = None) -> None:
        self._catalog = catalog
        self._checkpoint = checkpoint

    def why_kept(self, key: str) -> str:
        """Return why the object has to stay; "" if it may be deleted."""
        topic_id = _topic_of(key)
        if topic_id is None:
            return ""
        if self._catalog is None and self._checkpoint is None:
            raise AssertionError(f"{key} belongs to a topic: only a catalog or a checkpoint says whether it may go")
        topic = self._catalog.topics_by_id.get(topic_id) if self._catalog is not None else None
        if topic is not None and topic.trash is not None:
            return f"topic {topic.name} is deleted, and can be brought back"
        if self._checkpoint is not None and is_held(self._checkpoint, topic_id):
            return f"topic id {topic_id} is held"
        return ""

    async def delete(self, store: ObjectStore, keys: Sequence[str]) -> list[str]:
        """Delete the objects in the given order, one request for each `DELETE_BATCH` of them, up to the first one
        that has to stay. Return the keys that were deleted.
        """
        free = []
        for key in keys:
            if self.why_kept(key):
                break
            free.append(key)
        for i in range(0, len(free), DELETE_BATCH):
            await store.delete(free[i : i + DELETE_BATCH])
        return free


def _topic_of(key: str) -> int | None:
    """Return the id of the topic whose records an object holds; None for all others."""
    if (file := keys.parse_parquet(key)) is not None:
        return file.topic_id
    if (version := keys.parse_keyed(key)) is not None:
        return version.place.topic_id
    return None
