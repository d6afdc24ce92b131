"""Each of the 168 tests of librdkafka's suite (2.14.2), by name: how it is run against a broker, or why it is not.

A test of the suite is chosen by its number, the first four characters of its name, and by the scenario: with `default`
the broker makes topics on first use, with `noautocreate` it does not. Tests of one number and scenario run together.
tests/unit/kafka/test_librdkafka_suite.py holds docs/kafka.md to these lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PASS = """
0001_multiobj 0002_unkpart 0003_msgmaxsize 0005_order 0007_autotopic 0008_reqacks 0012_produce_consume 0013_null_msgs
0014_reconsume_191 0015_offsets_seek 0016_client_swname 0017_compression 0018_cgrp_term 0019_list_groups
0020_destroy_hang 0021_rkt_destroy 0022_consume_batch 0026_consume_pause 0029_assign_offset 0030_offset_commit
0031_get_offsets 0033_regex_subscribe 0034_offset_reset 0035_api_version 0036_partial_fetch 0038_performance
0039_event_dr 0040_io_event 0041_fetch_max_bytes 0042_many_topics 0044_partition_cnt 0045_subscribe_update
0045_resubscribe_with_regex 0045_subscribe_many_updates 0048_partitioner 0049_consume_conn_close 0050_subscribe_adds
0051_assign_adds 0052_msg_timestamps 0053_stats 0054_offset_time 0056_balanced_group_mt 0057_invalid_topic 0059_bsearch
0060_op_prio 0063_clusterid 0064_interceptors 0065_yield 0067_empty_topic 0068_produce_timeout 0069_consumer_add_parts
0070_null_empty 0073_headers 0075_retry 0076_produce_retry 0082_fetch_max_bytes 0083_cb_event 0084_destroy_flags
0085_headers 0086_purge_remote 0088_produce_metadata_timeout 0089_max_poll_interval 0090_idempotence
0091_max_poll_interval_timeout 0093_holb_consumer 0094_idempotence_msg_timeout 0099_commit_metadata
0102_static_group_rebalance 0110_batch_size 0112_assign_unknown_part 0113_cooperative_rebalance 0114_sticky_partitioning
0118_commit_rebalance 0122_buffer_cleaning_after_rebalance 0123_connections_max_idle 0125_immediate_flush
0127_fetch_queue_backoff 0129_fetch_aborted_msgs 0130_store_offsets 0132_strategy_ordering 0140_commit_metadata
"""
"""Run whole, against a broker with `security = open` that makes topics."""

WITHOUT_CREATION = """
0045_subscribe_update_topic_remove 0045_subscribe_update_non_exist_and_partchange 0107_topic_recreate
0111_delay_create_topics
"""
"""Run whole, against a broker that makes no topics on first use, and frees the name of a deleted one at once."""

LOGIN = """
0135_sasl_credentials
"""
"""Run whole, against a broker with `security = rules`, as an administrator that proves itself by PLAIN."""


@dataclass(frozen=True, slots=True)
class Part:
    """Subtests of a test, each a separate run, and why the others are not run.

    Attributes:
        subtests: for each run, a piece of what the subtests say: the name of their function, or their title. Without
            any, the test is run as it is, and leaves the others out itself.
        without: what the others need that there is not.
        login: they are run as those of `LOGIN`, not as those of `PASS`.
    """

    subtests: tuple[str, ...]
    without: str
    login: bool = False


PARTS = {
    "0011_produce_batch": Part(
        ("test_message_partitioner", "test_single_partition", "test_partitioner", "test_per_message_partition_flag"),
        "an item is not appended to `cleanup.policy`, which is by key or by age, never both",
    ),
    "0061_consumer_lag": Part(
        ("lag without transactions",),
        "a lag that counts the control records of transactions, of which there are none here",
    ),
    "0081_admin": Part(
        (
            "do_test_CreateTopics",
            "do_test_CreatePartitions",
            "do_test_CreateAcls",
            "do_test_DescribeAcls",
            "do_test_DeleteAcls",
            "do_test_DescribeConfigs:",
            "do_test_DescribeConfigs_groups",
            "do_test_ListConsumerGroups:",
            "do_test_DescribeConsumerGroups:",
            "do_test_DeleteGroups",
            "do_test_DeleteConsumerGroupOffsets",
            "do_test_ListOffsets",
        ),
        "settings of brokers, leader epochs of commits, rights of the caller, short salts, quick deletions",
        login=True,
    ),
    "0103_transactions": Part(
        (
            "do_test_misuse_txn",
            "do_test_basic_producer_txn",
            "do_test_fenced_txn",
            "do_test_fatal_idempo_error_without_kip360",
            "do_test_empty_txn",
        ),
        "the leader epoch of a commit is not kept, and records of an open transaction have no offset",
    ),
    "0109_auto_create_topics": Part(
        (),
        "ACLs for programs that prove nothing: with `security = rules` every program proves who it is",
        login=True,
    ),
    "0137_barrier_batch_consume": Part(
        (
            "do_test_consume_batch_with_seek",
            "do_test_consume_batch_store_offset",
            "resume_different_batch",
            "resume_same_batch",
            "EOF position",
        ),
        "offsets of control records, of which there are none here",
    ),
}

NOT_RUN = {
    "0028_long_topicnames": "a fault that its suite knows and leaves out",
    "0047_partial_buf_tmout": "a fault that its suite knows and leaves out",
    "0055_producer_latency": "latencies of a quick, quiet machine",
    "0077_compaction": "waits for Kafka's log cleaner, which settings of segments begin",
    "0092_mixed_msgver": "changes `message.format.version`, which Kafka 4 no longer has",
    "0097_ssl_verify": "needs certificates that it makes itself",
    "0098_consumer_txn": "begins with a program in Java that is not built here",
    "0101_fetch_from_follower": "needs a replica that may be read",
    "0115_producer_auth": "ACLs for programs that prove nothing, as 0109",
    "0119_consumer_auth": "ACLs for programs that prove nothing, as 0109",
    "0126_oauthbearer_oidc": "needs an identity provider that it starts itself",
    "0142_reauthentication": "needs the brokers' `connections.max.reauth.ms`; here each token says how long it lasts",
    "8000_idle": "runs until its user ends it",
}

LOCAL = """
0000_unittests 0004_conf 0006_symbols 0009_mock_cluster 0022_consume_batch_local 0025_timers 0031_get_offsets_mock
0033_regex_subscribe_local 0034_offset_reset_mock 0037_destroy_hang_local 0039_event_log 0039_event 0043_no_connection
0045_subscribe_update_mock 0045_subscribe_update_racks_mock 0046_rkt_cache 0053_stats_timing
0055_producer_latency_mock 0058_log 0062_stats_event 0066_plugins 0072_headers_ut 0074_producev 0076_produce_retry_mock
0078_c_from_cpp 0079_fork 0080_admin_ut 0084_destroy_flags_local 0086_purge_local 0095_all_brokers_down
0097_ssl_verify_local 0100_thread_interceptors 0102_static_group_rebalance_mock 0103_transactions_local
0104_fetch_from_follower_mock 0105_transactions_mock 0106_cgrp_sess_timeout 0113_cooperative_rebalance_local
0116_kafkaconsumer_close 0117_mock_errors 0120_asymmetric_subscription 0121_clusterid 0124_openssl_invalid_engine
0125_immediate_flush_mock 0128_sasl_callback_queue 0131_connect_timeout 0133_ssl_keys 0134_ssl_provider
0136_resolve_cb 0138_admin_mock 0139_offset_validation_mock 0143_exponential_backoff_mock 0144_idempotence_mock
0145_pause_resume_mock 0146_metadata_mock 0147_consumer_group_consumer_mock 0148_offset_fetch_commit_error_mock
0149_broker_same_host_port_mock 0150_telemetry_mock 0151_purge_brokers_mock 0152_rebootstrap_local 0153_memberid
8001_fetch_from_follower_mock_manual
"""
"""They test the client alone or against its own made-up cluster: no broker of ours could take part."""

BROKERS: dict[str, dict[str, Any]] = {
    "open": {},
    "without_creation": {"auto_create_topics": False, "topic_delete_grace_ms": 0},
    "login": {"security": "rules", "super_principals": "user:librdkafka"},
}
"""Settings of the brokers, each besides four partitions for a new topic."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process of the suite's test runner.

    Attributes:
        number: of the tests that it runs.
        broker: one of `BROKERS`.
        names: tests that have to pass in it. A test without a broker that has the same number runs, too.
        subtest: what the subtests that it runs say; empty: all.
    """

    number: str
    broker: str
    names: tuple[str, ...]
    subtest: str = ""

    @property
    def scenario(self) -> str:
        """What the suite calls such a broker."""
        return "noautocreate" if self.broker == "without_creation" else "default"

    def __str__(self) -> str:
        """Say its number first, by which single runs are chosen."""
        return "-".join(each for each in (self.number, self.broker, self.subtest) if each)


def _whole(text: str, broker: str) -> list[Run]:
    tests = text.split()
    numbers = dict.fromkeys(name[:4] for name in tests)
    return [Run(number, broker, tuple(name for name in tests if name.startswith(number))) for number in numbers]


def _parts(name: str, part: Part) -> list[Run]:
    broker = "login" if part.login else "open"
    return [Run(name[:4], broker, (name,), subtest) for subtest in part.subtests or ("",)]


RUNS = [
    *_whole(PASS, "open"),
    *_whole(WITHOUT_CREATION, "without_creation"),
    *_whole(LOGIN, "login"),
    *(run for name, part in PARTS.items() for run in _parts(name, part)),
]


def names() -> set[str]:
    """Return the names of all tests in these lists."""
    return {*PASS.split(), *WITHOUT_CREATION.split(), *LOGIN.split(), *PARTS, *NOT_RUN, *LOCAL.split()}
