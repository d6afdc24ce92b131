"""What legal holds and archives promise, looked at whenever a log start moves or a Parquet file
goes.

held        from the answer on, until it is taken back: no log start of the topic moves, and no file goes that holds
            records above it
archived    from the answer on: a file that goes and holds records above the log start of that moment stands in the
            archive, byte for byte; not judged beside damage, where a file goes that no commit has named, for its
            partition was parked and keeps its segments
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.judges.violation import Violation
from tests.simulation.world import World


class RetentionWatch:
    """Topics by their ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[int, dict[int, int]] = {}
        self._archived: dict[int, dict[int, int]] = {}

    def hold(self, topic_id: int, bundles: tuple[int, ...]) -> None:
        """It was answered that the topic is held."""
        self._held[topic_id] = self._log_starts(topic_id, bundles)
        self._world.coverage.saw("a topic was held")

    def let_go(self, topic_id: int) -> None:
        """The hold is about to be taken back."""
        self._held.pop(topic_id, None)

    def archive(self, topic_id: int, bundles: tuple[int, ...]) -> None:
        """It was answered that what retention takes is archived."""
        self._archived.setdefault(topic_id, self._log_starts(topic_id, bundles))

    def _log_starts(self, topic_id: int, bundles: tuple[int, ...]) -> dict[int, int]:
        starts = {}
        for partition, bundle in enumerate(bundles):
            parts = self._world.store.newest_checkpoint(bundle).partitions
            starts[partition] = next(
                (p.log_start for p in parts if (p.topic_id, p.partition) == (topic_id, partition)), 0
            )
        return starts

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        for part in checkpoint.partitions:
            start = self._held.get(part.topic_id, {}).get(part.partition)
            if start is not None and part.log_start > start:
                text = (
                    f"{part.topic_id}-{part.partition}: its log started at {start}, at {part.log_start} in checkpoint"
                    f" {checkpoint.number}"
                )
                self._world.violations.append(Violation("held records deleted", text))

    def on_parquet(self, changed: keys.ParquetName) -> None:
        store = self._world.store
        if store.has(changed.key):
            return
        start = self._held.get(changed.topic_id, {}).get(changed.partition)
        if start is not None and changed.last_offset >= start:
            self._world.violations.append(
                Violation("held records deleted", f"{changed.key} is gone, the log started at {start}")
            )
        start = self._archived.get(changed.topic_id, {}).get(changed.partition)
        if start is not None and changed.last_offset >= start and not self._world.damaged:
            copy = keys.archived(changed.key)
            self._world.coverage.saw("a Parquet file was archived")
            if not store.has(copy) or store.read_now(copy) != store.first[changed.key]:
                self._world.violations.append(
                    Violation("records nowhere", f"{changed.key} is gone, and not in the archive")
                )
