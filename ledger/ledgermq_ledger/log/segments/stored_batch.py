"""Hold a batch that was read, wherever its bytes came from: what a fetch returns."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq_ledger.object_store.contract import Buffer


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """`data`: one Arrow IPC record batch message whose CRC-32C is `crc`; its records have the
    offsets from `base_offset` on.
    """

    base_offset: int
    record_count: int
    crc: int
    data: Buffer

    @property
    def end(self) -> int:
        return self.base_offset + self.record_count
