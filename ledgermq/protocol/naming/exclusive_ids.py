"""Tell the ids of exclusive producers from those of all other producers.

The id of an exclusive producer begins with eight bytes that are the same for all of them; the other eight are
random. All other ids are random throughout. So an owner can refuse the batches of a producer that had a partition
for itself and lost it, also when no producer has the partition now.
"""

from __future__ import annotations

from ledgermq.protocol.limits import PRODUCER_ID_BYTES

_PREFIX = bytes.fromhex("e5c1d7a94b3f8206")


def exclusive_id(random_id: bytes) -> bytes:
    """Return the id of an exclusive producer, with the last half of 16 random bytes."""
    return _PREFIX + random_id[len(_PREFIX) :]


def is_exclusive(producer_id: bytes) -> bool:
    """Return whether this is the id of an exclusive producer."""
    return len(producer_id) == PRODUCER_ID_BYTES and producer_id.startswith(_PREFIX)
