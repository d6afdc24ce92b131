"""The offsets of the group: committed, and pending until their transaction is completed."""

from __future__ import annotations

from tests.models.terms import NOT_OWNER, Term
from tests.models.transactions.bundle import has_other_id, is_begun, is_over, offset_key
from tests.models.transactions.state import (
    FENCED,
    OK,
    OVER,
    RETRY,
    State,
    TransactionId,
)


def stage_offset(
    term: Term[State], transaction: TransactionId, member: str, group_epoch: int, offset: int | None
) -> str:
    """Judge an offset now, apply it when the transaction is completed. None: the one in force."""
    group, world = term.state.group, term.world
    if has_other_id(term, transaction) and not world.breaks("two-ids-of-a-producer"):
        return RETRY
    if is_over(term, transaction) or is_begun(term, transaction):
        return term.final(OVER)
    if (group.member, group.epoch) != (member, group_epoch) and not term.world.breaks("offsets-not-fenced"):
        return term.final(FENCED)
    key = offset_key(term, transaction)
    if any(other != key for other in group.pending) and not world.breaks("pending-of-others"):
        return RETRY
    if offset is None:
        offset = group.committed
    if key in group.pending and offset < group.pending[key][1] and not world.breaks("staged-offset-goes-back"):
        return term.final(OVER)
    staged = {key: (world.now, offset)}
    return OK if term.append(lambda state: state.group.pending.update(staged)) else NOT_OWNER


def commit_plainly(term: Term[State], member: str, group_epoch: int) -> str:
    """Commit the offset in force once more: the least that a plain commit may do."""
    group, now = term.state.group, term.world.now
    if (group.member, group.epoch) != (member, group_epoch):
        return term.final(FENCED)
    if group.pending and not term.world.breaks("plain-over-pending"):
        return RETRY
    return OK if term.append(lambda state: setattr(state.group, "plain_at", now)) else NOT_OWNER


def fetch_committed(term: Term[State]) -> int | str:
    if not term.is_current:
        return NOT_OWNER
    return (
        RETRY if term.state.group.pending and not term.world.breaks("pending-ignored") else term.state.group.committed
    )


def assign(term: Term[State], member: str) -> bool:
    epoch = term.state.group.epoch + 1

    def change(state: State) -> None:
        state.group.member, state.group.epoch = member, epoch

    return term.append(change)


def assignment(term: Term[State]) -> tuple[str | None, int]:
    """May be old: heartbeats have no fence check."""
    return term.state.group.member, term.state.group.epoch
