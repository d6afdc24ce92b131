"""Offset stores: where a group's committed offsets are kept.

`contract` is what every store promises, `rules` its three rules as pure decisions. The default is
the cluster itself (`cluster`). A program may choose another one, by `client.consumer(…, group="g",
offset_store=…)`: `MemoryOffsetStore` for tests, and for broadcast readers that begin anew each
time; `FileOffsetStore` for one machine; `ledgermq.offset_stores.sql.SqlOffsetStore` (extra "sql")
for offsets in one transaction with the program's own results.
"""

from ledgermq.offset_stores.file import FileOffsetStore
from ledgermq.offset_stores.memory import MemoryOffsetStore

__all__ = ["FileOffsetStore", "MemoryOffsetStore"]
