"""Check the offsets of every partition of a bundle: each is present exactly once, from the log
start to the end, in Parquet or in segments. Of a partition that came from another bundle, only what it
has had since then is here; of one that left with its files, nothing need be.

Safety invariants 1, 2, 3 and 6, checked by indexes and checkpoint alone.
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partitions_by_key


def check_offsets(view: LedgerView, dropped: set[int], problems: Problems) -> None:
    """Check all offsets. `dropped`: ids of removed topics, whose records may be gone."""
    counters = partitions_by_key(view.checkpoint)
    came_at = {PartitionId(opened.topic_id, opened.partition): opened.start for opened in view.checkpoint.state.opens}
    forgotten = {key for key, part in counters.items() if part.forgotten and key not in came_at}
    running: dict[PartitionId, int] = {}
    ends = dict(view.ends)

    def covered(key: PartitionId) -> int:
        return max(_covered(counters.get(key)), came_at.get(key, 0))

    for index in view.valid:
        object_key = keys.segment(view.bundle, index.slot)
        for opened in index.opens:
            key = PartitionId(opened.topic_id, opened.partition)
            running.pop(key, None)
            came_at[key] = opened.start
            if index.slot > view.checkpoint.state.slot:
                ends[key] = opened.start
        for entry in index.batches:
            key = PartitionId(entry.topic_id, entry.partition)
            expected = running.get(key)
            if expected is None:
                may_be_gone = key.topic_id in dropped or key in forgotten
                _check_first(entry, object_key, covered(key), may_be_gone, problems)
            else:
                _check_next(entry, object_key, expected, problems)
            running[key] = entry.base_offset + entry.record_count
            if index.slot > view.checkpoint.state.slot:
                ends[key] = running[key]
    for key, end in ends.items():
        if key.topic_id not in dropped and key not in forgotten:
            _check_end(view, key, end, running, covered(key), problems)
    _check_unknown(view, running, ends, problems)


def _covered(counters: fmt.PartitionCheckpoint | None) -> int:
    """Return the first offset that has to be in segments; offsets in Parquet, or dropped by
    retention before, need not be.
    """
    if counters is None:
        return 0
    has_files = counters.parquet_start < counters.parquet_end
    return counters.parquet_end if has_files else max(counters.parquet_end, counters.log_start)


def _check_first(entry: fmt.BatchEntry, object_key: str, covered: int, may_be_gone: bool, problems: Problems) -> None:
    if entry.base_offset > covered and not may_be_gone:
        text = f"offsets {covered} to {entry.base_offset - 1} are neither in Parquet nor in a segment"
        problems.damage(object_key, "OFFSET_GAP", f"{_partition(entry)}: {text}")


def _check_next(entry: fmt.BatchEntry, object_key: str, expected: int, problems: Problems) -> None:
    if entry.base_offset > expected:
        problems.damage(
            object_key,
            "OFFSET_GAP",
            f"{_partition(entry)}: offsets {expected} to {entry.base_offset - 1} are in no segment",
        )
    elif entry.base_offset < expected:
        text = f"an earlier segment or batch already holds offsets {entry.base_offset} to {expected - 1}"
        problems.damage(object_key, "OFFSET_DOUBLED", f"{_partition(entry)}: {text}")


def _check_end(
    view: LedgerView, key: PartitionId, end: int, running: dict[PartitionId, int], covered: int, problems: Problems
) -> None:
    checkpoint_key = keys.checkpoint(view.bundle, view.checkpoint.number)
    where = f"topic id {key.topic_id} partition {key.partition}"
    if key in running and running[key] != end:
        problems.damage(
            checkpoint_key,
            "WRONG_END",
            f"{where}: the checkpoint says that it ends at {end}, but its segments end at {running[key]}",
        )
    elif key not in running and end > covered:
        problems.damage(
            checkpoint_key,
            "OFFSET_GAP",
            f"{where}: offsets {covered} to {end - 1} are neither in Parquet nor in a segment",
        )
    if covered > end and covered != _log_start(view, key):
        problems.damage(
            checkpoint_key,
            "WRONG_END",
            f"{where}: the checkpoint says that Parquet reaches offset {covered}, but the partition ends at {end}",
        )


def _log_start(view: LedgerView, key: PartitionId) -> int:
    return next((part.log_start for part in view.checkpoint.partitions if (part.topic_id, part.partition) == key), 0)


def _check_unknown(
    view: LedgerView, running: dict[PartitionId, int], ends: dict[PartitionId, int], problems: Problems
) -> None:
    """Report partitions in segments up to the checkpoint that the checkpoint lacks."""
    for key in running.keys() - ends.keys():
        text = f"it lacks topic id {key.topic_id} partition {key.partition}, which its segments hold"
        problems.damage(keys.checkpoint(view.bundle, view.checkpoint.number), "WRONG_END", text)


def check_sequences(view: LedgerView, cluster: ClusterSettings, problems: Problems) -> None:
    """Check that a producer's batches in a partition follow each other: a repeated sequence was
    stored twice, a missing one was lost.

    Only a producer that the ledger may have dropped begins again with sequence 0.
    """
    state = view.checkpoint.state
    expected: dict[tuple[bytes, int, int, int], tuple[int, int]] = {}
    for index in view.valid:
        for opened in index.opens:  # its producers went on in the other bundle
            for key in [key for key in expected if key[2:] == (opened.topic_id, opened.partition)]:
                del expected[key]
        for entry in index.batches:
            if not entry.producer_id:
                continue
            key = (entry.producer_id, entry.producer_epoch, entry.topic_id, entry.partition)
            sequence, slot = expected.get(key, (entry.sequence, 0))
            may_be_forgotten = (
                slot <= state.forgotten_to or len(state.producers) + len(expected) > cluster.producer_states_max
            )
            if entry.sequence != sequence and not (entry.sequence == 0 and may_be_forgotten):
                code = "RECORD_DOUBLED" if entry.sequence < sequence else "SEQUENCE_GAP"
                text = (
                    f"producer {entry.producer_id.hex()} continues with sequence {entry.sequence}, but {sequence} is"
                    " next"
                )
                problems.damage(keys.segment(view.bundle, index.slot), code, f"{_partition(entry)}: {text}")
            expected[key] = (entry.sequence + entry.record_count, index.slot)


def check_put_ids(view: LedgerView, problems: Problems) -> None:
    seen: dict[bytes, int] = {}
    for slot, index in sorted(view.indexes.items()):
        first = seen.setdefault(index.put_id, slot)
        if first != slot:
            problems.damage(keys.segment(view.bundle, slot), "PUT_ID_DOUBLED", f"slot {first} has the same put id")


def _partition(entry: fmt.BatchEntry) -> str:
    return f"topic id {entry.topic_id} partition {entry.partition}"
