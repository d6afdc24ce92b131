"""A record that a broker is about to append to an internal topic, a decision that has some, and how all such topics
encode their records: a key of text, and a protobuf message that has a format version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from ledgermq.buffers import Buffer
from ledgermq.errors import DataDamaged, FormatNotSupported

NUMBER = rb"(0|[1-9][0-9]{0,19})"
"""Pattern of a decimal number in a key; equal numbers have equal bytes."""

E = TypeVar("E")
M = TypeVar("M", bound="Versioned")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`value` None: a tombstone."""

    key: bytes
    value: Buffer | None


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """An answer, and the records that have to be durable before it is sent.

    `records`, in order, go into one segment. If there are none, the answer is final only after a fence check.
    `woken`: those whose held calls have to be answered now, such as (group, member id).
    """

    records: list[LogRecord]
    answer: T_co
    woken: tuple[tuple[str, str], ...] = ()


class Versioned(Protocol):
    """A protobuf message with the format version of the record."""

    version: int

    @classmethod
    def FromString(cls, s: bytes, /) -> Self: ...  # noqa: N802  protobuf's name

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[E]):
    """The records of one internal topic, as entries of type E. `version`: of the values that this release writes and
    reads.
    """

    topic: str
    version: int = 1

    def record(self, key: str, value: Versioned | None) -> LogRecord:
        """Return the record. `value`, of this version; None: the record deletes its key. Equal values have equal
        bytes.
        """
        return LogRecord(key.encode(), None if value is None else value.SerializeToString(deterministic=True))

    def value(self, kind: type[M], data: bytes) -> M:
        """Decode a value. Raises DataDamaged, DecodeError, and FormatNotSupported for one of another version."""
        found = kind.FromString(data)
        if found.version == 0:
            raise DataDamaged("the value has no format version")
        if found.version != self.version:
            raise FormatNotSupported(
                f"format version {found.version}, this program reads {self.version}; upgrade this program"
            )
        return found

    def decode(self, key: bytes, value: bytes | None, entry_of: Callable[[bytes, bytes | None], E | None]) -> E:
        """Return what `entry_of` makes of a record; None from it: this release does not know such a key.

        Raises DataDamaged. Raises FormatNotSupported for a record of a later version, because a reader that skips
        it would have a wrong state.
        """
        try:
            found = entry_of(key, value)
        except (DecodeError, FormatNotSupported, DataDamaged) as error:
            wrong = FormatNotSupported if isinstance(error, FormatNotSupported) else DataDamaged
            raise wrong(f"record {key[:600]!r} of {self.topic}: {error}") from error
        if found is None:
            raise FormatNotSupported(
                f"record {key[:600]!r} of {self.topic}: a later version wrote it; upgrade this program"
            )
        return found
