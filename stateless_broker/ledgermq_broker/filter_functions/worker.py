"""The process that runs one filter function: `python -m ledgermq_broker.filter_functions.worker NAME`.

It reads requests from stdin and answers on stdout, by single bytes, as soon as each is known, so that the broker
sees which message a function hangs on. What the function prints goes to stderr.

    request: length of the batch (u32), first row to judge (u32), the batch as it is stored
    answer:  READY once (or FAILED and a text), then for each request BEGUN, and KEPT, LEFT_OUT or RAISED for each row
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

from ledgermq.filters.functions import FilterFunction, FilterMessage, installed, messages_of
from ledgermq.protocol.batches.records import decode_batch

REQUEST = struct.Struct("<II")
READY, FAILED, BEGUN, KEPT, LEFT_OUT, RAISED = b"R", b"F", b"B", b"1", b"0", b"x"
TEXT_CHARS_MAX = 500


def main(name: str) -> None:
    """Serve the function of this name until stdin ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        function = installed()[name].load()
        assert callable(function), "the entry point does not name a function"
    except Exception as error:
        answers.write(FAILED + f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX].encode())
        return
    answers.write(READY)
    serve(function, sys.stdin.buffer, answers)


def serve(function: FilterFunction, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until they end. Raises CorruptFrame for a batch that cannot be read."""
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        length, first = REQUEST.unpack(head)
        rows = decode_batch(requests.read(length))
        answers.write(BEGUN)
        for message in messages_of(rows, first):
            answers.write(verdict(function, message))


def verdict(function: FilterFunction, message: FilterMessage) -> bytes:
    """Return what the function says of a message."""
    try:
        return KEPT if function(message) else LEFT_OUT
    except Exception:
        return RAISED


if __name__ == "__main__":
    main(sys.argv[1])
