"""What the snapshots of a topic's Iceberg table say: each names its generation, how far each partition is registered,
and the id of its put, by which a process that got no answer finds out whether it is the table's. Pure.

    ledgermq.put             the id of the put
    ledgermq.cluster, ledgermq.topic.id, ledgermq.generation
    ledgermq.start, ledgermq.end
                             offsets of the partitions 0, 1, …, separated by commas
    ledgermq.after.ms        a time by the store's clock at which the snapshot before this one was there already

A snapshot of another program has none of them: then the newest one before it counts. Snapshots carry the clock of the
machine that made them, which says nothing here. When a snapshot came follows from the next one, or from a property of
the table, `ledgermq.seen`, which names a snapshot that was there at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from ledgermq_ledger.delta.actions import MetaData, Txn
from ledgermq_ledger.delta.names import DATE_CUT_MS
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Topic

PUT, AFTER_MS, SEEN = "ledgermq.put", "ledgermq.after.ms", "ledgermq.seen"
NAMES = ("ledgermq.cluster", "ledgermq.topic.id", "ledgermq.generation")
COUNTED = ("start", "end")


def chain_of(metadata: TableMetadata) -> list[Snapshot]:
    """Return the current snapshot and those before it that are kept, the newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found, snapshot = list[Snapshot](), metadata.current_snapshot()
    while snapshot is not None:
        found.append(snapshot)
        snapshot = by_id.get(snapshot.parent_snapshot_id or 0)
    return found


def _said(snapshot: Snapshot, name: str) -> str | None:
    text = None if snapshot.summary is None else snapshot.summary.get(name)
    return text if isinstance(text, str) else None


def has_put(chain: Iterable[Snapshot], put_id: str) -> bool:
    return any(_said(snapshot, PUT) == put_id for snapshot in chain)


def newest_of_ours(chain: Iterable[Snapshot]) -> Snapshot | None:
    """Return the newest snapshot of a chain that LedgerMQ put."""
    return next((snapshot for snapshot in chain if _said(snapshot, PUT) is not None), None)


def take_in(table: Table, chain: Sequence[Snapshot]) -> None:
    """Take in what the first snapshot of a chain says, or the newest one before it that is LedgerMQ's. If none is, the
    table is another program's, and its configuration stays empty.
    """
    if not chain:
        return
    table.version = chain[0].sequence_number or 0
    ours = newest_of_ours(chain)
    known = {} if ours is None else {name: text for name in NAMES if (text := _said(ours, name)) is not None}
    table.metadata = MetaData(id="", schema_string="", configuration=known)
    if ours is None or len(known) < len(NAMES):
        return
    cluster, topic_id, _ = (known[name] for name in NAMES)
    for what in COUNTED:
        for partition, text in enumerate((_said(ours, f"ledgermq.{what}") or "").split(",")):
            if text:
                app_id = f"ledgermq/{cluster}/{topic_id}/{partition}/{what}"
                table.txns[app_id] = Txn(app_id, int(text))


def summary_of(
    of: Topic, names: Mapping[str, str], txns: Mapping[str, Txn], put_id: str, after_ms: int
) -> dict[str, str]:
    """Return what a new snapshot says. `names`: of its generation; `txns`: how far the table's partitions are
    registered; `after_ms`: a time by the store's clock after the snapshot before it was read.
    """
    found = {PUT: put_id, AFTER_MS: str(after_ms)} | {name: names[name] for name in NAMES}
    topic_id = names["ledgermq.topic.id"]
    for what in COUNTED:
        app_ids = [f"ledgermq/{of.cluster}/{topic_id}/{partition}/{what}" for partition in range(of.partitions)]
        found[f"ledgermq.{what}"] = ",".join(str(txns[app_id].version) if app_id in txns else "0" for app_id in app_ids)
    return found


def after_ms_of(snapshot: Snapshot) -> int:
    """Return a time before which the snapshot did not come, by the store's clock; 0: it does not say."""
    return int(_said(snapshot, AFTER_MS) or 0)


def seen_text(snapshot: Snapshot, now_ms: int) -> str:
    return f"{snapshot.snapshot_id} {now_ms}"


def came_ms(metadata: TableMetadata, chain: Sequence[Snapshot], index: int) -> int | None:
    """Return a time at which a snapshot of a chain was there already, by the store's clock; None: it is not known."""
    times = [at_ms for above in chain[:index] if (at_ms := after_ms_of(above))][-1:]
    seen, _, at = metadata.properties.get(SEEN, "").partition(" ")
    if at.isdecimal() and any(str(snapshot.snapshot_id) == seen for snapshot in chain[: index + 1]):
        times.append(int(at))
    return min(times, default=None)


def held(metadata: TableMetadata, chain: Sequence[Snapshot], now_ms: int, keep_ms: int) -> int:
    """Return how many snapshots of a chain a reader may have open: the newest, and each one whose next one came less
    than `keep_ms` ago, or at an unknown time.
    """
    count = min(1, len(chain))
    while count < len(chain):
        replaced_ms = came_ms(metadata, chain, count - 1)
        if replaced_ms is not None and now_ms - replaced_ms >= keep_ms + DATE_CUT_MS:
            break
        count += 1
    return count
