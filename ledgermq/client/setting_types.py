"""Settings of the SDK as types of keyword arguments, made by infra/setting_types.py: do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict

from ledgermq.client.settings.serializers import S, V

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from ledgermq.client.consuming.start import Start
    from ledgermq.client.groups.assignment import GivenRule
    from ledgermq.client.groups.handlers.handler import OnFailure
    from ledgermq.client.groups.handlers.lanes import Ordering
    from ledgermq.client.groups.handlers.middleware import Middleware
    from ledgermq.client.groups.handlers.retry import Retry
    from ledgermq.client.queues.runner import OnQueueFailure
    from ledgermq.client.settings.partitioner import Keyless
    from ledgermq.client.settings.producers import AccessMode, ChosenCompression, Partitioner, SendInterceptor
    from ledgermq.client.settings.serializers import FromBytes, ToBytes
    from ledgermq.client.settings.spill import Spill
    from ledgermq.client.settings.tls import Tls
    from ledgermq.client.settings.values import Interceptor, PartitionsCallback
    from ledgermq.errors import LedgerMQError
    from ledgermq.offset_stores.contract import OffsetStore


class ClientOptions(TypedDict, total=False):
    """Arguments of `connect`."""

    timeout_s: float
    attempt_timeout_s: float
    backoff_ms_first: int
    backoff_ms_max: int
    metadata_age_s_max: float
    tls: Tls | bool | None
    must_exist: bool
    token: str
    token_file: str
    client_id: str
    rack: str
    tracing: bool | None
    tracing_parent: Literal["local", "message"]
    metrics: bool | None
    on_trouble: Callable[[LedgerMQError | None], None] | None


class ProducerOptions(TypedDict, Generic[S], total=False):
    """Arguments of `Client.producer` and of transactions."""

    acks: Literal["durable", "received"]
    idempotent: bool
    delivery_timeout_s: float
    request_timeout_s: float
    linger_ms: float | None
    batch_bytes_max: int
    request_bytes_max: int
    compression: ChosenCompression
    buffer_bytes_max: int
    when_full: Literal["wait", "fail"]
    window_batches: int
    partitioner: Keyless | Partitioner
    availability_timeout_s: float
    batch_by: Literal["partition", "tag"]
    serializer: ToBytes[S] | None
    interceptors: Sequence[SendInterceptor]
    raise_on_error: bool
    on_delivery: Callable[[Any], object] | None
    auto_create: bool
    access_mode: AccessMode
    name: str
    spill: Spill | None


class ConsumerOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.consumer` without a group."""

    auto_offset_reset: Literal["error", "earliest", "latest"]
    prefetch_bytes_max: int
    fetch_bytes_max: int
    request_timeout_s: float
    decoded_bytes_max: int
    direct_reads: str
    deliver_expired: bool
    filter: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]


class MemberOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.consumer` with a group."""

    auto_offset_reset: Literal["error", "earliest", "latest"]
    prefetch_bytes_max: int
    fetch_bytes_max: int
    request_timeout_s: float
    decoded_bytes_max: int
    direct_reads: str
    deliver_expired: bool
    filter: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]
    commit: Literal["auto", "acked", "manual", "before"]
    commit_interval_ms: float
    session_timeout_s: float
    max_poll_interval_s: float
    heartbeat_wait_s: float | None
    revoke_wait_s: float | None
    close_timeout_s: float
    acked_ahead_max: int
    failed_held_max: int
    failed_held_bytes_max: int
    assignor: Literal["uniform", "range", "sticky", "consistent_hash"]
    instance_id: str
    rack: str
    client_id: str
    offset_store: OffsetStore | None
    broadcast: bool
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    retry: Retry | None


class TableOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.table`."""

    auto_offset_reset: Literal["error", "earliest", "latest"]
    prefetch_bytes_max: int
    fetch_bytes_max: int
    request_timeout_s: float
    decoded_bytes_max: int
    direct_reads: str
    deliver_expired: bool
    filter: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]
    table_bytes_max: int


class QueueOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.queue`."""

    lease_s: float
    attempts_max: int
    dead_letters: bool
    iteration_records_max: int
    fetch_bytes_max: int
    decoded_bytes_max: int
    request_timeout_s: float
    filter: str
    client_id: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]


class HandlerOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.handler`."""

    concurrency: int
    ordered_by: Ordering
    executor: Executor | None
    timeout_s: float | None
    retry: Retry | None
    retry_ms_first: int
    retry_ms_max: int
    waiting_max: int
    batch: bool
    batch_records_max: int
    batch_wait_ms: float
    rate_per_s: float | None
    middleware: Sequence[Middleware]
    on_failure: OnFailure[V] | None
    transactional: bool
    transactional_id: str
    transaction_messages_max: int
    transaction_ms_max: int
    transaction_timeout_s: float
    auto_offset_reset: Literal["error", "earliest", "latest"]
    prefetch_bytes_max: int
    fetch_bytes_max: int
    request_timeout_s: float
    decoded_bytes_max: int
    direct_reads: str
    deliver_expired: bool
    filter: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]
    commit: Literal["auto", "acked", "manual", "before"]
    commit_interval_ms: float
    session_timeout_s: float
    max_poll_interval_s: float
    heartbeat_wait_s: float | None
    revoke_wait_s: float | None
    close_timeout_s: float
    acked_ahead_max: int
    failed_held_max: int
    failed_held_bytes_max: int
    assignor: Literal["uniform", "range", "sticky", "consistent_hash"]
    instance_id: str
    rack: str
    client_id: str
    offset_store: OffsetStore | None
    broadcast: bool
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    start: GivenRule


class QueueHandlerOptions(TypedDict, Generic[V], total=False):
    """Arguments of `Client.queue_handler`."""

    concurrency: int
    executor: Executor | None
    timeout_s: float | None
    wait_ms_first: int
    wait_ms_max: int
    batch: bool
    batch_records_max: int
    rate_per_s: float | None
    middleware: Sequence[Middleware]
    on_failure: OnQueueFailure[V] | None
    lease_s: float
    attempts_max: int
    dead_letters: bool
    iteration_records_max: int
    fetch_bytes_max: int
    decoded_bytes_max: int
    request_timeout_s: float
    filter: str
    client_id: str
    deserializer: FromBytes[V] | None
    interceptors: Sequence[Interceptor]
    start: Start
