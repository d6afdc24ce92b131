"""What a Python worker of Spark keeps between tasks: a store a root, a few roots, nothing after a
failure, nothing over a fork.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_spark.worker import STORES_MAX, drain, kept_store, worker


async def stores(*urls: str, fails: bool = False) -> AsyncGenerator[ObjectStore, None]:
    for url in urls:
        async with kept_store(url) as store:
            yield store
            if fails:
                raise DataDamaged("it is damaged")


def roots(folder: Path, count: int) -> list[str]:
    return [(folder / str(number)).as_uri() for number in range(count)]


def test_tasks_of_a_root_share_a_store_that_works_in_each_of_them(tmp_path: Path) -> None:
    [url] = roots(tmp_path, 1)

    async def numbers(put: bool) -> AsyncGenerator[int, None]:
        async with kept_store(url) as store:
            if put:
                await store.put_if_absent("a", [b"123"])
            for byte in await store.get("a"):
                yield byte

    assert [list(drain(numbers(put))) for put in (True, False, False)] == [[49, 50, 51]] * 3
    assert len({id(store) for _ in range(3) for store in drain(stores(url))}) == 1


def test_a_few_roots_are_kept_those_that_were_used_last(tmp_path: Path) -> None:
    urls = roots(tmp_path, STORES_MAX + 1)
    [first, *_] = list(drain(stores(*urls[:STORES_MAX])))
    assert list(drain(stores(urls[0], urls[STORES_MAX], urls[0]))) == [first, worker().stores[urls[STORES_MAX]], first]
    assert list(worker().stores) == [*urls[2:STORES_MAX], urls[STORES_MAX], urls[0]]


def test_a_task_that_fails_leaves_no_store_and_one_that_is_left_early_does(tmp_path: Path) -> None:
    [url] = roots(tmp_path, 1)
    early = drain(stores(url, url))
    first = next(early)
    early.close()  # type: ignore[attr-defined]
    assert worker().stores[url] is first
    with pytest.raises(DataDamaged):
        list(drain(stores(url, fails=True)))
    assert url not in worker().stores


def test_another_loop_gets_a_store_of_its_own(tmp_path: Path) -> None:
    [url] = roots(tmp_path, 1)
    [kept] = drain(stores(url))

    async def other() -> ObjectStore:
        async with kept_store(url) as store:
            return store

    assert asyncio.run(other()) is not kept
    assert worker().stores[url] is kept


def test_a_forked_process_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = worker()
    monkeypatch.setattr(os, "getpid", lambda: mine.process + 1)
    assert worker() is not mine
    assert worker() is worker()
