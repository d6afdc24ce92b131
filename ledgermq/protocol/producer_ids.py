"""Show a producer id to people without giving it away.

A producer id is a secret of its producer: a caller that has it may write batches, or stage them, in
its place. Answers that describe what producers did have the shown form instead. It has the length of an
id, so that earlier clients take it for one, and no call accepts it as one. Only the end of a half
message that is being checked may name its transaction by it.
"""

from __future__ import annotations

from hashlib import sha256

from ledgermq.protocol.limits import PRODUCER_ID_BYTES

_DOMAIN = b"ledgermq shown producer id\0"


def shown_producer_id(producer_id: bytes) -> bytes:
    """Return the form of an id that answers show: a hash, of the same length; empty for an empty id."""
    return sha256(_DOMAIN + producer_id).digest()[:PRODUCER_ID_BYTES] if producer_id else b""
