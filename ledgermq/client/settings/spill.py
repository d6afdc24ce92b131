"""Where a producer keeps records that it cannot deliver: the value of the producer's setting `spill`, and its
state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ledgermq.buffers import MIB
from ledgermq.client.settings.declared import check_between
from ledgermq.errors import InvalidConfig, LedgerMQError

RECORDS_MAX = 100_000_000
BYTES_MAX = 1024 * 1024 * MIB


@dataclass(frozen=True, slots=True)
class Spill:
    """A local file to which a producer writes records that it cannot deliver, and from which it sends them
    again, in order.

        client.producer(spill=ledgermq.Spill("orders.spill"))

    `path`: an SQLite file on a local disk, for this producer alone; its folder must exist. `bytes_max`,
    `records_max`: bounds of the records in the file; above them `send` fails. Raises InvalidConfig.
    """

    path: str | Path
    bytes_max: int = 1024 * MIB
    records_max: int = 1_000_000

    def __post_init__(self) -> None:
        given: object = self.path
        if not isinstance(given, str | Path) or not str(given):
            raise InvalidConfig(f"path of a Spill must be the path of a file, not {given!r}")
        object.__setattr__(self, "path", Path(given).expanduser())
        for name, most in (("bytes_max", BYTES_MAX), ("records_max", RECORDS_MAX)):
            value = getattr(self, name)
            check_between(f"{name} of a Spill", value, 1, most)
            if not isinstance(value, int):
                raise InvalidConfig(f"{name} of a Spill must be a whole number, not {value!r}")


class SpillState(NamedTuple):
    """The spill of a producer now. `records`, `bytes`, `partitions`: what is in the file. The counts after
    them begin at 0 with each producer.
    """

    records: int
    bytes: int
    partitions: int
    spilled: int
    """Number of records that were written to the file."""
    resent: int
    """Number of records that were sent from the file and are stored in the cluster."""
    maybe_twice: int
    """Number of records that may be stored twice: they were on their way when the answer was lost, and the
    brokers no longer know them.
    """
    last_error: LedgerMQError | None
    """Why records stay in the file; None if all is well."""
