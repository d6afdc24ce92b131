"""Read the requests of calls about transactions. Every field is checked here, so that an invalid
request raises InvalidRequest, and no other error.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import BRANCH_BYTES_MAX, DELAYED_BRANCH, PRODUCER_ID_BYTES
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name
from ledgermq_broker.transactions.state.limits import NUMBER_MAX
from ledgermq_broker.transactions.state.types import Kind, Part, State, Stream, Transaction

COUNTS_MAX = 100_000
"""Streams that one decision counts, over all of its bundles."""
GROUPS_MAX = 1000
BATCHES_MAX = 1 << 48
ENDING = (State.COMMITTED, State.ABORTED, State.PREPARED)


def transactional_id_of(text: str) -> str:
    """Return the id, which has 1 to 249 of ``[A-Za-z0-9._-]``. Raises InvalidRequest."""
    if not is_name(text):
        raise InvalidRequest(
            f"transactional id {text[:300]!r}: 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-' are allowed"
        )
    return text


def transaction_of(ref: pb.TransactionRef, coordinator: int) -> Transaction:
    """Return the transaction that a call names. `coordinator`: the one of its id. Raises InvalidRequest."""
    transactional_id_of(ref.transactional_id)
    if len(ref.producer_id) != PRODUCER_ID_BYTES:
        raise InvalidRequest(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(ref.producer_id)}")
    if ref.coordinator != coordinator:
        raise InvalidRequest(
            f"coordinator {coordinator} decides about transactional id {ref.transactional_id!r}, not {ref.coordinator}:"
            " use the one that InitTransactions returned"
        )
    if not (ref.epoch >= 1 and 1 <= ref.number <= NUMBER_MAX):
        raise InvalidRequest(f"epochs and numbers begin with 1; the call names epoch {ref.epoch}, number {ref.number}")
    return Transaction(ref.transactional_id, coordinator, ref.producer_id, ref.epoch, ref.number)


def transaction_to_end(ref: pb.TransactionRef, coordinator: int) -> Transaction:
    """As `transaction_of`; without a producer id, the transactional id alone names the transaction."""
    if ref.producer_id:
        return transaction_of(ref, coordinator)
    return Transaction(transactional_id_of(ref.transactional_id), coordinator, b"", ref.epoch, ref.number)


def branch_of(branch: bytes) -> bytes:
    if len(branch) > BRANCH_BYTES_MAX:
        raise InvalidRequest(f"a branch has at most {BRANCH_BYTES_MAX} bytes, not {len(branch)}")
    return branch


def staged_branch_of(branch: bytes, *, delayed: bool) -> bytes:
    """Return the branch that a call stages in. `delayed`: its records have due times. Raises InvalidRequest."""
    if branch.endswith(DELAYED_BRANCH) != delayed:
        raise InvalidRequest(
            f"branch {branch!r}: the branches of StageDelayed end with {DELAYED_BRANCH!r}, and those of Stage do not"
        )
    return branch_of(branch)


def parts_of(parts: Sequence[pb.TransactionPart], bundles: Iterable[int]) -> list[Part]:
    """Return the parts of a decision. `bundles`: the bundles that can have a part. Raises InvalidRequest."""
    known = set(bundles)
    found: dict[int, Part] = {}
    if sum(len(part.counts) + len(part.groups) for part in parts) > COUNTS_MAX:
        raise InvalidRequest(f"a decision counts at most {COUNTS_MAX} streams and groups; use smaller transactions")
    for part in parts:
        if part.bundle in found:
            raise InvalidRequest(f"a decision names bundle {part.bundle} twice; put all its counts into one part")
        found[part.bundle] = part_of(part, known)
    return list(found.values())


def part_of(part: pb.TransactionPart, bundles: Container[int]) -> Part:
    """Return the part of one bundle. Raises InvalidRequest."""
    if part.bundle not in bundles:
        raise InvalidRequest(f"bundle {part.bundle} holds no partition of __transactions, so it can have no part")
    if len(part.counts) > COUNTS_MAX or len(part.groups) > GROUPS_MAX:
        raise InvalidRequest(f"a part counts at most {COUNTS_MAX} streams and {GROUPS_MAX} groups")
    counts: dict[Stream, int] = {}
    for count in part.counts:
        stream = Stream(branch_of(count.branch), count.topic_id, count.partition)
        if stream in counts:
            raise InvalidRequest(
                f"partition {count.partition} of topic {count.topic_id} is counted twice; count it once"
            )
        if not 1 <= count.batches <= BATCHES_MAX:
            raise InvalidRequest(f"a count is 1 to {BATCHES_MAX} batches, not {count.batches}")
        counts[stream] = count.batches
    groups = tuple(part.groups)
    if len(set(groups)) < len(groups):
        raise InvalidRequest(f"the part of bundle {part.bundle} names a group twice; name each once")
    for group in groups:
        if not is_name(group):
            raise InvalidRequest(f"group name {group[:300]!r}: letters, digits, '.', '_' and '-' are allowed")
    return Part(part.bundle, counts, groups)


def kind_of(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise InvalidRequest(f"this broker has no transactions of kind {number}; upgrade it") from None


def outcome_of(number: int, allowed: Sequence[State] = ENDING) -> State:
    """Return the outcome. Raises InvalidRequest for others than `allowed`."""
    if number not in [int(state) for state in allowed]:
        raise InvalidRequest(f"outcome {number} is not one of {', '.join(state.name for state in allowed)}")
    return State(number)
