"""Places for a group's committed offsets other than the cluster itself: `client.consumer(…,
group="g", offset_store=…)`.

`MemoryOffsetStore` for tests and for broadcast readers that need no memory; `FileOffsetStore` for
one machine; `ledgermq.offset_stores.sql.SqlOffsetStore` (extra "sql") for offsets in one
transaction with the program's own results. Each keeps the three rules of `ledgermq.OffsetStore`,
which are in `rules`.
"""

from ledgermq.offset_stores.file import FileOffsetStore
from ledgermq.offset_stores.memory import MemoryOffsetStore

__all__ = ["FileOffsetStore", "MemoryOffsetStore"]
