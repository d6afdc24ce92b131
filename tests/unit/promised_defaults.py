"""The default of every setting, as docs/settings.md promised it when the row was written: literals, not read
from the code.

`docs/settings.md` is made from the code, so it follows a default that changes by mistake. This table does not.
Change a default here only with the pages that name it, and with a line in docs/upgrades.md if users notice.
"""

from __future__ import annotations

from typing import Any, Final

NOT_SET: Final = "not set"
MIB: Final = 1_048_576

PROCESS: dict[str, Any] = {
    "cluster_id": NOT_SET,
    "log_format": "console",
    "log_level": "info",
    "shutdown_ms": 20_000,
    "admin_host": "127.0.0.1",
    "admin_port": NOT_SET,
    "admin_tls": "off",
    "tls_cert_file": NOT_SET,
    "tls_key_file": NOT_SET,
    "tls_client_ca_file": NOT_SET,
    "host": "127.0.0.1",
    "port": 9650,
    "advertised_address": NOT_SET,
    "peer_address": NOT_SET,
    "tls_client_auth": "none",
    "tls_ca_file": NOT_SET,
    "broker_id": NOT_SET,
    "rack": NOT_SET,
    "security": "auto",
    "super_principals": NOT_SET,
    "jwt_issuer": NOT_SET,
    "jwt_audience": NOT_SET,
    "jwt_keys_url": NOT_SET,
    "jwt_groups_claim": "groups",
    "audit_file": NOT_SET,
    "flush_spacing_ms": NOT_SET,
    "flush_bytes": 8 * MIB,
    "produce_memory_bytes_max": 256 * MIB,
    "produce_wait_ms_max": NOT_SET,
    "cache_bytes_max": 256 * MIB,
    "answer_memory_bytes_max": 256 * MIB,
    "direct_reads": NOT_SET,
    "fetch_wait_ms_max": 30_000,
    "filter_message_ms_max": 1_000,
    "reserve_bytes": 64 * MIB,
    "heartbeat_interval_ms": NOT_SET,
    "holding_ms": 10_000,
    "auto_create_topics": False,
    "default_partitions": 4,
    "partitions_max": 10_000,
    "topics_max": 10_000,
    "message_ttl_ms": NOT_SET,
    "archive_urls": NOT_SET,
    "message_ttl_ms_max": NOT_SET,
    "offsets_partitions": 16,
    "offsets_retention_ms": 604_800_000,
    "group_session_timeout_ms": 45_000,
    "group_members_max": 1_000,
    "background_compaction": True,
    "compaction_memory_bytes_max": 256 * MIB,
    "checkpoint_slots": 256,
    "bundles": 5,
    "producer_states_max": 100_000,
    "compaction_interval_ms": 60_000,
    "compaction_engine": "local",
}

TOPIC: dict[str, Any] = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "cleanup.policy": "delete",
    "min.cleanable.dirty.ratio": 0.5,
    "delete.retention.ms": 86_400_000,
    "min.compaction.lag.ms": 0,
    "compression.type": "producer",
    "max.message.bytes": MIB,
    "message.timestamp.type": "CreateTime",
    "message.ttl.ms": NOT_SET,
    "message.ttl.ms.max": NOT_SET,
    "dedup.window.ms": 0,
    "priority.levels": 1,
    "delayed.pending.max": -1,
    "accept.publish": True,
    "accept.subscribe": True,
    "backlog.quota.bytes": -1,
    "backlog.quota.ms": -1,
    "backlog.quota.policy": "producer_request_hold",
    "parquet.target.bytes": 128 * MIB,
    "parquet.max.lag.ms": 3_600_000,
    "parquet.bloom.key": False,
    "delete.action": "delete",
    "delete.when": NOT_SET,
    "delete.when.timezone": "UTC",
    "archive.url": NOT_SET,
    "legal.hold": False,
}

