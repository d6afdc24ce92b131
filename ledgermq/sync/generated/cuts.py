"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.client.cuts.admin import KEEP_S, CutDescription, CutPartition
from ledgermq.client.cuts.admin import Cuts as AsyncCuts
from ledgermq.sync.background import Background


class Cuts:
    """The methods of `client.cuts`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncCuts) -> None:
        self._background = background
        self._inner = inner

    def take(self, name: str, *, keep_s: float | None = KEEP_S) -> CutDescription:
        """Take a cut, and return it. Each transaction is in it whole, with its groups' offsets, or not at all;
        everything that was acknowledged before this call is in it, and nothing that is sent after it returns. Writing
        goes on meanwhile; commits of transactions wait for a moment.

        `name`: at most 100 of letters, digits, "." "_" "-". `keep_s`: seconds after which it is dropped, 7 days by
        default; None: it stays until it is dropped. While it is there, what it names is not deleted, so it costs
        storage.

        Raises CutExists, InvalidRequest, Unauthorized, ResourceExhausted (a bundle has 1,000 pins of cuts), and
        Unavailable if a bundle has no owner that takes part, a partition moves, or a broker is of an earlier release;
        the error names it.
        """
        return self._background.run(self._inner.take(name, keep_s=keep_s))

    def list(self) -> Sequence[CutDescription]:
        """Return all cuts by name, also those that are being taken or removed. Raises Unauthorized, Unavailable."""
        return self._background.run(self._inner.list())

    def show(self, name: str) -> CutDescription:
        """Return a cut with what it has of each bundle. Raises UnknownCut, Unauthorized, Unavailable."""
        return self._background.run(self._inner.show(name))

    def keep(self, name: str, keep_s: float | None) -> CutDescription:
        """Keep a cut for so many seconds from now on; None: until it is dropped. Raises UnknownCut, InvalidRequest,
        Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.keep(name, keep_s))

    def drop(self, name: str) -> CutDescription:
        """Drop a cut, and return it as it is then: what only it needs is removed in the background. A cut of this
        name that another program takes meanwhile stays. Raises UnknownCut, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.drop(name))

    def files(self, name: str, topic: str) -> Sequence[CutPartition]:
        """Return what a cut has of each partition of a topic, with the Parquet files that it names, for programs that
        read Parquet. Raises UnknownCut, UnknownTopic, Unauthorized (it needs the right to describe the topic),
        Unavailable, DataDamaged.
        """
        return self._background.run(self._inner.files(name, topic))
