"""Batches decoded ahead of the program, in threads: the next ones of the prefetch, where they are
worth a thread's time.

Decoding has one outcome, whoever does it, so nothing that a program sees depends on threads: it
asks for the rows of the next batch, and waits for the thread that is at it, or decodes it itself if
none has begun. What a thread refuses is decoded again by who asks, so an error comes where the
batch would be handed out, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, Future
from itertools import islice

import pyarrow as pa

from ledgermq.client.consuming.message import decode_run
from ledgermq.client.consuming.reading import FetchedRun
from ledgermq.errors import LedgerMQError

RUNS_MAX = 4
DECODED_BYTES_MAX = 16 * 1024 * 1024
"""Of one batch decoded ahead; together a bound on what decoding ahead holds.

A larger one is decoded when it is asked for.
"""
DATA_BYTES_MIN = 64 * 1024
"""A smaller batch is decoded as soon as it is handed to a thread and waited for: measured, below 50
KB nothing is gained.
"""


class DecodeAhead:
    """`threads`: None decodes nothing ahead.

    Must be told, by `forget`, of every batch that was taken or is no longer wanted.
    """

    def __init__(self, threads: Executor | None, decoded_bytes_max: int) -> None:
        self._threads = threads
        self._decoded_bytes_max = decoded_bytes_max
        self._begun: dict[FetchedRun, Future[pa.RecordBatch]] = {}

    def begin(self, runs: Iterable[FetchedRun]) -> None:
        """`runs`: all that were fetched, in the order in which they will be asked for."""
        if self._threads is None:
            return
        bytes_max = min(DECODED_BYTES_MAX, self._decoded_bytes_max)
        for run in islice(runs, RUNS_MAX):
            if len(run.data) >= DATA_BYTES_MIN and run not in self._begun and run.wanted and not run.reading.held_back:
                self._begun[run] = self._threads.submit(_decode, run, bytes_max)

    def rows(self, run: FetchedRun) -> pa.RecordBatch:
        """Raises CorruptFrame, MessageTooLarge."""
        begun = self._begun.get(run)
        if begun is not None and not begun.cancel():
            try:
                return begun.result()
            except LedgerMQError:
                pass
        return _decode(run, self._decoded_bytes_max)

    def forget(self, run: FetchedRun) -> None:
        begun = self._begun.pop(run, None)
        if begun is not None:
            begun.cancel()


def _decode(run: FetchedRun, decoded_bytes_max: int) -> pa.RecordBatch:
    return decode_run(run.data, run.crc, run.record_count, decoded_bytes_max, run.where)