CLIENT: dict[str, Any] = {
    "timeout_s": 30.0,
    "attempt_timeout_s": 10.0,
    "backoff_ms_first": 50,
    "backoff_ms_max": 2_000,
    "metadata_age_s_max": 60.0,
    "tls": NOT_SET,
    "must_exist": False,
    "token": NOT_SET,
    "token_file": NOT_SET,
    "client_id": NOT_SET,
    "on_trouble": NOT_SET,
}

PRODUCER: dict[str, Any] = {
    "acks": "durable",
    "idempotent": True,
    "delivery_timeout_s": 120.0,
    "request_timeout_s": 30.0,
    "linger_ms": NOT_SET,
    "batch_bytes_max": MIB,
    "request_bytes_max": 4 * MIB,
    "compression": "auto",
    "buffer_bytes_max": 64 * MIB,
    "when_full": "wait",
    "window_batches": 5,
    "partitioner": "sticky",
    "availability_timeout_s": 2.0,
    "batch_by": "partition",
    "serializer": NOT_SET,
    "interceptors": (),
    "raise_on_error": True,
    "on_delivery": NOT_SET,
    "auto_create": True,
    "access_mode": "shared",
    "name": NOT_SET,
    "spill": NOT_SET,
}

CONSUMER: dict[str, Any] = {
    "auto_offset_reset": "error",
    "prefetch_bytes_max": 32 * MIB,
    "fetch_bytes_max": 4 * MIB,
    "request_timeout_s": 30.0,
    "decoded_bytes_max": 256 * MIB,
    "direct_reads": NOT_SET,
    "deliver_expired": False,
    "filter": NOT_SET,
    "deserializer": NOT_SET,
    "interceptors": (),
}

TABLE: dict[str, Any] = {"table_bytes_max": 1024 * MIB}

GROUP: dict[str, Any] = {
    "commit": "auto",
    "commit_interval_ms": 5_000,
    "session_timeout_s": 45.0,
    "max_poll_interval_s": 300.0,
    "heartbeat_wait_s": NOT_SET,
    "revoke_wait_s": NOT_SET,
    "close_timeout_s": 10.0,
    "acked_ahead_max": 100_000,
    "failed_held_max": 10_000,
    "failed_held_bytes_max": 64 * MIB,
    "assignor": "uniform",
    "instance_id": NOT_SET,
    "rack": NOT_SET,
    "client_id": NOT_SET,
    "offset_store": NOT_SET,
    "broadcast": False,
    "on_assigned": NOT_SET,
    "on_revoked": NOT_SET,
    "on_lost": NOT_SET,
}

HANDLER: dict[str, Any] = {
    "concurrency": 1,
    "ordered_by": "partition",
    "executor": NOT_SET,
    "timeout_s": NOT_SET,
    "retry": NOT_SET,
    "retry_ms_first": 200,
    "retry_ms_max": 30_000,
    "waiting_max": 256,
    "on_failure": NOT_SET,
    "transactional": False,
    "transactional_id": NOT_SET,
    "transaction_messages_max": 100,
    "transaction_ms_max": 100,
    "transaction_timeout_s": 30.0,
}

QUEUE: dict[str, Any] = {
    "lease_s": 30.0,
    "attempts_max": 5,
    "dead_letters": True,
    "iteration_records_max": 50,
    "fetch_bytes_max": 4 * MIB,
    "decoded_bytes_max": 256 * MIB,
    "request_timeout_s": 30.0,
    "filter": NOT_SET,
    "client_id": NOT_SET,
    "deserializer": NOT_SET,
    "interceptors": (),
}

QUEUE_HANDLER: dict[str, Any] = {
    "concurrency": 1,
    "executor": NOT_SET,
    "timeout_s": NOT_SET,
    "wait_ms_first": 1_000,
    "wait_ms_max": 60_000,
    "on_failure": NOT_SET,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "process": PROCESS,
    "topic": TOPIC,
    "client": CLIENT,
    "producer": PRODUCER,
    "consumer": CONSUMER,
    "table": TABLE,
    "group": GROUP,
    "handler": HANDLER,
    "queue": QUEUE,
    "queue handler": QUEUE_HANDLER,
}
"""By kind, as `test_every_setting.ALL` names them."""
