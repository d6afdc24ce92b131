"""Resolve the root as driver and executors alike reach it, and its cluster."""

from __future__ import annotations

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.open_root import root_url


def shared_root(root: str) -> str:
    """Return the URL by which executors reach the root; their working folder is another one.

    Raises InvalidConfig.
    """
    url = root_url(root)
    if url.startswith("memory:"):
        raise InvalidConfig(f"root {root!r}: Spark's executors are other processes and cannot see it")
    return url


async def cluster_of(store: ObjectStore) -> ClusterSettings:
    """Return the cluster. Raises InvalidConfig if there is none, DataDamaged, FormatNotSupported,
    the store's errors.
    """
    try:
        return await read_cluster(store)
    except ObjectMissing as error:
        raise InvalidConfig(f"{store.url}: there is no cluster here") from error
