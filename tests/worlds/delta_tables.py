"""Write a Delta table over the Parquet files of a folder, as a registrar would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgermq_ledger.delta.actions import Action, Add, CommitInfo, Remove, Txn, encode_commit, encode_path
from ledgermq_ledger.delta.checkpoint import LastCheckpoint, encode_hint, encode_log_checkpoint
from ledgermq_ledger.delta.names import FOLDER, LAST_CHECKPOINT, checkpoint_name, commit_name
from ledgermq_ledger.delta.statistics import encode_statistics, statistics_of_footer
from ledgermq_ledger.delta.table import Table, new_table
from ledgermq_ledger.parquet.files.columns import SCHEMA
from ledgermq_ledger.parquet.files.stored_file import parse_footer

CREATED_MS = 1_767_323_045_000
CLUSTER, TOPIC_ID = "c1", 7


def first_actions() -> list[Action]:
    return new_table(SCHEMA, cluster=CLUSTER, topic="flights", topic_id=TOPIC_ID, generation=12, created_ms=CREATED_MS)


def add_of(folder: Path, file: Path) -> Add:
    data = file.read_bytes()
    stats = encode_statistics(statistics_of_footer(parse_footer(data, file.name)))
    return Add(encode_path(file.relative_to(folder).as_posix()), len(data), CREATED_MS, stats=stats)


def remove_of(file: Add) -> Remove:
    return Remove(file.path, CREATED_MS, extended_file_metadata=True, partition_values={}, size=file.size)


def registered(partition: int, end: int) -> Txn:
    return Txn(f"ledgermq/{CLUSTER}/{TOPIC_ID}/{partition}/end", end)


class DeltaFolder:
    """The log of a table in `folder`, by versions from `first` on."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self.folder, self.log = folder, folder / FOLDER
        self.log.mkdir()
        self.table = Table(first - 1)

    def commit(self, actions: Sequence[Action], operation: str = "WRITE") -> None:
        version = self.table.version + 1
        info = CommitInfo(CREATED_MS, operation, "LedgerMQ", txn_id=f"{version:032x}")
        data = b"".join(encode_commit(actions, info))
        with (self.log / commit_name(version)).open("xb") as file:
            file.write(data)
        self.table.take(actions, "")
        self.table.version = version

    def put_checkpoint(self) -> None:
        data, hint = encode_log_checkpoint(self.table, removed_after_ms=0, put_id="00" * 16, key="")
        (self.log / checkpoint_name(self.table.version)).write_bytes(bytes(data))
        self.put_hint(hint)

    def put_hint(self, hint: LastCheckpoint) -> None:
        (self.log / LAST_CHECKPOINT).write_bytes(encode_hint(hint))

    def clean_below(self, version: int) -> None:
        """Delete the commits below a version."""
        for old in range(version):
            (self.log / commit_name(old)).unlink(missing_ok=True)
