"""Read and create `cluster.json`: the identity of a cluster and the few numbers that every process
must agree on forever.

    {"format": "ledgermq", "format_version": 1, "cluster_id": "…", "bundles": 5, "producer_states_max": 100000,
     "url_life_ms": 900000, "parquet_min_age_ms": 3600000, "created_ms": …, "crc32c": "8 hexadecimal digits"}

The first process creates it once, by `put_if_absent`. It is changed once at most: before bundles are
added for the first time, version 2 replaces version 1 (`mark_grown`). Both have the same values. In
either, `bundles` is the number with which the cluster began; the number in force is in the catalog
(`Catalog.bundles`, decision 72), and version 2 keeps releases out that do not know this.

A restored cluster has version 3 from its begin (`restored_from`), and never another one. It says the
same as version 2, and has `former_ids`: the ids of the clusters from which it came, the oldest first,
which files from before the restore name.

`restore.json` stands beside it in each copy of a cut (decision 107), restored or backed up: the first
object of its root. Until `cluster.json` is there, no process makes another cluster of this root.

The checksum covers all other fields, known or not, as the shortest JSON with sorted keys, so that a
file of any version can be checked. Files from before there was one have exactly the other eight
fields; `ledgermq_ledger.fsck.cluster_fit` holds these against the rest of the root (decision 30).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from crc32c import crc32c

from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig, ResourceExhausted, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put

FORMAT = "ledgermq"
FORMAT_VERSION = 1
GROWN_VERSION = 2
"""Of a cluster to which bundles were added, or were about to be."""
RESTORED_VERSION = 3
"""Of a cluster that was restored from a cut of another one."""
FORMAT_VERSIONS_READ = (FORMAT_VERSION, GROWN_VERSION, RESTORED_VERSION)
FORMER_IDS = "former_ids"
RESTORE_FORMAT = "ledgermq-restore"
FORMER_IDS_MAX = 1000
CHECKSUM = "crc32c"
NUMBERS = ("bundles", "producer_states_max", "url_life_ms", "parquet_min_age_ms", "format_version", "created_ms")
FIELDS_WITHOUT_CHECKSUM = {"format", "cluster_id", *NUMBERS}
BUNDLES_MAX = 1000
BUNDLES_AT_ONCE = 4
"""Bundles that are processed at the same time in passes over a cluster: each mostly waits for small
answers of the store, and holds what it has listed.
"""


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """Values that the first process of a cluster decides.

    `bundles` includes bundle 0, which holds `__metadata` only; more may be added later.
    """

    bundles: int = 5
    producer_states_max: int = 100_000
    url_life_ms: int = 15 * 60 * 1000
    parquet_min_age_ms: int = 60 * 60 * 1000

    def check(self) -> None:
        """Check the values. Raises InvalidConfig."""
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
    """True if the file has a checksum, which then matches its content."""
    former_ids: tuple[str, ...] = ()
    """Ids of the clusters from which this one was restored, the oldest first."""

    def wrote(self, cluster_id: str) -> bool:
        """Return whether a file that names this cluster id may be of this root: it was written by this cluster, or by
        one from which it was restored.
        """
        return cluster_id == self.cluster_id or cluster_id in self.former_ids


def restored_from(source: ClusterSettings, cluster_id: str, now_ms: int) -> ClusterSettings:
    """Return the settings of a cluster that is restored from a cut of `source`. Raises ResourceExhausted."""
    if len(source.former_ids) >= FORMER_IDS_MAX:
        raise ResourceExhausted(
            f"cluster {source.cluster_id} comes from {FORMER_IDS_MAX} restores in a row, which is the maximum;"
            " `ledgermq backup` copies a cut and keeps the id"
        )
    return replace(
        source,
        cluster_id=cluster_id,
        format_version=RESTORED_VERSION,
        created_ms=now_ms,
        former_ids=(*source.former_ids, source.cluster_id),
    )


async def read_cluster(store: ObjectStore) -> ClusterSettings:
    """Read the cluster. Raises ObjectMissing if there is none yet, FormatNotSupported, DataDamaged."""
    return decode_cluster(await store.get(keys.CLUSTER))


async def open_cluster(
    store: ObjectStore, sources: Sources, defaults: ClusterDefaults | None = None, cluster_id: str | None = None
) -> ClusterSettings:
    """Return the cluster of this root, and create it if there is none; `defaults` count only then.

    `cluster_id`: the cluster has to exist and to have this id. Raises also InvalidConfig,
    Unavailable.
    """
    try:
        found = check_cluster_id(await read_cluster(store), cluster_id, store.url)
        await _refuse_other_restore(store, found)
        return found
    except ObjectMissing as error:
        if cluster_id is not None:
            await _refuse_other_restore(store, None)
            raise InvalidConfig(
                f"{store.url}: the setting cluster_id is set, but there is no cluster here; check the root URL"
            ) from error
    chosen = defaults or ClusterDefaults()
    chosen.check()
    await _refuse_other_restore(store, None)
    cluster = ClusterSettings(**asdict(chosen), cluster_id=sources.new_id().hex(), created_ms=sources.now_ms())
    if await settle_put(store, keys.CLUSTER, [encode_cluster(cluster)], sources=sources) is PutOutcome.UNKNOWN:
        raise Unavailable(f"{store.url}: outcome of the conditional put of {keys.CLUSTER} is unknown; retry later")
    created = await read_cluster(store)
    await _refuse_other_restore(store, created)
    return created


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """What a root is a copy of: `restore.json`. `cut`: id and put id of the cut. `cluster_json`: the bytes of the
    `cluster.json` that will be put last. A backup keeps the id of its source.
    """

    source_id: str
    cut: tuple[int, str]
    cut_name: str
    cluster_json: str
    topics: str = ""
    """The pattern of the topics that the copy keeps; empty: all."""

    @property
    def cluster(self) -> ClusterSettings:
        return decode_cluster(self.cluster_json.encode())

    @property
    def is_backup(self) -> bool:
        return self.cluster.cluster_id == self.source_id

    def continues(self, other: RestoreNote) -> bool:
        """Return whether a copy that began with either note is the same one."""
        both = ((note.source_id, note.cut, note.is_backup, note.topics) for note in (self, other))
        return next(both) == next(both)

    def describe(self) -> str:
        """Say what is done: "cut 'eod' (17) of cluster 4f… is restored with the topics 'orders'"."""
        done = "backed up" if self.is_backup else "restored"
        of_these = f" with the topics {self.topics!r}" if self.topics else ""
        return f"{self._what} is {done}{of_these}"

    def describe_unfinished(self) -> str:
        """Say what to do: "the copy of cut 'eod' (17) of cluster 4f… is not complete: repeat `ledgermq restore …`"."""
        only = f" --topics {shlex.quote(self.topics)}" if self.topics else ""
        command = f"ledgermq {'backup' if self.is_backup else 'restore'} …{only}"
        return f"the copy of {self._what} is not complete: repeat `{command}`"

    @property
    def _what(self) -> str:
        return f"cut {self.cut_name!r} ({self.cut[0]}) of cluster {self.source_id}"


def encode_note(note: RestoreNote) -> bytes:
    fields = {
        "format": RESTORE_FORMAT,
        "format_version": FORMAT_VERSION,
        "source_cluster_id": note.source_id,
        "cut_id": note.cut[0],
        "cut_put_id": note.cut[1],
        "cut_name": note.cut_name,
        keys.CLUSTER: note.cluster_json,
        **({"topics": note.topics} if note.topics else {}),
    }
    return json.dumps({**fields, CHECKSUM: checksum_of(fields)}, indent=2).encode() + b"\n"


async def read_note(store: ObjectStore) -> RestoreNote | None:
    """Return what a root is a copy of; None: it has no `restore.json`. Raises DataDamaged, FormatNotSupported."""
    try:
        data = await store.get(keys.RESTORE)
    except ObjectMissing:
        return None
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != RESTORE_FORMAT:
            raise ValueError("LedgerMQ did not write it")
        if found.get(CHECKSUM) != checksum_of(found):
            raise ValueError("its checksum is wrong")
        if found["format_version"] != FORMAT_VERSION:
            raise FormatNotSupported(
                f"{keys.RESTORE}: it has format version {found['format_version']}, this software reads 1",
                object_key=keys.RESTORE,
            )
        cut = int(found["cut_id"]), str(found["cut_put_id"])
        texts = str(found["cut_name"]), str(found[keys.CLUSTER]), str(found.get("topics", ""))
        note = RestoreNote(str(found["source_cluster_id"]), cut, *texts)
        decode_cluster(note.cluster_json.encode())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataDamaged(
            f"{keys.RESTORE}: {error!r}; put it back from a copy, or restore into another root", object_key=keys.RESTORE
        ) from error
    return note


async def _refuse_other_restore(store: ObjectStore, cluster: ClusterSettings | None) -> None:
    """Refuse a root that another cluster than this one is being copied into. A process that makes a cluster
    looks before and after its put, and a restore looks for a cluster after it has put its note, so one of both sees the
    other.

    Raises InvalidConfig.
    """
    note = await read_note(store)
    if note is None or (cluster is not None and cluster.cluster_id == note.cluster.cluster_id):
        return
    raise InvalidConfig(f"{store.url}: by its {keys.RESTORE}, {note.describe_unfinished()}, or use another root")


async def mark_grown(store: ObjectStore, cluster: ClusterSettings) -> None:
    """Let releases that do not know added bundles refuse the root, durably. Idempotent.

    All processes that do this write the same bytes, so neither a race nor a late put does harm. The key is
    never empty meanwhile. Raises the store's errors.
    """
    found = await read_cluster(store)
    if found.cluster_id != cluster.cluster_id:
        raise DataDamaged(
            f"{keys.CLUSTER}: it is of another cluster now; put it back from a copy", object_key=keys.CLUSTER
        )
    if found.format_version == FORMAT_VERSION:
        await store.put(keys.CLUSTER, encode_cluster(replace(found, format_version=GROWN_VERSION)))


def check_cluster_id(cluster: ClusterSettings, wanted: str | None, url: str) -> ClusterSettings:
    """Return `cluster`; raise InvalidConfig if another one is wanted."""
    if wanted is not None and cluster.cluster_id != wanted:
        raise InvalidConfig(
            f"{url}: this root belongs to cluster {cluster.cluster_id}, but cluster_id is set to {wanted}"
        )
    return cluster


def encode_cluster(cluster: ClusterSettings) -> bytes:
    fields = {"format": FORMAT, **asdict(cluster)}
    del fields["has_checksum"]
    if not cluster.former_ids:
        del fields[FORMER_IDS]
    return json.dumps({**fields, CHECKSUM: checksum_of(fields)}, indent=2).encode() + b"\n"


def checksum_of(fields: dict[str, Any]) -> str:
    """Return the checksum of all fields but the checksum itself."""
    covered = {name: value for name, value in fields.items() if name != CHECKSUM}
    return f"{crc32c(json.dumps(covered, sort_keys=True, separators=(',', ':')).encode()):08x}"


def decode_cluster(data: bytes) -> ClusterSettings:
    """Decode a cluster file. Raises DataDamaged, FormatNotSupported."""
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("this is not a cluster file of LedgerMQ")
        has_checksum = _check_checksum(found)
        version = found["format_version"]
        if version not in FORMAT_VERSIONS_READ:
            raise FormatNotSupported(
                f"{keys.CLUSTER}: this root has format version {version}, this software reads versions"
                f" {FORMAT_VERSION} to {RESTORED_VERSION}",
                object_key=keys.CLUSTER,
            )
        if version != FORMAT_VERSION and not has_checksum:
            raise ValueError(f"a file of version {version} has a {CHECKSUM}, and this one has none")
        numbers = {name: int(found[name]) for name in NUMBERS}
        former = _former_ids(found) if version == RESTORED_VERSION else ()
        cluster = ClusterSettings(
            **numbers, cluster_id=str(found["cluster_id"]), has_checksum=has_checksum, former_ids=former
        )
        cluster.check()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, InvalidConfig) as error:
        raise DataDamaged(
            f"{keys.CLUSTER}: {error!r}; put the object back from a copy", object_key=keys.CLUSTER
        ) from error
    return cluster


def _former_ids(found: dict[str, Any]) -> tuple[str, ...]:
    ids = found[FORMER_IDS]
    if not isinstance(ids, list) or not 0 < len(ids) <= FORMER_IDS_MAX or not all(type(each) is str for each in ids):
        raise ValueError(f"{FORMER_IDS} has to list 1 to {FORMER_IDS_MAX} ids of clusters")
    return tuple(ids)


def _check_checksum(found: dict[str, Any]) -> bool:
    """Check the checksum, and return whether there is one.

    In a file without one, fields other than the early ones are damage too: the damage may have hit
    the checksum's name.
    """
    if CHECKSUM in found:
        if found[CHECKSUM] != checksum_of(found):
            raise ValueError(
                f"the stored checksum is {found[CHECKSUM]}, but that of the fields is {checksum_of(found)}"
            )
        return True
    if found.get("format_version") == FORMAT_VERSION and (unknown := found.keys() - FIELDS_WITHOUT_CHECKSUM):
        raise ValueError(
            f"it has newer fields ({', '.join(sorted(unknown))}), but no {CHECKSUM}: the checksum was cut off; put the "
            "object back from a copy"
        )
    return False
