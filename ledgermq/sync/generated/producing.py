"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from typing import Generic

from ledgermq.client.producing.producer import Producer as AsyncProducer
from ledgermq.client.settings.serializers import S
from ledgermq.client.settings.spill import SpillState
from ledgermq.sync.background import Background, as_coroutine


class ProducerCalls(Generic[S]):
    """The calls of `ledgermq.sync.Producer` that only wait for the asynchronous ones."""

    _background: Background
    _inner: AsyncProducer[S]

    @property
    def spilled(self) -> SpillState | None:
        """Return the state of the local file of the setting `spill`; None without that setting."""
        return self._background.run(as_coroutine(lambda: self._inner.spilled))

    def acquire(self, topic: str, timeout: float | None = None) -> None:
        """Wait until this producer has all partitions of the topic for itself; the first record for the topic does
        this, too. With it programs elect the one that writes.

        Raises PartitionHeld with `access_mode="exclusive"`, if another exclusive producer has one of them,
        ProducerFenced if this producer lost the topic before, UnknownTopic, Unavailable, and with
        `access_mode="wait_for_exclusive"` DeadlineExceeded after `timeout` seconds (None: it waits without end).
        Raises InvalidConfig for a shared producer.
        """
        self._background.run(self._inner.acquire(topic, timeout), timeout)

    def holds(self, topic: str) -> bool:
        """Return whether this producer has the topic for itself. It may have been fenced just now: it learns that
        with its next record or renewal.
        """
        return self._background.run(as_coroutine(lambda: self._inner.holds(topic)))

    def open_spill(self) -> None:
        """Open the file of the setting `spill`, and begin to send what it has; `with` and the first `send` do
        this, too. Raises UsedElsewhere (another process has it open), DataDamaged, FormatNotSupported,
        StoreUnusable, StoreFull.
        """
        self._background.run(self._inner.open_spill())
