"""Surfaces that fail on purpose: the harness has to see each of these."""

from __future__ import annotations

import os
import signal
import time

from ledgermq.errors import CorruptFrame, LedgerMQError
from tests.fuzz.surface import Surface

CRASHING, HANGING, RAISING = b"crash", b"hang", b"raise"


def check(data: bytes) -> None:
    if data == CRASHING:
        os.kill(os.getpid(), signal.SIGSEGV)
    if data == HANGING:
        time.sleep(3600)
    if data == RAISING:
        raise KeyError("an unexpected error")
    if data == b"untyped":
        raise LedgerMQError("what is this?")
    raise CorruptFrame("as it should be")


def _surface(*seeds: bytes) -> Surface:
    return Surface(f"broken-{seeds[1].decode()}", seeds, check, lambda rng, data: b"fine")


BROKEN = {
    surface.name: surface
    for surface in (
        _surface(b"", CRASHING, b"", CRASHING),
        _surface(b"", HANGING),
        _surface(b"", RAISING),
        _surface(b"", b"untyped"),
        _surface(b"", b"fine"),
    )
}
