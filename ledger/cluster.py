"""`cluster.json`: the identity of a cluster and the few numbers that every process must agree on
for ever.

    {"format": "ledgermq", "format_version": 1, "cluster_id": "…", "bundles": 5, "producer_states_max": 100000,
     "url_life_ms": 900000, "parquet_min_age_ms": 3600000, "created_ms": …, "crc32c": "8 hexadecimal digits"}

Created once by `put_if_absent`, by whichever process comes first; never changed.

The checksum covers all other fields, known or not, as the shortest JSON with sorted keys, so that a
file of any version can be checked. Files from before there was one have exactly the other eight
fields; `ledger.fsck.cluster_fit` holds these against the rest of the root (decision 30).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from crc32c import crc32c

from ledger import keys
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.object_store.settle import PutOutcome, settle_put
from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig, Unavailable
from ledgermq.sources import Sources

FORMAT = "ledgermq"
FORMAT_VERSION = 1
CHECKSUM = "crc32c"
NUMBERS = ("bundles", "producer_states_max", "url_life_ms", "parquet_min_age_ms", "format_version", "created_ms")
FIELDS_WITHOUT_CHECKSUM = {"format", "cluster_id", *NUMBERS}
BUNDLES_MAX = 1000
BUNDLES_AT_ONCE = 4
"""Wherever all of a cluster are gone over: each waits for small answers of the store most of the
time, and holds what it has listed.
"""


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """What the first process of a cluster decides.

    `bundles` includes bundle 0, which holds `__metadata` alone.
    """

    bundles: int = 5
    producer_states_max: int = 100_000
    url_life_ms: int = 15 * 60 * 1000
    parquet_min_age_ms: int = 60 * 60 * 1000

    def check(self) -> None:
        """Raises InvalidConfig."""
        if not 2 <= self.bundles <= BUNDLES_MAX:
            raise InvalidConfig(f"bundles has to be from 2 to {BUNDLES_MAX}, not {self.bundles}")
        if self.producer_states_max < 1:
            raise InvalidConfig(f"producer_states_max has to be at least 1, not {self.producer_states_max}")
        if self.url_life_ms < 1000 or self.parquet_min_age_ms < 4 * self.url_life_ms:
            raise InvalidConfig(
                "url_life_ms has to be at least 1000, and parquet_min_age_ms at least four times url_life_ms"
            )


@dataclass(frozen=True, slots=True)
class ClusterSettings(ClusterDefaults):
    cluster_id: str = ""
    format_version: int = FORMAT_VERSION
    created_ms: int = 0
    has_checksum: bool = field(default=False, compare=False)
    """Whether the file has one; what it says is as it was written, then."""


async def read_cluster(store: ObjectStore) -> ClusterSettings:
    """Raises ObjectMissing where there is no cluster yet, FormatNotSupported, DataDamaged."""
    return _decode(await store.get(keys.CLUSTER))


async def open_cluster(
    store: ObjectStore, sources: Sources, defaults: ClusterDefaults | None = None, cluster_id: str | None = None
) -> ClusterSettings:
    """The cluster of this root, made now if there is none; `defaults` count only then.
    `cluster_id`: it has to be this one, and exist.

    Raises also InvalidConfig, Unavailable.
    """
    try:
        return check_cluster_id(await read_cluster(store), cluster_id, store.url)
    except ObjectMissing as error:
        if cluster_id is not None:
            raise InvalidConfig(
                f"{store.url}: the setting cluster_id is set, but there is no cluster here; check the root URL"
            ) from error
    chosen = defaults or ClusterDefaults()
    chosen.check()
    cluster = ClusterSettings(**asdict(chosen), cluster_id=sources.new_id().hex(), created_ms=sources.now_ms())
    if await settle_put(store, keys.CLUSTER, [_encode(cluster)], sources=sources) is PutOutcome.UNKNOWN:
        raise Unavailable(f"{store.url}: outcome of the conditional put of {keys.CLUSTER} is unknown; retry later")
    return await read_cluster(store)


def check_cluster_id(cluster: ClusterSettings, wanted: str | None, url: str) -> ClusterSettings:
    """`cluster`, unless another one is wanted: then InvalidConfig."""
    if wanted is not None and cluster.cluster_id != wanted:
        raise InvalidConfig(
            f"{url}: this root belongs to cluster {cluster.cluster_id}, but cluster_id is set to {wanted}"
        )
    return cluster


def _encode(cluster: ClusterSettings) -> bytes:
    fields = {"format": FORMAT, **asdict(cluster)}
    del fields["has_checksum"]
    return json.dumps({**fields, CHECKSUM: checksum_of(fields)}, indent=2).encode() + b"\n"


def checksum_of(fields: dict[str, Any]) -> str:
    """Of all fields but the checksum itself."""
    covered = {name: value for name, value in fields.items() if name != CHECKSUM}
    return f"{crc32c(json.dumps(covered, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _decode(data: bytes) -> ClusterSettings:
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("this is not a cluster file of LedgerMQ")
        has_checksum = _check_checksum(found)
        version = found["format_version"]
        if version != FORMAT_VERSION:
            raise FormatNotSupported(
                f"{keys.CLUSTER}: this root has format version {version}, this software reads version {FORMAT_VERSION}",
                object_key=keys.CLUSTER,
            )
        numbers = {name: int(found[name]) for name in NUMBERS}
        cluster = ClusterSettings(**numbers, cluster_id=str(found["cluster_id"]), has_checksum=has_checksum)
        cluster.check()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, InvalidConfig) as error:
        raise DataDamaged(
            f"{keys.CLUSTER}: {error!r}; put the object back from a copy", object_key=keys.CLUSTER
        ) from error
    return cluster


def _check_checksum(found: dict[str, Any]) -> bool:
    """Whether there is one.

    Without one other fields than those of before are damage too: the checksum's own name may be
    hit.
    """
    if CHECKSUM in found:
        if found[CHECKSUM] != checksum_of(found):
            raise ValueError(
                f"the stored checksum is {found[CHECKSUM]}, but that of the fields is {checksum_of(found)}"
            )
        return True
    if found.get("format_version") == FORMAT_VERSION and (unknown := found.keys() - FIELDS_WITHOUT_CHECKSUM):
        raise ValueError(
            f"it has no {CHECKSUM}, but fields that no file without a checksum has: {', '.join(sorted(unknown))}"
        )
    return False
