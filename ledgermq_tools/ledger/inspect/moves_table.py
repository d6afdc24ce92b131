"""The table of partitions that moved, in reports of segments and of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.cli.output.report import Rows
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt

COLUMNS = ("topic_id", "partition", "move", "what", "offset", "other_bundle")


def moves_table(seals: Iterable[fmt.PartitionSeal], opens: Iterable[fmt.PartitionOpen]) -> list[Rows]:
    """Return the table, in a list; an empty list if nothing has moved. `offset`: where the partition ends
    here, or begins.
    """
    rows = [(seal.topic_id, seal.partition, seal.move, "left", seal.end, seal.target) for seal in seals]
    rows += [(each.topic_id, each.partition, each.move, "came", each.start, each.source) for each in opens]
    return [Rows("moved", COLUMNS, [dict(zip(COLUMNS, row, strict=True)) for row in rows])] if rows else []
