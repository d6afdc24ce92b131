"""Say for which topics and callers a request to the store is made, so that its price can be divided among them.

What runs inside `paid_by`, and each task that begins there, makes its requests for these payers: repeated and hedged
tries as well. A meter reads `payers()` when a request ends. Without any, a request is for the cluster as a whole:
heartbeats, claims, checkpoints, lists.

The rule: payers pay by their bytes in what is put or read (`divided`), and their parts add up to the price exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple


class Payer(NamedTuple):
    """`principal`: "" for callers without a name, and for the cluster's work on the topic."""

    topic_id: int
    principal: str = ""


Shares = Mapping[Payer, int]
"""Bytes by payer."""

_payers: ContextVar[Shares] = ContextVar("ledgermq_payers", default=MappingProxyType({}))
_caller: ContextVar[str] = ContextVar("ledgermq_caller", default="")


@contextmanager
def paid_by(shares: Shares) -> Iterator[None]:
    """Make requests for these payers."""
    token = _payers.set(shares)
    try:
        yield
    finally:
        _payers.reset(token)


def payers() -> Shares:
    """Return the payers of what runs now; empty: the cluster as a whole."""
    return _payers.get()


def set_caller(principal: str) -> None:
    """Set the principal for which this task, and each task that it begins, reads from now on; "": without a name."""
    _caller.set(principal)


def caller() -> str:
    return _caller.get()


def divided(amount: int, shares: Shares) -> list[tuple[Payer, int]]:
    """Divide a whole amount by bytes: each payer gets what its bytes are of all bytes, rounded so that the parts add up
    to `amount` exactly and none is off by 1 or more. If none has bytes, one pays.
    """
    total, before, given = sum(shares.values()), 0, 0
    parts = []
    for payer in sorted(shares):
        before += shares[payer]
        until = amount * before // total if total else amount
        parts.append((payer, until - given))
        given = until
    assert given == amount or not parts, "parts add up"
    return parts
