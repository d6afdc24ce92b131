"""Reset committed offsets, the only way by which they go back.

A reset draws a new epoch for each of its partitions, so work that began before it can never be
committed after it. A member that holds the partition receives it again, sees the epoch, and begins
again at the new offset.

A call may come again after its answer was lost, and another program may have reset, or committed, in
between. The group keeps the nonces of its newest resets, so what the first attempt has reset stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import OFFSET_MAX, check_nonce
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.committing.commits import Ends, check_settled, check_space
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.group import Group
from ledgermq_offsets.state.records import OffsetValue


def left_of(group: Group, request: pb.ResetOffsetsRequest) -> int:
    """Return the offsets of a call that no earlier attempt has reset, as bits. Raises InvalidRequest."""
    check_nonce(request.nonce)
    return group.resets.get(request.nonce, (1 << len(request.resets)) - 1)


def note(group: Group, request: pb.ResetOffsetsRequest, results: Sequence[pb.CommitResult]) -> None:
    if request.nonce:
        group.note_reset(request.nonce, sum(1 << at for at, result in enumerate(results) if result.HasField("error")))


def check(group: Group, partition: PartitionId, reset: pb.OffsetReset, ends: Ends, limits: GroupLimits) -> None:
    """Check one reset. Raises InvalidRequest, OffsetOutOfRange, Unavailable, ResourceExhausted."""
    check_settled(group, partition)
    check_space(group, partition, limits)
    if not reset.HasField("offset"):
        return
    if reset.offset > OFFSET_MAX:
        raise InvalidRequest(f"offset {reset.offset} is too large: at most {OFFSET_MAX} is allowed")
    stored = group.offset_of(partition)
    ends.check(partition, reset.offset, (stored.offset or 0) if stored is not None else 0)


def apply(group: Group, partition: PartitionId, topic: str, reset: pb.OffsetReset, now_ms: int) -> None:
    """Apply one reset. A reset without an offset keeps a record, whose epoch refuses delayed
    commits.
    """
    epoch = group.draw()
    holder = group.holders.get(partition)
    if holder is not None:
        group.renew(group.members[holder], partition)
    group.set_offset(
        partition, OffsetValue(reset.offset if reset.HasField("offset") else None, "", now_ms, epoch, 0, topic)
    )
