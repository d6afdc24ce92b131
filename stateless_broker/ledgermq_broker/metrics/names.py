"""Name the metrics that `ledgermq top` reads, and those of transactions; their declarations share
these names.

Prometheus adds a suffix to the name of a counter and of a histogram: `total`, `buckets`.
"""

from __future__ import annotations

BROKER_INFO = "ledgermq_broker_info"
BUNDLE_TROUBLE = "ledgermq_bundle_trouble"
CARRIED_BYTES = "ledgermq_staged_carried_bytes"
COMPLETION_FAILURES = "ledgermq_transaction_completion_failures"
COMPLETION_SECONDS = "ledgermq_transaction_completion_seconds"
FETCHED_BYTES = "ledgermq_fetched_bytes"
FETCHED_RECORDS = "ledgermq_fetched_records"
FLUSH_SECONDS = "ledgermq_flush_seconds"
HEARTBEAT_AGE_SECONDS = "ledgermq_heartbeat_age_seconds"
OPEN_STREAMS = "ledgermq_open_streams"
OWNED_BUNDLES = "ledgermq_owned_bundles"
PARKED_PARTITIONS = "ledgermq_parked_partitions"
PRODUCED_BYTES = "ledgermq_produced_bytes"
PRODUCED_RECORDS = "ledgermq_produced_records"
READS = "ledgermq_reads"
READY = "ledgermq_ready"
STORE_DOLLARS_PER_HOUR = "ledgermq_store_dollars_per_hour"
STORE_REQUESTS = "ledgermq_store_requests"
TRANSACTIONS_ENDED = "ledgermq_transactions_ended"


def total(counter: str) -> str:
    """Return the name of a counter's series."""
    return f"{counter}_total"


def buckets(histogram: str) -> str:
    """Return the name of the series of a histogram's buckets."""
    return f"{histogram}_bucket"
