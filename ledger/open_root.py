"""Open the store of a root that is given as a URL or as a local folder, and read which cluster it
holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from ledger import keys
from ledger.cluster import ClusterSettings, read_cluster
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.root.open import open_store
from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.sources import Sources


class NoCluster(ObjectMissing):
    """The root holds no cluster.json."""


@asynccontextmanager
async def opened(root: str, sources: Sources) -> AsyncIterator[ObjectStore]:
    """Raises InvalidConfig, StoreUnusable."""
    async with await open_store(root_url(root), sources=sources) as store:
        yield store


def root_url(root: str) -> str:
    """Raises InvalidConfig for an empty name, which would be the current folder."""
    if not root.strip():
        raise InvalidConfig(
            "the root is empty: give a folder (. for the current one) or a URL such as s3://bucket/prefix"
        )
    return root if "://" in root else Path(root).absolute().as_uri()


def check_bundles(cluster: ClusterSettings, bundles: Iterable[int] | None) -> None:
    """Raises InvalidRequest where the cluster has no such bundle."""
    wrong = [number for number in bundles or () if not 0 <= number < cluster.bundles]
    if wrong:
        raise InvalidRequest(f"there is no bundle {wrong[0]}: this cluster has bundles 0 to {cluster.bundles - 1}")


async def fitting_cluster_of(store: ObjectStore) -> ClusterSettings:
    """For commands that write: raises DataDamaged too where the root contradicts its
    `cluster.json`.
    """
    from ledger.fsck.cluster_fit import check_fit  # late: every command of the application loads this module

    cluster = await cluster_of(store)
    await check_fit(store, cluster)
    return cluster


async def cluster_of(store: ObjectStore) -> ClusterSettings:
    """Raises NoCluster, DataDamaged, FormatNotSupported."""
    try:
        return await read_cluster(store)
    except ObjectMissing as error:
        raise NoCluster(
            f"there is no cluster at {store.url}: it has no {keys.CLUSTER}", object_key=keys.CLUSTER
        ) from error
