"""The driver's half of a stream while its store is away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.root.open import open_store
from ledgermq_spark.source.options import parse_options
from ledgermq_spark.source.streaming import driver
from ledgermq_spark.source.streaming.driver import Driver
from tests.worlds.source_root import fill


class Stores:
    """Those that a driver has opened; the first `away` of them do not answer."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.opened = 0
        self.closed = 0

    async def open(self, url: str, *, sources: Sources) -> ObjectStore:
        self.opened += 1
        return _Store(await open_store(url, sources=sources), self, self.opened <= self.away)


class _Store(StoreWrapper):
    def __init__(self, inner: ObjectStore, stores: Stores, is_away: bool) -> None:
        super().__init__(inner)
        self._stores = stores
        self._is_away = is_away

    async def get(self, key: str) -> bytes:
        if self._is_away:
            raise StoreUncertain(f"{key}: no answer")
        return await super().get(key)

    async def close(self) -> None:
        self._stores.closed += 1
        await super().close()


def opened(folder: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Driver:
    asyncio.run(fill(folder))
    monkeypatch.setattr(driver, "open_store", stores.open)
    monkeypatch.setattr(driver, "PAUSE_S", 0.0)
    return Driver(parse_options({"root": f"file://{folder}", "topic": "t"}))


def test_a_store_that_is_away_when_a_query_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(away=3)
    query = opened(tmp_path / "root", stores, monkeypatch)
    assert query.latest().topics["t"].offsets == {0: 18, 1: 6}
    assert (stores.opened, stores.closed) == (4, 3)
    query.close()
    assert stores.closed == 4


def test_a_store_that_stays_away_ends_the_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores(away=1000)
    monkeypatch.setattr(driver, "OUTAGE_S", 0.0)
    with pytest.raises(StoreUncertain):
        opened(tmp_path / "root", stores, monkeypatch)
    assert stores.opened == stores.closed == 1
    assert "ledgermq-source" not in {thread.name for thread in threading.enumerate()}
