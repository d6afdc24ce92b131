"""Who opens a root: the cluster that is there, a new one, or none but the one that was asked for."""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from tests.stores.backends import memory_store


async def test_the_first_process_decides_and_all_others_take_what_is_there(sources: Sources) -> None:
    async with memory_store() as store:
        first = await open_cluster(store, sources, ClusterDefaults(bundles=3))
        assert await open_cluster(store, sources, ClusterDefaults(bundles=9)) == first
        assert await open_cluster(store, sources, cluster_id=first.cluster_id) == first


async def test_another_cluster_than_the_one_that_was_asked_for_is_refused(sources: Sources) -> None:
    async with memory_store() as store:
        await open_cluster(store, sources)
        with pytest.raises(InvalidConfig, match="belongs to cluster"):
            await open_cluster(store, sources, cluster_id="0" * 32)


async def test_asking_for_a_cluster_makes_none(sources: Sources) -> None:
    async with memory_store() as store:
        with pytest.raises(InvalidConfig, match="there is no cluster here"):
            await open_cluster(store, sources, cluster_id="0" * 32)
        assert [info.key async for info in store.list("")] == []
