"""Bounds, waits and tables that the user pages promise: each row holds the sentence of the page and the
product's value to one literal figure.

Defaults of settings are in `promised_defaults`. A figure that a behaviour shows has its test there, too; this
table keeps constant and page from drifting together, because docs/settings.md and docs/api.md are made from the
code.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ledgermq.client import finding, requests
from ledgermq.client.client import Client
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.fetching import lanes
from ledgermq.client.front import consumers
from ledgermq.client.groups import retry_topics
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.handler import handler_settings
from ledgermq.client.groups.retries import refusals, retry_creation
from ledgermq.client.messages.due import HORIZON
from ledgermq.client.producing.arrow import rows as arrow_rows
from ledgermq.client.producing.dispatching import dispatcher
from ledgermq.client.producing.partition import resend_queue
from ledgermq.client.producing.routing import topic_queues
from ledgermq.client.producing.spilling import spill_file
from ledgermq.client.queues import message as queue_message
from ledgermq.client.queues import queue
from ledgermq.client.settings.spill import Spill
from ledgermq.client.transactions import half_messages
from ledgermq.client.transactions.two_phase import xid
from ledgermq.filters import columns, grammar
from ledgermq.filters import filter as filters
from ledgermq.protocol import levels
from ledgermq.protocol.naming import message_ids
from ledgermq_broker.access import freshness
from ledgermq_broker.access.identity import jwt
from ledgermq_broker.access.wrappers import throttled
from ledgermq_broker.backlogs import quotas as backlogs
from ledgermq_broker.exclusive.state.limits import HolderLimits
from ledgermq_broker.filter_functions import processes
from ledgermq_broker.metrics import topic_totals
from ledgermq_broker.metrics.features import quotas as quota_metrics
from ledgermq_broker.paths import find_path
from ledgermq_broker.queues.state import filters as queue_filters
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_ledger import cluster
from ledgermq_ledger.garbage import heartbeats, staged_rows
from ledgermq_ledger.keyed import plan as keyed_plan
from ledgermq_ledger.object_store.s3 import signed_wire as s3_signed
from ledgermq_ledger.rounds import service as compaction_service
from ledgermq_ledger.topics import settings as topic_settings
from ledgermq_offsets.limits import GroupLimits

DOCS = Path(__file__).resolve().parents[2] / "docs"
MIB, GIB = 1_048_576, 1_073_741_824
HOUR_MS, DAY_MS, WEEK_S = 3_600_000, 86_400_000, 604_800


def default_of(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


class Promise(NamedTuple):
    """`says`: words of the page, line breaks as spaces. `value`: of the product. `figure`: what the words mean."""

    page: str
    says: str
    value: Any
    figure: Any


TX, TIMED, SHARES, GROUPS = TransactionLimits(), TimerLimits(), ShareLimits(), GroupLimits()
BROKER = BrokerSettings()
PROMISES = (
    Promise("access.md", "10,000 for a partition of `__consumer_offsets`", GROUPS.groups_max, 10_000),
    Promise("access.md", "Clocks may differ by a minute", jwt.SKEW_S, 60),
    Promise("access.md", "every 45 seconds, and when a token names", jwt.FETCHED_AGAIN_AFTER_S, 45.0),
    Promise("access.md", "at most every 30 seconds; never in a call", jwt.ASKED_AGAIN_AFTER_S, 30.0),
    Promise("access.md", "known keys count for a day", jwt.KEPT_S, 86_400.0),
    Promise("access.md", "that does not answer, it takes five seconds", freshness.LEASE_S, 5.0),
    Promise("access.md", "a single fetch waits two seconds at most", throttled.HELD_S_MAX, 2.0),
    Promise("access.md", "for the first 100 principals by name", quota_metrics.PRINCIPALS_MAX, 100),
    Promise("arrow.md", "Up to 65,536 rows or 16 MiB are queued at once", arrow_rows.PIECE_ROWS_MAX, 65_536),
    Promise("arrow.md", "Up to 65,536 rows or 16 MiB are queued at once", arrow_rows.PIECE_BYTES_MAX, 16 * MIB),
    Promise("deduplication.md", "`id` is text, or 1 to 256 bytes", message_ids.ID_BYTES_MAX, 256),
    Promise("deduplication.md", "the longest window is seven days", topic_settings.DEDUP_WINDOW_MS_MAX, 1000 * WEEK_S),
    Promise(
        "delayed.md", "| time ahead | 366 days |", (HORIZON.days, HORIZON.seconds, TIMED.horizon_days), (366, 0, 366)
    ),
    Promise("delayed.md", "was due more than an hour ago", TIMED.recall_kept_ms, HOUR_MS),
    Promise("delayed.md", "| bytes that wait in a bundle | 64 GiB;", TIMED.waiting_bytes_max, 64 * GIB),
    Promise("delayed.md", "an index of 256 MiB in the memory of the owner", TIMED.index_bytes, 256 * MIB),
    Promise("delayed.md", "or came in the last minute", TIMED.flush_after_ms, 60_000),
    Promise("delayed.md", "| recalled messages that wait in a bundle | 100,000,", TIMED.recalls_max, 100_000),
    Promise("exclusive-producers.md", "**The lease is 15 seconds.**", HolderLimits().lease_ms, 15_000),
    Promise("faq.md", "A cluster has 5 bundles by default and at most 1,000", BROKER.bundles, 5),
    Promise("faq.md", "A cluster has 5 bundles by default and at most 1,000", cluster.BUNDLES_MAX, 1_000),
    Promise("filters.md", "A filter has at most 4,096 characters", filters.CHARS_MAX, 4_096),
    Promise("filters.md", "32 levels of nesting", grammar.DEPTH_MAX, 32),
    Promise("filters.md", "and 256 characters in a pattern", grammar.PATTERN_CHARS_MAX, 256),
    Promise("filters.md", "and texts of more than 64 characters", columns.NUMBER_CHARS_MAX, 64),
    Promise("filters.md", "or has more than 64 KiB, can only be tested", columns.VALUE_BYTES_MAX, 65_536),
    Promise("filters.md", "Up to 64 batches of a partition are open at once", topic_queues.TAGS_OPEN_MAX, 64),
    Promise("filters.md", "is judged once more by a new process; the second time", processes.OVERTIMES_MAX, 2),
    Promise("filters.md", "takes longer than `filter_message_ms_max` (1 s)", BROKER.filter_message_ms_max, 1_000),
    Promise(
        "from-kafka.md",
        "| `max_poll_records` | `max_records` of `fetch` | 500",
        default_of(Consumer.fetch, "max_records"),
        500,
    ),
    Promise(
        "from-kafka.md",
        "| `max_poll_records` | `max_records` of `fetch` | 500",
        default_of(GroupConsumer.fetch, "max_records"),
        500,
    ),
    Promise(
        "groups.md",
        "(45 s). During that time",
        (GROUPS.session_timeout_ms, BROKER.group_session_timeout_ms),
        (45_000, 45_000),
    ),
    Promise(
        "groups.md",
        "`offsets_retention_ms` (a week)",
        (GROUPS.retention_ms, BROKER.offsets_retention_ms),
        (604_800_000, 604_800_000),
    ),
    Promise(
        "groups.md",
        "`retry_ms_first` (200) to `retry_ms_max` (30,000)",
        handler_settings("t", "g", {}).policy.wait_s(1, random.Random(1)) <= 0.2,
        True,
    ),
    Promise("half-messages.md", "| first check | after 6 s |", TX.check_after_ms, 6_000),
    Promise(
        "half-messages.md",
        "| further checks | each 30 s, at most 15 |",
        (TX.check_every_ms, TX.checks_max),
        (30_000, 15),
    ),
    Promise(
        "half-messages.md", "After 24 hours without any program the message is UNRESOLVED", TX.unchecked_ms_max, DAY_MS
    ),
    Promise("half-messages.md", "| 2 minutes; a `commit` that is repeated later", TX.half_expiry_ms, 120_000),
    Promise(
        "half-messages.md",
        "4 kB smaller than the largest record there can be (33,488,896 bytes)",
        half_messages.BYTES_MAX,
        33_488_896 - 4_096,
    ),
    Promise("half-messages.md", "a name of at most 238 characters", half_messages.GROUP_CHARS_MAX, 238),
    Promise(
        "half-messages.md",
        "| `concurrency` of `client.half_messages` | 16:",
        default_of(Client.half_messages, "concurrency"),
        16,
    ),
    Promise("keyed-topics.md", "A round takes at most 8 million dirty records", keyed_plan.DIRTY_RECORDS_MAX, 8 * MIB),
    Promise("look-up.md", "| `max` | stop after so many messages; 64 by default |", finding.MAX, 64),
    Promise(
        "look-up.md", "60 seconds, and 1 GiB that brokers read", (finding.TIMEOUT_S, finding.BYTES_MAX), (60.0, GIB)
    ),
    Promise(
        "look-up.md",
        "A broker serves two look-ups at a time, each for about two seconds and 64 MiB",
        (find_path.SEARCHES_AT_ONCE, find_path.SEARCH_S, find_path.READ_BYTES_MAX),
        (2, 2.0, 64 * MIB),
    ),
    Promise("operations.md", "all but the first 100 are summed up", topic_totals.TOPICS_MAX, 100),
    Promise("priority.md", "A topic has at most ten.", levels.LEVELS_MAX, 10),
    Promise("priority.md", "It waits for at most 64 messages of each other level", lanes.PIECE_RECORDS, 64),
    Promise("python.md", "at most `bytes_max` (1 GiB) plus the batch", consumers.READ_BYTES_MAX, GIB),
    Promise(
        "python.md",
        "`records_max` (1,000,000) and `bytes_max` (1 GiB)",
        (Spill("x").records_max, Spill("x").bytes_max),
        (1_000_000, GIB),
    ),
    Promise("python.md", "8 MiB beside the file (`orders.spill-reserve`)", spill_file.RESERVE_BYTES, 8 * MIB),
    Promise("python.md", "again at least every 30 seconds", resend_queue.REFUSED_AGAIN_MS, 30_000),
    Promise("settings.md", "a busy one every 5 ms at most", dispatcher.LINGER_S, 0.005),
    Promise("queues.md", "At most 12 hours", (queue_message.SECONDS_MAX, SHARES.delay_ms_max), (43_200, 43_200_000)),
    Promise("queues.md", "A lease lasts `lease_s` (30 seconds,", SHARES.lease_ms, 30_000),
    Promise("queues.md", "for longer than a quarter of their lease are returned", queue.HELD_PART, 4),
    Promise("queues.md", "asked for nothing for 15 seconds", queue_filters.FILTER_S, 15.0),
    Promise("queues.md", "in a partition spans at most 2,000 offsets", SHARES.window_max, 2_000),
    Promise(
        "requests.md", "The request expires after `timeout` (at most 1800 seconds)", requests.TIMEOUT_S_MAX, 1_800.0
    ),
    Promise(
        "requests.md",
        "8 partitions and a retention of one hour",
        (requests.REPLIES_PARTITIONS, requests.REPLIES_SETTINGS),
        (8, {"retention.ms": HOUR_MS}),
    ),
    Promise(
        "retention.md",
        "at the earliest an hour (`parquet_min_age_ms`)",
        cluster.ClusterDefaults().parquet_min_age_ms,
        HOUR_MS,
    ),
    Promise("retention.md", "down to nine tenths of the quota", backlogs.EVICTED_SHARE, 0.1),
    Promise("retention.md", "Owners check every five seconds", backlogs.CHECK_S, 5.0),
    Promise(
        "retention.md", "the epoch is published, or undecided for seven days", staged_rows.STAGED_AGE_MS, 1000 * WEEK_S
    ),
    Promise("retention.md", "of a broker that was silent for an hour", heartbeats.AGE_MS, HOUR_MS),
    Promise("retention.md", "the compaction service once in 60 runs", compaction_service.GARBAGE_EVERY_RUNS, 60),
    Promise("retries.md", "If others behind it are finished for 30 s", refusals.CARRY_AFTER_S, 30.0),
    Promise("retries.md", "the retry topic allows 64 KiB more", retry_creation.HEADERS_BYTES_MAX, 65_536),
    Promise("retries.md", "the last error, at most 1,024 bytes", retry_topics.ERROR_BYTES_MAX, 1_024),
    Promise("security.md", "for 15 minutes. They are on by default for local files", s3_signed.URL_LIFE_S, 900),
    Promise("serializers.md", "After `timeout` seconds (30;", default_of(Consumer.drain, "timeout"), 30.0),
    Promise("serializers.md", "After `timeout` seconds (30;", default_of(GroupConsumer.drain, "timeout"), 30.0),
    Promise(
        "transactions.md",
        "| 1 min, at most 15 min | the cluster aborts it |",
        (TX.timeout_ms, TX.timeout_ms_max),
        (60_000, 900_000),
    ),
    Promise("transactions.md", "| batches of a transaction in one bundle | 70,000 |", TX.batches_max, 70_000),
    Promise("transactions.md", "| bytes of a transaction in one bundle | 1 GiB |", TX.bytes_max, GIB),
    Promise("transactions.md", "| open transactions in one bundle | 10,000 |", TX.open_max, 10_000),
    Promise("transactions.md", "| staged batches in one bundle | 140,000 |", TX.staged_batches_max, 140_000),
    Promise("transactions.md", "| staged bytes in one bundle | 8 GiB |", TX.staged_bytes_max, 8 * GIB),
    Promise("transactions.md", "| transactional ids of one coordinator | 100,000 |", TX.ids_max, 100_000),
    Promise("transactions.md", "| time without use of a transactional id | 7 days |", TX.expiry_ms, 604_800_000),
    Promise("transactions.md", "staged for more than five minutes", TX.carry_after_ms, 300_000),
    Promise("two-phase-commit.md", "at most 64 bytes each", xid.PART_BYTES_MAX, 64),
)


BY_STORE = {"file:///r": (0.5, 0.0, True), "hdfs://n/r": (1.0, 0.1, False), "s3://b/r": (3.0, 0.1, False)}
"""Heartbeats, flush spacing in seconds, and direct reads, where the settings are not set (docs/settings.md)."""


@pytest.mark.parametrize(("root", "figures"), BY_STORE.items())
def test_what_is_not_set_depends_on_the_store_as_promised(root: str, figures: tuple[float, float, bool]) -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert "Not set: 500 for files, 1000 for HDFS, 3000 for S3." in text
    assert "Not set: 0 for files, 100 for S3 and HDFS." in text
    assert "not set: true for files, false for other stores." in text
    assert (BROKER.heartbeat_interval_s(root), BROKER.flush_spacing_s(root), BROKER.shares_locations(root)) == figures


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.page}: {promise.says}")
def test_a_page_and_the_product_have_one_figure(promise: Promise) -> None:
    text = " ".join((DOCS / promise.page).read_text(encoding="utf-8").split())
    assert promise.says.lower() in text.lower()
    assert promise.value == promise.figure
