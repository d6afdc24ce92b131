"""Settings of producers; `values` has those of all others, and the rules for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from ledgermq.buffers import MIB
from ledgermq.client.messages.record import Outgoing
from ledgermq.client.settings.declared import (
    above_zero,
    between,
    check_fields,
    checked,
    function,
    functions,
    having,
    switch,
    text,
)
from ledgermq.client.settings.partitioner import Keyless
from ledgermq.client.settings.serializers import ToBytes
from ledgermq.client.settings.spill import Spill
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.batches.records import Compression
from ledgermq.protocol.limits import (
    BATCH_BYTES_TYPICAL,
    FRAME_PAYLOAD_BYTES_MAX,
    PRODUCER_NAME_CHARS_MAX,
    WINDOW_BATCHES,
)

ChosenCompression = Literal["auto", Compression]

SendInterceptor = Callable[[Outgoing], Outgoing]
"""An interceptor of producers: a record -> the record that is sent."""

Partitioner = Callable[[Outgoing, int], int]
"""A partitioner: (record, number of partitions) -> partition. The record's value is bytes, its timestamp in
microseconds.
"""


def _check_partitioner(name: str, value: Any) -> None:
    if value not in get_args(Keyless) and not callable(value):
        raise InvalidConfig(
            f"{name} must be {', '.join(get_args(Keyless))} or a function of a record and the number of partitions, not"
            f" {value!r}"
        )


AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of one producer. Times count from the call of `send`."""

    acks: Literal["durable", "received"] = "durable"
    """durable: a record is answered when it is stored. received: a record is answered when the
    broker has it in memory; a crash of the broker loses such records, and `idempotent` has no
    effect.
    """
    idempotent: bool = switch(True)
    """Store each record at most once, whatever is retried. False: a retry after a lost response
    may store a record again.
    """
    delivery_timeout_s: float = above_zero(120.0)
    """Longest time until a record is stored, retries included; then its awaitable fails."""
    request_timeout_s: float = above_zero(30.0)
    """Longest time of one request; then it is sent again."""
    linger_ms: float | None = between(None, 0, 60_000)
    """How long a batch waits for more records before it is sent; a full batch and `flush` do not
    wait. Not set: an idle partition sends at once, a busy one every 5 ms at most. Raise it for
    larger batches, set 0 for the lowest latency.
    """
    batch_bytes_max: int = between(MIB, 1, FRAME_PAYLOAD_BYTES_MAX // 2)
    """Size of a batch of one partition, before compression; a larger record is sent alone."""
    request_bytes_max: int = between(BATCH_BYTES_TYPICAL, 1, FRAME_PAYLOAD_BYTES_MAX // 2)
    """Size of a request to one broker, with batches of many partitions."""
    compression: ChosenCompression = "auto"
    """Codec of batches, unless the topic's `compression.type` names one. auto: lz4 as long as it
    makes the batches of a partition smaller.
    """
    buffer_bytes_max: int = above_zero(64 * MIB)
    """Memory for records that are not yet answered. When it is full, `when_full` decides whether
    calls wait or fail.
    """
    when_full: Literal["wait", "fail"] = "wait"
    """What happens when the buffer is full. wait: `send_many`, `send_batch`, and awaiting the result
    of `send` wait for room; plain `send` calls may add 64 MiB above the buffer before they raise
    ResourceExhausted. fail: every call raises ResourceExhausted.
    """
    window_batches: int = between(WINDOW_BATCHES, 1, WINDOW_BATCHES)
    """Batches of one partition that may be under way at once. Set 1 if no record may be stored after
    one that failed; it costs throughput.
    """
    partitioner: Keyless | Partitioner = checked("sticky", _check_partitioner)
    """Chooses the partition of records that name none. sticky, round_robin, random: Kafka's hash of the key;
    records without a key go to one partition until its batch is sent (sticky, for large batches), to each in
    turn, or to any, of those in the `rack` of the client where it has one. A function of a record
    (`ledgermq.Outgoing`, its value as bytes) and the number of partitions decides for all records.
    """
    availability_timeout_s: float = between(2.0, 0, 3600)
    """Records without a key avoid partitions whose owner has stored nothing for this time although records wait
    there, as long as others are left. 0: they avoid none. A function as `partitioner` decides for itself.
    """
    batch_by: Literal["partition", "tag"] = "partition"
    """partition: a batch has records of all tags. tag: a batch has records of one tag, so that consumers that filter
    by tag fetch little of what they leave out. Records of one tag keep their order in a partition; records of
    different tags do not. Set it where programs read few tags of many, with a `linger_ms` that fills batches.
    """
    serializer: ToBytes | None = having("to_bytes")
    """Converts values to bytes: `ledgermq.Serializer.json()`, …, or any object with the method
    `to_bytes(value)`. A value that it refuses raises InvalidRecord. None (a tombstone), and the rows of
    `send_batch`, are not converted. Not set: values are bytes or text.
    """
    interceptors: Sequence[SendInterceptor] = functions("an Outgoing")
    """Functions of a record (`ledgermq.Outgoing`) that return it, or a changed one made with
    `record._replace(…)`. They are called in this order, before the serializer, for each record of `send` and
    `send_many`. If one fails, its record is refused with InvalidRecord.
    """
    raise_on_error: bool = switch(True)
    """False: a record that fails has a `SendResult`, too, whose `success` is False and whose `error` says why.
    `send`, `send_many` and `flush` raise no errors of records then. `send_batch` still does.
    """
    on_delivery: Callable[[Any], object] | None = function("a SendResult")
    """Called with the `SendResult` of each record of `send` and `send_many`, also of one that fails. Its program
    has seen the error then, and `flush` does not raise it. It is called on the event loop, and must not block.
    """
    auto_create: bool = switch(True)
    """Create topics that do not exist, if brokers allow it (`auto_create_topics`)."""
    access_mode: AccessMode = "shared"
    """Whether the producer has topics for itself. shared: as many producers as you like. exclusive: it has the topics
    that it writes to for itself, or fails with PartitionHeld while another exclusive producer has one.
    wait_for_exclusive: it waits for them. exclusive_with_fencing: it takes them from their holder, whose later records
    fail with ProducerFenced. Records of all other producers fail with PartitionHeld meanwhile.
    """
    name: str = text(PRODUCER_NAME_CHARS_MAX)
    """Name of an exclusive producer, for errors and lists; up to 200 characters."""
    spill: Spill | None = None
    """Local file for records that cannot be delivered in time, `ledgermq.Spill(path)`; they are sent in
    order when brokers answer again. Not set: such records fail.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if self.spill is not None:
            self._check_spill()
        if self.access_mode != "shared" and (self.acks != "durable" or not self.idempotent or self.spill is not None):
            raise InvalidConfig(
                f"access_mode='{self.access_mode}' needs acks='durable', idempotent=True and no spill: leave them out"
            )

    def _check_spill(self) -> None:
        if not isinstance(self.spill, Spill):
            raise InvalidConfig(f"spill must be a ledgermq.Spill, not {self.spill!r}")
        if self.acks != "durable" or not self.idempotent:
            raise InvalidConfig(
                "spill needs acks='durable' and idempotent=True, so that a repeated batch is recognized: leave out"
                " acks and idempotent"
            )

    def strict_for(self, what: str) -> Self:
        """Return these settings, for `what`, which neither spills records nor goes on after one has failed. Raises
        InvalidConfig.
        """
        if not self.raise_on_error:
            raise InvalidConfig(f"{what} ends with the error of a record: leave out raise_on_error")
        if self.spill is not None:
            raise InvalidConfig(f"{what} cannot spill records to a local file: leave out spill")
        if self.access_mode != "shared":
            raise InvalidConfig(f"{what} cannot have topics for itself: leave out access_mode")
        return self


REMOVED = {
    "waiting_bytes_max": "plain `send` calls may add 64 MiB above `buffer_bytes_max`; set that, or when_full='fail'",
}
"""Removed settings of producers, each with what to do instead; docs/upgrades.md has the rule."""
