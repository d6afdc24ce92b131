"""Open the store of a root, given as a URL or a local folder, and read its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.root.open import open_store


class NoCluster(ObjectMissing):
    """The root holds no cluster.json."""


@asynccontextmanager
async def opened(root: str, sources: Sources) -> AsyncIterator[ObjectStore]:
    """Open the store of a root. Raises InvalidConfig, StoreUnusable."""
    async with await open_store(root_url(root), sources=sources) as store:
        yield store


def root_url(root: str) -> str:
    """Return the URL of a root. Raises InvalidConfig for an empty name, which would be the current
    folder.
    """
    if not root.strip():
        raise InvalidConfig(
            "the root is empty: give a folder (. for the current one) or a URL such as s3://bucket/prefix,"
            " az://container/prefix or gs://bucket/prefix"
        )
    return root if "://" in root else Path(root).absolute().as_uri()


async def check_bundles(store: ObjectStore, cluster: ClusterSettings, bundles: Iterable[int] | None) -> None:
    """Raise InvalidRequest if the cluster lacks one of these bundles. Raises also what `read_catalog`
    raises, if one of them is not among the first ones of the cluster.
    """
    from ledgermq_ledger.topics.catalog import (
        reread_bundles,  # late, because every command of the application loads this module
    )

    if all(0 <= number < cluster.bundles for number in bundles or ()):
        return
    count = (await reread_bundles(store, cluster)).bundles
    wrong = [number for number in bundles or () if not 0 <= number < count]
    if wrong:
        raise InvalidRequest(f"there is no bundle {wrong[0]}: this cluster has bundles 0 to {count - 1}")


async def fitting_cluster_of(store: ObjectStore) -> ClusterSettings:
    """Return the cluster, for commands that write: raises DataDamaged also if the root contradicts
    its `cluster.json`.
    """
    from ledgermq_ledger.fsck.cluster_fit import (
        check_fit,  # late, because every command of the application loads this module
    )

    cluster = await cluster_of(store)
    await check_fit(store, cluster)
    return cluster


async def cluster_of(store: ObjectStore) -> ClusterSettings:
    """Return the cluster. Raises NoCluster, DataDamaged, FormatNotSupported."""
    try:
        return await read_cluster(store)
    except ObjectMissing as error:
        raise NoCluster(
            f"there is no cluster at {store.url}: it has no {keys.CLUSTER}", object_key=keys.CLUSTER
        ) from error
