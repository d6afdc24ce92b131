"""Mark the cluster that owns an archive, because the names of its files do not say which it is.

    archive/_cluster.json    {"format": "ledgermq-archive", "format_version": 1, "cluster_id": "…"}

The first process that archives puts it once, before the first file. The footers of files archived
before marks existed name the cluster, too. Readers of plain Parquet skip names that begin with "_".
"""

from __future__ import annotations

import json
from typing import Any

from ledgermq.errors import DataDamaged, FormatNotSupported, InvalidConfig, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import read_footer

FORMAT = "ledgermq-archive"
FORMAT_VERSION = 1


async def check_owner(archive: ObjectStore, cluster_id: str) -> bool:
    """Return True if the archive is marked.

    Raises InvalidConfig if it belongs to another cluster, DataDamaged, the store's errors.
    """
    marked = await _read_mark(archive)
    owner = marked or await _owner_of_files(archive)
    if owner not in (None, cluster_id):
        raise InvalidConfig(
            f"{archive.url}: the archive there belongs to cluster {owner}, and this is cluster {cluster_id}; "
            "set another archive.url for each cluster"
        )
    return marked is not None


async def mark(archive: ObjectStore, cluster_id: str, sources: Sources) -> None:
    """Mark the archive as this cluster's. Raises what `check_owner` raises, Unavailable."""
    # Every process that marks it for the same cluster puts the same bytes, so it does not matter which
    # one wins.
    if await settle_put(archive, keys.ARCHIVE_OWNER, [encode_mark(cluster_id)], sources=sources) is PutOutcome.UNKNOWN:
        raise Unavailable(
            f"{archive.url}: outcome of the conditional put of {keys.ARCHIVE_OWNER} is unknown; retry later"
        )
    await check_owner(archive, cluster_id)


def encode_mark(cluster_id: str) -> bytes:
    return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "cluster_id": cluster_id}).encode() + b"\n"


def decode_mark(data: bytes) -> str:
    """Return the cluster's id. Raises DataDamaged, FormatNotSupported."""
    key = keys.ARCHIVE_OWNER
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("this is not the owner mark of a LedgerMQ archive")
        if found["format_version"] != FORMAT_VERSION:
            raise FormatNotSupported(
                f"{key}: it has format version {found['format_version']}, this software reads version {FORMAT_VERSION}",
                object_key=key,
            )
        cluster_id = found["cluster_id"]
        if not isinstance(cluster_id, str) or not cluster_id or not cluster_id.isascii():
            raise ValueError("it names no cluster")
    except (ValueError, KeyError, RecursionError) as error:
        raise DataDamaged(f"{key}: {error!r}", object_key=key) from error
    return cluster_id


async def _read_mark(archive: ObjectStore) -> str | None:
    try:
        return decode_mark(await archive.get(keys.ARCHIVE_OWNER))
    except ObjectMissing:
        return None


async def _owner_of_files(archive: ObjectStore) -> str | None:
    """Return the owner named by the first file that names one."""
    async for info in archive.list(keys.ARCHIVE):
        if keys.parse_archived(info.key) is None:
            continue
        try:
            note = FooterNote.decode((await read_footer(archive, info.key)).metadata)
        except (DataDamaged, ObjectMissing):
            continue
        if note is not None:
            return note.cluster
    return None
