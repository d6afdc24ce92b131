"""Limits that both sides of the wire share; sizes are in bytes.

Every buffer that a peer can fill is bounded by one of them.
"""

from __future__ import annotations

from ledgermq.errors import InvalidRequest

BATCH_BYTES_TYPICAL = 4 * 1024 * 1024
"""Target size of a producer's request, all partitions together; also of a fetch answer, unless the
caller requests less.
"""

FRAME_PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Largest size of all batches of one frame together, hence also of one batch."""

RECORD_BYTES_MAX = FRAME_PAYLOAD_BYTES_MAX - 64 * 1024
"""Largest record that a topic may allow: key, value and headers. The rest of the frame is for what a batch of one
record has besides: its metadata, the places of thousands of headers, the tag, the blocks of a compression.
"""

FRAME_HEADER_BYTES_MAX = 1024 * 1024

BATCHES_PER_FRAME_MAX = 4096

WINDOW_BATCHES = 5
"""Batches of one producer and partition that may be unacknowledged at once. Brokers remember as many
(design P2), so both sides must agree.
"""

BRANCH_BYTES_MAX = 32
"""Largest name of a branch of a transaction."""

DELAYED_BRANCH = b"/delayed"
"""How the branch of delayed batches ends. Batches of any other branch become visible at the commit."""

OFFSET_MAX = 2**63 - 1

PRODUCER_ID_BYTES = 16

NONCE_BYTES_MAX = 16
"""Longest nonce, by which a broker recognizes the attempts of one call."""

CONTENT_BYTES_MAX = 16
"""Longest digest of what a transaction writes, by which a coordinator recognizes a repeated call."""

PRODUCER_NAME_CHARS_MAX = 200
"""Longest name of an exclusive producer."""

PARTITIONS_PER_CALL_MAX = 4096
"""Largest number of partitions that a client names in one call for producer sessions."""

MESSAGE_BYTES_MAX = FRAME_PAYLOAD_BYTES_MAX + FRAME_HEADER_BYTES_MAX + 64
"""Largest gRPC message: a frame with its tags and lengths, or any other message of the service."""

REQUEST_BYTES_MAX = 8 * 1024 * 1024 + 64 * 1024
"""Largest request of a method that sends no records."""

METADATA_BYTES_MAX = 32 * 1024
"""Largest gRPC headers and trailers of one call."""

ERROR_TEXT_CHARS_MAX = 2000
"""Longer error texts are cut before they are sent, so that trailers always fit."""

DETAILS_CHARS_MAX = 500
"""Largest size of gRPC's own copy of the text, for tools without LedgerMQ's metadata;
percent-encoded it takes up to twelve bytes per character.
"""

GRPC_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    # A peer that is silent for 15 s is gone, also on an idle line; servers must allow the pings
    # that detect it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # or gRPC waits a minute for the answer to a ping
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)
"""Return channel and server options; the same on both sides."""


def check_nonce(nonce: bytes) -> None:
    """Check the nonce of a call. Raises InvalidRequest."""
    if len(nonce) > NONCE_BYTES_MAX:
        raise InvalidRequest(f"a nonce has at most {NONCE_BYTES_MAX} bytes, this one has {len(nonce)}")


def check_content(content: bytes) -> None:
    """Check the digest of what a transaction writes. Raises InvalidRequest."""
    if len(content) > CONTENT_BYTES_MAX:
        raise InvalidRequest(
            f"the digest of contents has at most {CONTENT_BYTES_MAX} bytes, this one has {len(content)}"
        )


def with_nonce(nonces: tuple[bytes, ...], nonce: bytes, kept: int) -> tuple[bytes, ...]:
    """Return the nonces of the newest `kept` calls, oldest first, when this one is noted. Clients of earlier releases
    give none.
    """
    return (*nonces, nonce)[-kept:] if nonce else nonces
