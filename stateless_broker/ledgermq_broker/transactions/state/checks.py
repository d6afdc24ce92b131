"""Check the arguments of calls: transactional ids, producers, parts. Every function raises InvalidRequest."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import InvalidRequest
from ledgermq.protocol.limits import BRANCH_BYTES_MAX, PRODUCER_ID_BYTES
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name
from ledgermq.protocol.naming.unresolved import SUFFIX
from ledgermq_broker.transactions.state.limits import NUMBER_MAX, TransactionLimits
from ledgermq_broker.transactions.state.types import Kind, Part, Transaction

CHECK_GROUP_CHARS_MAX = NAME_CHARS_MAX - len(SUFFIX)


def check_transactional_id(name: str) -> str:
    """Return the id, which has 1 to 249 of ``[A-Za-z0-9._-]``, so that it needs no escapes in keys."""
    if not is_name(name):
        raise InvalidRequest(
            f"transactional id {name[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return name


def check_transaction(transaction: Transaction) -> Transaction:
    check_transactional_id(transaction.transactional_id)
    if len(transaction.producer_id) != PRODUCER_ID_BYTES:
        raise InvalidRequest(
            f"the producer id of {transaction.transactional_id} has {len(transaction.producer_id)} bytes instead of "
            f"{PRODUCER_ID_BYTES}; use the one that InitTransactions returned"
        )
    if transaction.epoch < 1 or transaction.number < 1:
        raise InvalidRequest(
            f"{describe(transaction)}: epochs and numbers count from 1; use the epoch that InitTransactions returned"
        )
    if transaction.number > NUMBER_MAX:
        raise InvalidRequest(f"{describe(transaction)}: numbers end at {NUMBER_MAX}; initialize the id again")
    return transaction


def check_branch(branch: bytes) -> None:
    if len(branch) > BRANCH_BYTES_MAX:
        raise InvalidRequest(f"the name of a branch has at most {BRANCH_BYTES_MAX} bytes, this one has {len(branch)}")


def check_timeout(timeout_ms: int, limits: TransactionLimits) -> int:
    """Return the time-out that applies: the caller's, or the default if the caller passes 0."""
    if not 0 <= timeout_ms <= limits.timeout_ms_max:
        raise InvalidRequest(
            f"a transaction's time-out is at most {limits.timeout_ms_max} ms, not {timeout_ms} ms; use a shorter one, "
            "or prepare the transaction: a prepared transaction has no time-out"
        )
    return timeout_ms or limits.timeout_ms


def check_kept(kept_ms: int, timeout_ms: int, kind: Kind) -> int:
    """Return how long an id stays after its last use; 0: as long as the broker keeps ids. `timeout_ms`: the one that
    applies.
    """
    if kept_ms and kind is not Kind.ORDINARY:
        raise InvalidRequest(f"a transactional id of kind {kind.name} cannot have kept_ms: it goes by its own rules")
    if kept_ms and kept_ms < timeout_ms:
        raise InvalidRequest(
            f"a transactional id stays at least as long as the time-out of its transactions ({timeout_ms} ms), not"
            f" {kept_ms} ms: give a longer kept_ms, or a shorter time-out"
        )
    return kept_ms


def check_group(kind: Kind, group: str) -> None:
    if kind is Kind.HALF_MESSAGE:
        unresolved_topic(group)
    if kind is not Kind.HALF_MESSAGE and group:
        raise InvalidRequest(f"only a half message has a check group; this {kind.name} transaction names {group!r}")


def unresolved_topic(group: str) -> str:
    """Return the topic for copies of a check group's unresolved half messages."""
    if not is_name(group) or len(group) > CHECK_GROUP_CHARS_MAX or group.startswith("__"):
        raise InvalidRequest(
            f"{group[:300]!r} is not the name of a check group: 1 to {CHECK_GROUP_CHARS_MAX} letters, digits, '.', "
            "'_' and '-' are allowed, and it may not begin with '__'"
        )
    return group + SUFFIX


def about_copy(group: str) -> str:
    """Say where the copy of an unresolved half message of a check group is, and how to decide about it."""
    return (
        f"an operator decides about its copy in topic {group + SUFFIX!r}: `ledgermq transaction unresolved "
        f"list {group}`"
    )


def check_parts(parts: Sequence[Part], limits: TransactionLimits) -> tuple[Part, ...]:
    """Return the parts in the order of bundles, without counts of zero."""
    if len({part.bundle for part in parts}) != len(parts):
        raise InvalidRequest("a decision names one bundle twice; put all counts of a bundle into one part")
    return tuple(sorted((_checked(part, limits) for part in parts), key=lambda part: part.bundle))


def _checked(part: Part, limits: TransactionLimits) -> Part:
    for stream in part.counts:
        check_branch(stream.branch)
    for group in part.groups:
        if not is_name(group):
            raise InvalidRequest(f"a decision names the group {group[:300]!r}, which is not a valid group name")
    batches = sum(part.counts.values())
    if batches > limits.batches_max:
        raise InvalidRequest(
            f"a decision counts {batches} batches in bundle {part.bundle}; a transaction has at most "
            f"{limits.batches_max} in one"
        )
    counts = {stream: count for stream, count in part.counts.items() if count}
    return Part(part.bundle, counts, tuple(sorted(set(part.groups))))


def describe(transaction: Transaction) -> str:
    return f"transaction {transaction.number} in epoch {transaction.epoch} of {transaction.transactional_id!r}"
