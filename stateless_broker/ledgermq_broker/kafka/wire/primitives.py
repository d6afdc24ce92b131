"""Read and write the primitive types of the Kafka protocol, which the generated messages consist of.

A reader never makes more than the bytes that are there can hold: the count of an array is compared with
the bytes that are left first, and a frame has `ELEMENTS_MAX` elements of arrays at most. Everything
that is wrong is CorruptFrame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

from ledgermq.buffers import Buffer
from ledgermq.errors import CorruptFrame
from ledgermq.protocol.frames import varint

Put = Callable[[Buffer], None]
"""Takes the next bytes of what is written."""
Records = Buffer | Sequence[Buffer] | None
"""Record batches: a view of the frame when they were read; to be written, also pieces of one."""

ELEMENTS_MAX = 50_000
"""Elements of all arrays of a frame, so that a frame takes some megabytes of objects at most, and is read within
fractions of a second.
"""
VARINT_BYTES_MAX = 5
NO_TAGS = b"\x00"

_BYTE = struct.Struct(">b")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class Written(Protocol):
    """A generated structure."""

    def write(self, put: Put, version: int) -> None: ...


T = TypeVar("T")
Read = Callable[["Reader", int], T]


class _Budget:
    __slots__ = ("elements",)

    def __init__(self, elements: int) -> None:
        self.elements = elements


class Reader:
    """Reads one frame from `at` on. `budget`: shared by the parts of a frame."""

    __slots__ = ("_at", "_budget", "_data", "_end")

    def __init__(self, data: Buffer, at: int = 0, end: int | None = None, budget: _Budget | None = None) -> None:
        self._data = memoryview(data)
        self._at = at
        self._end = len(self._data) if end is None else end
        self._budget = budget or _Budget(ELEMENTS_MAX)

    @property
    def left(self) -> int:
        return self._end - self._at

    @property
    def elements(self) -> int:
        """Return how many elements of arrays were read of the frame."""
        return ELEMENTS_MAX - self._budget.elements

    def check_end(self) -> None:
        """Raise CorruptFrame if there is more."""
        if self._at != self._end:
            raise CorruptFrame(f"{self.left} bytes are left over at byte {self._at}")

    def fixed(self, form: struct.Struct) -> tuple[Any, ...]:
        """Read values of fixed sizes."""
        at = self._at
        self._at = end = at + form.size
        if end > self._end:
            raise CorruptFrame(f"the frame ends inside a value of {form.size} bytes at byte {at}")
        return form.unpack_from(self._data, at)

    def uvarint(self) -> int:
        """Read an unsigned integer below 2**32, of five bytes at most."""
        value = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            if self._at >= self._end:
                raise CorruptFrame("the frame ends inside a varint")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise CorruptFrame("a varint has more than five bytes, or is 2**32 or more")

    def string(self, flexible: bool) -> str:
        found = self.string_or_none(flexible, False)
        assert found is not None
        return found

    def string_or_none(self, flexible: bool, nullable: bool) -> str | None:
        length = self._length(flexible, _SHORT, nullable)
        if length is None:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptFrame(f"a string is not UTF-8: {error}") from None

    def strings(self, flexible: bool) -> list[str]:
        return [self.string(flexible) for _ in range(self._count(flexible, False, 1) or 0)]

    def strings_or_none(self, flexible: bool, nullable: bool) -> list[str] | None:
        count = self._count(flexible, nullable, 1)
        return None if count is None else [self.string(flexible) for _ in range(count)]

    def bytes(self, flexible: bool) -> memoryview:
        found = self.bytes_or_none(flexible, False)
        assert found is not None
        return found

    def bytes_or_none(self, flexible: bool, nullable: bool) -> memoryview | None:
        length = self._length(flexible, _INT, nullable)
        return None if length is None else self._take(length)

    def records(self, flexible: bool) -> memoryview:
        return self.bytes(flexible)

    def records_or_none(self, flexible: bool, nullable: bool) -> memoryview | None:
        return self.bytes_or_none(flexible, nullable)

    def numbers(self, kind: str, flexible: bool) -> list[Any]:
        found = self.numbers_or_none(kind, flexible, False)
        assert found is not None
        return found

    def numbers_or_none(self, kind: str, flexible: bool, nullable: bool) -> list[Any] | None:
        """Read an array of values of one fixed size; `kind` as in `struct`."""
        one = struct.calcsize(f">{kind}")
        count = self._count(flexible, nullable, one)
        if count is None:
            return None
        if kind.endswith("s"):
            return [self._take(one).tobytes() for _ in range(count)]
        return list(struct.unpack(f">{count}{kind}", self._take(one * count)))

    def array(self, read: Read[T], version: int, least_bytes: int, flexible: bool) -> list[T]:
        found = self.array_or_none(read, version, least_bytes, flexible, False)
        assert found is not None
        return found

    def array_or_none(
        self, read: Read[T], version: int, least_bytes: int, flexible: bool, nullable: bool
    ) -> list[T] | None:
        """Read an array of structures, each of `least_bytes` or more."""
        count = self._count(flexible, nullable, least_bytes)
        return None if count is None else [read(self, version) for _ in range(count)]

    def structure_or_none(self, read: Read[T], version: int, nullable: bool) -> T | None:
        """Read a structure that a byte precedes where it may be null."""
        if nullable and self.fixed(_BYTE)[0] < 0:
            return None
        return read(self, version)

    def tags(self) -> Iterator[tuple[int, Self]]:
        """Yield tagged fields, each with a reader of its value."""
        before = -1
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            if tag <= before:
                raise CorruptFrame(f"tagged field {tag} comes after {before}")
            before = tag
            start = self._at
            self._take(size)
            yield tag, type(self)(self._data, start, self._at, self._budget)

    def skip_tags(self) -> None:
        if self._at < self._end and not self._data[self._at]:
            self._at += 1  # nearly always there are none
            return
        for _ in self.tags():
            pass

    def _take(self, length: int) -> memoryview:
        at = self._at
        if length > self._end - at:
            raise CorruptFrame(f"the frame ends inside a value of {length} bytes at byte {at}")
        self._at = at + length
        return self._data[at : self._at]

    def _length(self, flexible: bool, form: struct.Struct, nullable: bool) -> int | None:
        """Read the length of a string, of bytes or of an array; None for null."""
        length = self.uvarint() - 1 if flexible else int(self.fixed(form)[0])
        if length < -1:
            raise CorruptFrame(f"a length of {length}")
        if length == -1:
            if not nullable:
                raise CorruptFrame("null where this version takes none")
            return None
        return length

    def _count(self, flexible: bool, nullable: bool, least_bytes: int) -> int | None:
        """Read the count of an array that the bytes which are left can hold."""
        count = self._length(flexible, _INT, nullable)
        if count is None:
            return None
        if count * least_bytes > self.left:
            raise CorruptFrame(f"an array of {count} elements, and {self.left} bytes are left")
        self._budget.elements -= count
        if self._budget.elements < 0:
            raise CorruptFrame(f"a frame has at most {ELEMENTS_MAX} elements of arrays")
        return count


def put_string(put: Put, value: str | None, flexible: bool, nullable: bool) -> None:
    if _put_null(put, value, flexible, nullable, _SHORT):
        return
    assert value is not None
    data = value.encode()
    put((varint(len(data) + 1) if flexible else _SHORT.pack(len(data))) + data)


def put_strings(put: Put, values: Sequence[str] | None, flexible: bool, nullable: bool) -> None:
    if _put_null(put, values, flexible, nullable, _INT):
        return
    assert values is not None
    put(_length(len(values), flexible))
    for value in values:
        put_string(put, value, flexible, False)


def put_bytes(put: Put, value: Buffer | None, flexible: bool, nullable: bool) -> None:
    if _put_null(put, value, flexible, nullable, _INT):
        return
    assert value is not None
    put(_length(len(value), flexible))
    put(value)


def put_records(put: Put, value: Records, flexible: bool, nullable: bool) -> None:
    if _put_null(put, value, flexible, nullable, _INT):
        return
    assert value is not None
    pieces: Sequence[Buffer] = [value] if isinstance(value, bytes | bytearray | memoryview) else value
    put(_length(sum(map(len, pieces)), flexible))
    for piece in pieces:
        put(piece)


def put_numbers(put: Put, kind: str, values: Sequence[Any] | None, flexible: bool, nullable: bool) -> None:
    if _put_null(put, values, flexible, nullable, _INT):
        return
    assert values is not None
    put(_length(len(values), flexible))
    put(b"".join(values) if kind.endswith("s") else struct.pack(f">{len(values)}{kind}", *values))


def put_array(put: Put, values: Sequence[Written] | None, version: int, flexible: bool, nullable: bool) -> None:
    if _put_null(put, values, flexible, nullable, _INT):
        return
    assert values is not None
    put(_length(len(values), flexible))
    for value in values:
        value.write(put, version)


def put_structure(put: Put, value: Written | None, version: int, nullable: bool) -> None:
    """Write a structure that may be null. Raises ValueError for null in a version that has none."""
    if value is None and not nullable:
        raise ValueError("null in a version of a message that has none")
    if nullable:
        put(_BYTE.pack(-1 if value is None else 1))
    if value is not None:
        value.write(put, version)


def put_tags(put: Put, tags: Sequence[tuple[int, Sequence[Buffer]]]) -> None:
    """Write tagged fields, which are given in the order of their tags."""
    put(varint(len(tags)))
    for tag, pieces in tags:
        put(varint(tag) + varint(sum(map(len, pieces))))
        for piece in pieces:
            put(piece)


def _length(length: int, flexible: bool) -> bytes:
    return varint(length + 1) if flexible else _INT.pack(length)


def _put_null(put: Put, value: object, flexible: bool, nullable: bool, form: struct.Struct) -> bool:
    """Write null, and return whether the value is. Raises ValueError for null in a version that has none."""
    if value is not None:
        return False
    if not nullable:
        raise ValueError("null in a version of a message that has none")
    put(b"\x00" if flexible else form.pack(-1))
    return True
