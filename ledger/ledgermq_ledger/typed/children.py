"""Decode untrusted values in a child process: whatever a value does to a decoder ends that process and no other.

A child that dies says that some value of its chunk is bad: the chunk is halved down to the one value, whose error is
`the decoder failed`. One that stands still is ended (`stillness`), which is a death like others. A child that cannot be
started is no fault of values: it is an error of the task, and another run repeats it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ledgermq.errors import Unavailable
from ledgermq_ledger.typed.child import HELLO, LENGTH, encoded
from ledgermq_ledger.typed.chunk import Work
from ledgermq_ledger.typed.rows.bounds import GROWTH_BASE, GROWTH_MAX
from ledgermq_ledger.typed.stillness import LOOK_EVERY_S, Watch

DEATHS_MAX = 100
"""Of children in one task, after which a bad chunk is no longer halved below `CHUNK_ROWS_LEFT` values."""
CHUNK_ROWS_LEFT = 64
KILLS_MAX = 3
"""Times that the system may kill the child of one chunk, mostly because memory was short, before that is a death. Where
it lasts, no child can be started.
"""
CHUNK_ROWS, CHUNK_BYTES = 65_536, 8 * 1024 * 1024
FAILED = "the decoder failed"
STOOD_STILL = "the decoder stood still"
FAILED_TOGETHER = "the decoder failed at a value near this one"
ONE_THREAD = {"MALLOC_ARENA_MAX": "1"} | {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "RAYON")}
"""Each thread takes address space, of which a child has a bound: a machine with many cores must not use it up."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
PROGRAM = "from ledgermq_ledger.typed.child import main; main()"


class Died(Exception):
    """The child is gone. `killed`: by the system, which is no fault of a value. `still`: it stood still."""

    def __init__(self, *, killed: bool = False, still: bool = False) -> None:
        super().__init__("the decoding process died")
        self.killed, self.still = killed, still


class Child:
    """One process, which decodes one chunk at a time. Blocking. `look_every_s`: how often it is looked whether it
    stands still.
    """

    def __init__(self, program: str = PROGRAM, look_every_s: float = LOOK_EVERY_S) -> None:
        """Raises Unavailable if it cannot be started."""
        self._look_every_s = look_every_s
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment |= {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            **ONE_THREAD,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the process that waits for it
            )
        except OSError as error:
            raise Unavailable(f"the process that decodes typed values cannot be started: {error}") from error
        self._work: Work | None = None
        watch = self._watch()
        try:
            with watch:
                is_ready = self._read(len(HELLO)) == HELLO
        except Died:
            is_ready = False
        if not is_ready:
            self.close()
            what = "stood still when" if watch.ended else "ended as soon as"
            raise Unavailable(f"the process that decodes typed values {what} it was started: is there memory for it?")

    def _watch(self) -> Watch:
        return Watch(self._process.pid, self._process.kill, self._look_every_s)

    def decode(self, work: Work, values: pa.Array) -> pa.RecordBatch:
        """Return what `ChunkDecoder.decode` returns. Raises Died; the process is gone then."""
        body = encoded(pa.RecordBatch.from_arrays([values], ["value"]))
        head = b"" if work is self._work else pickle.dumps(work)
        most = GROWTH_MAX * len(body) + GROWTH_BASE * (len(values) + 1)
        watch = self._watch()
        try:
            with watch:
                self._write(head, body)
                data = self._read(most)
            found = self._answer(work, len(values), data)
        except (OSError, Died, pa.ArrowException, ValueError) as error:
            self.close()
            killed = self._process.returncode == -signal.SIGKILL and not watch.ended
            raise Died(killed=killed, still=watch.ended) from error
        self._work = work
        return found

    def _answer(self, work: Work, rows: int, data: bytes) -> pa.RecordBatch:
        """Check an answer: a decoder that a value has broken may say anything."""
        batch = pa.ipc.open_stream(data).read_next_batch()
        if batch.schema != work.answer or batch.num_rows != rows:
            raise ValueError("the answer has other rows than the request")
        batch.validate(full=True)
        return batch

    def _write(self, *parts: bytes) -> None:
        assert self._process.stdin is not None
        for part in parts:
            self._process.stdin.write(LENGTH.pack(len(part)))
            self._process.stdin.write(part)
        self._process.stdin.flush()

    def _read(self, most: int) -> bytes:
        assert self._process.stdout is not None
        head = self._process.stdout.read(LENGTH.size)
        if len(head) < LENGTH.size:
            self._process.wait()
            raise Died
        (size,) = LENGTH.unpack(head)
        if size > most:
            raise ValueError("the answer is too large")
        data = self._process.stdout.read(size)
        if len(data) < size:
            self._process.wait()
            raise Died
        return data

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        self._process.wait()


class Children:
    """Starts them, and keeps an idle one, so that small files need not wait for a new one each. Threads share it."""

    def __init__(self, start: Callable[[], Child] = Child) -> None:
        self._start, self._lock = start, threading.Lock()
        self._child: Child | None = None

    def take(self) -> Child:
        """Raises Unavailable."""
        with self._lock:
            child, self._child = self._child, None
        return child or self._start()

    def give(self, child: Child) -> None:
        with self._lock:
            kept, self._child = self._child, self._child or child
        if kept is not None:
            child.close()

    def close(self) -> None:
        """End the child that is idle. The next chunk starts another one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()


OF_THIS_PROCESS = Children()
atexit.register(OF_THIS_PROCESS.close)


@dataclass(slots=True)
class Decoders:
    """Decodes the values of one task. `deaths`: of children so far."""

    children: Children = OF_THIS_PROCESS
    deaths: int = 0

    def decode(self, work: Work, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the structs, and the errors or NULL, of values of which none is NULL. Blocking.

        Raises Unavailable if no child can be had.
        """
        parts: list[pa.RecordBatch] = []
        for chunk in _chunks(values):
            self._into(work, chunk, parts)
        if not parts:
            return pa.nulls(0, work.wanted), pa.nulls(0, pa.string())
        typed, errors = (pa.concat_arrays([part.column(at) for part in parts]) for at in range(2))
        return typed, errors

    def _into(self, work: Work, values: pa.Array, parts: list[pa.RecordBatch]) -> None:
        found = self._tried(work, values)
        if not isinstance(found, str):
            parts.append(found)
            return
        is_enough = self.deaths >= DEATHS_MAX and len(values) <= CHUNK_ROWS_LEFT
        if len(values) == 1 or is_enough:
            why = found if len(values) == 1 else FAILED_TOGETHER
            columns = [pa.nulls(len(values), work.wanted), pa.array([why] * len(values), pa.string())]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=work.answer))
            return
        half = len(values) // 2
        self._into(work, values[:half], parts)
        self._into(work, values[half:], parts)

    def _tried(self, work: Work, values: pa.Array) -> pa.RecordBatch | str:
        """Return how a child has ended if it has died of these values."""
        how = FAILED
        for attempt in range(1, KILLS_MAX + 1):
            child = self.children.take()
            try:
                found = child.decode(work, values)
            except Died as error:
                how = STOOD_STILL if error.still else FAILED
                if not error.killed or attempt == KILLS_MAX:
                    break
                continue
            self.children.give(child)
            return found
        self.deaths += 1
        return how


def _chunks(values: pa.Array) -> list[pa.Array]:
    """Return the values in parts of bounded size."""
    if len(values) <= CHUNK_ROWS and values.nbytes <= CHUNK_BYTES:
        return [values] if len(values) else []
    if len(values) == 1:
        return [values]
    half = len(values) // 2
    return [*_chunks(values[:half]), *_chunks(values[half:])]
