"""Offset stores: where a group's committed offsets are kept.

`contract` defines the guarantees of every store, `rules` its three rules as pure decisions. The
default is the cluster itself (`cluster`). A program may choose another one with `client.consumer(…,
group="g", offset_store=…)`: `MemoryOffsetStore` for tests, and for broadcast readers that start
from the beginning each time; `FileOffsetStore` for one machine;
`ledgermq.offset_stores.sql.SqlOffsetStore` (extra "sql") for offsets in one transaction with the
program's own results.
"""

from ledgermq.offset_stores.file import FileOffsetStore
from ledgermq.offset_stores.memory import MemoryOffsetStore

__all__ = ["FileOffsetStore", "MemoryOffsetStore"]
