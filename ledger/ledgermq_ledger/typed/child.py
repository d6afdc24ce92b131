"""The process in which values are decoded: it reads requests from its input and writes answers to its output, until the
input ends. It has a bound of memory, and each request one of processor time; above them it dies, and so does it where a
decoder fails badly. `children` starts it, and takes its death for what it is.

    request   length (4 bytes) | pickled Work, or nothing: the one before | length | Arrow stream: column of values
    answer    length | Arrow stream: `value_typed`, `value_error`
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa

from ledgermq_ledger.typed.chunk import ChunkDecoder, Work
from ledgermq_ledger.typed.many.chosen import columns_of

LENGTH = struct.Struct(">I")
HELLO = b"ready"
MEMORY_BYTES = 2**30
CPU_S, CPU_S_PER_MB = 4, 4
"""Processor time of a request: a hundred times what good values take."""


def main() -> None:
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    more_time = _bounds()
    write(sink, HELLO)
    decoder: ChunkDecoder | None = None
    while (head := read(source)) is not None:
        body = read(source)
        if body is None:
            return
        if head:
            work: Work = pickle.loads(head)
            decoder = ChunkDecoder(work, columns_of(work))
        assert decoder is not None
        more_time(CPU_S + CPU_S_PER_MB * (len(body) // 2**20))
        values = pa.ipc.open_stream(body).read_all().column(0).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
        write(sink, encoded(decoder.decode(values)))


def encoded(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue())


def read(source: BinaryIO) -> bytes | None:
    """Return the next part; None at the end of the input."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    data = source.read(size)
    return data if len(data) == size else None


def write(sink: BinaryIO, *parts: bytes) -> None:
    for part in parts:
        sink.write(LENGTH.pack(len(part)))
        sink.write(part)
    sink.flush()


def _bounds() -> Callable[[int], None]:
    """Bound this process, where the system can. Return what bounds the processor time from now on, in seconds."""
    try:
        import resource
    except ImportError:  # Windows
        return lambda seconds: None
    try:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
    except (OSError, ValueError):  # no such file, or no such bound
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def more_time(seconds: int) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime) + 1 + seconds
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (until if hard == resource.RLIM_INFINITY else min(until, hard), hard))

    return more_time
