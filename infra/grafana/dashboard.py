"""Define the Grafana dashboard of a cluster. `make pages` writes it to ledgermq.json; a test holds
both, and every metric name, to the code.

Rows answer an operator's questions in order: health, throughput, time until durable, the store and
its cost, owners of bundles, compaction, processes. Every query gives an answer on an idle cluster
too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

HERE = '{job=~"$job", instance=~"$instance"}'
PER_ROW, WIDTH, HEIGHT, STAT_HEIGHT = 3, 24, 8, 4
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m"}
"""Values of the variables for queries that run without Grafana."""


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: (expression, legend). Units are Grafana's. `empty`: what the panel shows while its queries have no
    data, because zero would be wrong; all other queries have a value on an idle cluster, too.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    text: str = ""
    empty: str = ""


def metric(name: str, **labels: str) -> str:
    """Return a selector for the chosen brokers."""
    more = "".join(f", {label}{value}" for label, value in labels.items())
    return f"ledgermq_{name}" + HERE[:-1] + more + "}"


def rate(name: str, by: str = "instance", **labels: str) -> str:
    return f"sum by ({by}) (rate({metric(name, **labels)}[$__rate_interval]))"


def total(name: str, **labels: str) -> str:
    return or_zero(f"sum({metric(name, **labels)})")


def quantile(q: float, name: str, by: str = "") -> str:
    labels = "le" + (f", {by}" if by else "")
    return f"histogram_quantile({q:g}, sum by ({labels}) (rate({metric(name + '_bucket')}[$__rate_interval])))"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((quantile(q, name), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99))


def or_zero(expression: str) -> str:
    """Use this for series that begin with the first event of their kind. Zero is shown only while there are none."""
    return f"{expression} or on() vector(0)"


def top(expression: str) -> str:
    return f"topk(10, {expression})"


def stat(title: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, ((expression, ""),), unit, "stat")


RETRY_LAG = metric("group_lag_records", topic='=~".+[.]retry"')

ROWS: dict[str, tuple[Panel, ...]] = {
    "Is it well?": (
        stat("Brokers ready", or_zero(f"sum({metric('ready')} and on (job, instance) {metric('broker_info')})")),
        stat("Bundles owned", total("owned_bundles")),
        stat("Bundles in trouble", total("bundle_trouble")),
        stat("Partitions parked", total("parked_partitions")),
        stat("Group partitions refused", total("refused_group_partitions")),
        stat("In", f"sum({rate('produced_bytes_total')})", "Bps"),
        stat("Store, dollars per hour", total("store_dollars_per_hour"), "currencyUSD"),
    ),
    "Traffic": (
        Panel("Records in, by topic", ((top(rate("produced_records_total", "topic")), "{{topic}}"),), "cps"),
        Panel("Bytes in, by topic", ((top(rate("produced_bytes_total", "topic")), "{{topic}}"),), "Bps"),
        Panel("Bytes out, by topic", ((top(rate("fetched_bytes_total", "topic")), "{{topic}}"),), "Bps"),
        Panel(
            "Bytes left out by filters",
            ((top(rate("filtered_bytes_total", "topic")), "{{topic}}"),),
            "Bps",
        ),
        Panel(
            "Records judged by filter functions",
            (
                (or_zero(top(rate("filter_function_records_total", "function, outcome"))), "{{function}}, {{outcome}}"),
                (or_zero(top(rate("filter_function_stops_total", "function"))), "{{function}} was ended"),
            ),
            "cps",
        ),
        Panel("Calls, by how they ended", ((or_zero(rate("calls_total", "code")), "{{code}}"),), "cps"),
        Panel(
            "Unary calls, 99th percentile", ((or_zero(quantile(0.99, "call_seconds", "method")), "{{method}}"),), "s"
        ),
        Panel("Open streams", ((f"sum by (method) ({metric('open_streams')})", "{{method}}"),)),
        Panel(
            "Refused for a quota",
            ((or_zero(top(rate("quota_refusals_total", "principal, limit"))), "{{principal}}, {{limit}}"),),
            "cps",
        ),
        Panel(
            "Answers held back for a quota",
            (
                (or_zero(top(rate("quota_answers_held_total", "principal"))), "{{principal}}"),
                (or_zero(top(rate("quota_held_seconds_total", "principal"))), "seconds, {{principal}}"),
            ),
        ),
    ),
    "Durability": (
        Panel("Put to durable", quantiles("flush_seconds"), "s"),
        Panel("Wait for group commit", quantiles("group_commit_wait_seconds"), "s"),
        Panel(
            "Producers asked to come back",
            (
                (rate("produce_refused_total"), "{{instance}}"),
                (rate("produce_refused_by_wait_total"), "{{instance}}, waited too long"),
            ),
            "cps",
        ),
        Panel(
            "Ids of messages",
            (
                (top(f"max by (bundle) ({metric('message_ids')})"), "remembered, bundle {{bundle}}"),
                (rate("duplicate_records_total"), "{{instance}}: duplicates a second"),
            ),
        ),
        Panel("Segment size", quantiles("flush_bytes"), "bytes"),
        Panel("Segments put", ((rate("flush_bytes_count"), "{{instance}}"),), "cps"),
        Panel(
            "Admitted and not yet durable",
            ((metric("produce_memory_bytes"), "{{instance}}"), (f"max({metric('produce_memory_bytes_max')})", "bound")),
            "bytes",
        ),
    ),
    "Object store": (
        Panel("Requests", ((rate("store_requests_total", "operation"), "{{operation}}"),), "reqps"),
        Panel(
            "Requests that did not go well",
            ((or_zero(rate("store_requests_total", "outcome", outcome='!="OK"')), "{{outcome}}"),),
            "reqps",
        ),
        Panel(
            "Requests, 99th percentile", ((quantile(0.99, "store_request_seconds", "operation"), "{{operation}}"),), "s"
        ),
        Panel(
            "Damaged objects of bundle 0, in an hour",
            ((f"sum by (outcome) (increase({metric('damaged_objects_total')}[1h]))", "{{outcome}}"),),
        ),
        Panel("Bytes put", ((rate("store_sent_bytes_total"), "{{instance}}"),), "Bps"),
        Panel("Bytes read", ((rate("store_received_bytes_total"), "{{instance}}"),), "Bps"),
        Panel(
            "Dollars per hour, for requests",
            ((f"3600 * {rate('store_dollars_total')}", "{{instance}}"),),
            "currencyUSD",
            text="Counted requests by the prices that are set; storage and traffic are not in it.",
        ),
    ),
    "Ownership": (
        Panel("Bundles owned", ((metric("owned_bundles"), "{{instance}}"),)),
        Panel("Drained by an operator", ((metric("draining"), "{{instance}}"),)),
        Panel("Claims", ((rate("claims_total", "outcome"), "{{outcome}}"),), "cps"),
        Panel(
            "Terms ended",
            (
                (rate("terms_ended_total", "why"), "{{why}}"),
                (rate("takeovers_total", "job"), "takeovers"),
                (rate("moves_for_load_total", "job"), "moves for load"),
            ),
            "cps",
        ),
        Panel("Partitions on their way to a bundle", ((metric("moving_partitions"), "bundle {{bundle}}"),)),
        Panel("Taking a bundle over", quantiles("claim_seconds"), "s"),
        Panel("Brokers alive, as each sees it", ((metric("live_brokers"), "{{instance}}"),)),
        Panel("Age of the last heartbeat", ((metric("heartbeat_age_seconds"), "{{instance}}"),), "s"),
    ),
    "Reads and Parquet compaction": (
        Panel("Reads, by where they were found", ((rate("reads_total", "source"), "{{source}}"),), "cps"),
        Panel("Bytes read for consumers", ((rate("read_bytes_total", "source"), "{{source}}"),), "Bps"),
        Panel("Cache", ((metric("cache_bytes"), "{{instance}}"),), "bytes"),
        Panel(
            "Answers on their way to consumers",
            (
                (f"sum by (reader) ({metric('answer_memory_bytes')})", "{{reader}} readers"),
                (f"sum({metric('answer_memory_bytes_in_line')})", "not taken by the connection yet"),
                (f"max({metric('answer_memory_bytes_max')})", "bound of one broker"),
            ),
            "bytes",
        ),
        Panel(
            "Readers that wait for memory",
            (
                (metric("waiting_readers"), "{{instance}}"),
                (rate("reader_connections_broken_total"), "{{instance}}: connections broken a second"),
            ),
        ),
        Panel(
            "Oldest record that is not in Parquet",
            ((f"max by (bundle) ({metric('compaction_lag_seconds')})", "bundle {{bundle}}"),),
            "s",
        ),
        Panel(
            "Bytes that are not in Parquet",
            ((f"sum by (bundle) ({metric('compaction_backlog_bytes')})", "bundle {{bundle}}"),),
            "bytes",
        ),
        Panel(
            "Segments that are not trimmed",
            ((f"max by (bundle) ({metric('untrimmed_segments')})", "bundle {{bundle}}"),),
        ),
        Panel("Records compacted", ((rate("compacted_records_total"), "{{instance}}"),), "cps"),
        Panel(
            "Rounds in brokers",
            (
                (metric("background_rounds_under_way"), "{{instance}}"),
                (metric("background_rounds_allowed"), "{{instance}}: allowed"),
            ),
        ),
        Panel("Background work that failed", ((rate("upkeep_failures_total", "work"), "{{work}}"),), "cps"),
        Panel("Checkpoints", ((rate("checkpoints_total"), "{{instance}}"),), "cps"),
    ),
    "Groups": (
        Panel(
            "Lag, by group and topic",
            ((or_zero(top(f"max by (group, topic) ({metric('group_lag_records')})")), "{{group}} {{topic}}"),),
        ),
        Panel(
            "Backlog of topics with a quota",
            (
                (or_zero(top(f"max by (topic) ({metric('backlog_bytes')})")), "{{topic}}"),
                (
                    or_zero(top(f"sum by (topic) ({metric('backlog_partitions_above_quota')})")),
                    "partitions above, {{topic}}",
                ),
            ),
        ),
        Panel(
            "Refused or deleted for a backlog quota",
            (
                (or_zero(top(rate("backlog_refusals_total", "topic, policy"))), "{{topic}}, {{policy}}"),
                (or_zero(top(rate("backlog_evicted_records_total", "topic"))), "records deleted, {{topic}}"),
            ),
            "cps",
        ),
        Panel("Members", ((or_zero(top(f"max by (group) ({metric('group_members')})")), "{{group}}"),)),
        Panel(
            "Offsets that do not move",
            ((or_zero(top(f"max by (group, topic) ({metric('group_stuck_seconds')})")), "{{group}} {{topic}}"),),
            "s",
            text="Records are there, and the group does not finish them. In a retry topic this is also the wait.",
        ),
        Panel(
            "Failed messages: moves to the retry topic",
            ((or_zero(f"max by (group) (rate({metric('group_retries_total')}[$__rate_interval]))"), "{{group}}"),),
            "cps",
        ),
        Panel(
            "Failed messages: waiting or due in the retry topic",
            ((or_zero(top(f"max by (group) ({RETRY_LAG})")), "{{group}}"),),
        ),
        Panel(
            "Dead letters, all that ever came",
            ((or_zero(top(f"max by (group) ({metric('group_dead_letters_total')})")), "{{group}}"),),
        ),
    ),
    "Transactions": (
        Panel("Decisions", ((rate("transactions_ended_total", "outcome"), "{{outcome}}"),), "cps"),
        Panel(
            "Aborts, by cause",
            ((rate("transactions_ended_total", "cause", outcome='=~"aborted.*"'), "{{cause}}"),),
            "cps",
            text="asked: the outcome of an undecided one was asked for. fenced: a new epoch of the id had begun.",
        ),
        Panel("From decision to visibility, in each bundle", quantiles("transaction_completion_seconds"), "s"),
        Panel(
            "Open transactions",
            (
                (or_zero(f"sum({metric('staged_transactions')})"), "with staged batches, in bundles"),
                (or_zero(f"sum({metric('prepared_transactions')})"), "prepared"),
                (or_zero(f"sum({metric('incomplete_transactions')})"), "decided, not complete"),
            ),
            text="A transaction counts in each bundle that holds something of it.",
        ),
        Panel(
            "Age of the oldest",
            (
                (or_zero(top(f"max by (bundle) ({metric('staged_seconds')})")), "staged in bundle {{bundle}}"),
                (or_zero(f"max({metric('incomplete_transactions_seconds')})"), "decided, not complete"),
            ),
            "s",
        ),
        Panel("Staged bytes", ((or_zero(top(f"max by (bundle) ({metric('staged_bytes')})")), "{{bundle}}"),), "bytes"),
        Panel("Staged batches", ((or_zero(top(f"max by (bundle) ({metric('staged_batches')})")), "{{bundle}}"),)),
        Panel(
            "Completions that failed and are repeated",
            ((or_zero(rate("transaction_completion_failures_total", "code")), "{{code}}"),),
            "cps",
        ),
        Panel("Staged bytes carried forward", ((rate("staged_carried_bytes_total"), "{{instance}}"),), "Bps"),
        Panel("Transactional ids", ((total("transactional_ids"), "ids"),)),
        Panel(
            "Partitions of __transactions refused",
            ((or_zero(f"sum by (code) ({metric('refused_transaction_partitions')})"), "{{code}}"),),
        ),
    ),
    "Timed messages": (
        Panel(
            "Messages",
            (
                (total("timed_messages"), "wait"),
                (total("timed_messages_in_memory"), "wait in memory"),
            ),
        ),
        Panel(
            "Messages a second",
            (
                (rate("timed_messages_taken_in_total"), "taken in, {{instance}}"),
                (rate("timed_messages_delivered_total"), "delivered, {{instance}}"),
                (rate("timed_messages_moved_total"), "moved, {{instance}}"),
            ),
            "cps",
        ),
        Panel(
            "Late",
            (
                (or_zero(top(f"max by (bundle) ({metric('timed_late_seconds')})")), "newest delivery, {{bundle}}"),
                (or_zero(top(f"max by (bundle) ({metric('timed_overdue_seconds')})")), "not delivered, {{bundle}}"),
            ),
            "s",
        ),
        Panel(
            "Bytes a second",
            (
                (rate("timed_taken_in_bytes_total"), "taken in, {{instance}}"),
                (rate("timed_delivered_bytes_total"), "delivered, {{instance}}"),
                (rate("timed_moved_bytes_total"), "moved, {{instance}}"),
            ),
            "Bps",
        ),
        Panel(
            "Bytes that wait",
            ((total("timed_waiting_bytes"), "all"), (total("timed_body_bytes"), "in memory")),
            "bytes",
        ),
        Panel("Recalls", ((rate("timed_recalls_total", "outcome"), "{{outcome}}"),), "cps"),
        Panel("Dropped", ((rate("timed_messages_dropped_total", "why"), "{{why}}"),), "cps"),
        Panel(
            "Ranges and recalls",
            ((total("timed_ranges"), "ranges"), (total("timed_recalls_remembered"), "recalls remembered")),
        ),
        Panel(
            "Work that an error delays",
            ((or_zero(top(f"max by (bundle) ({metric('timed_troubles')})")), "{{bundle}}"),),
        ),
        Panel(
            "Partitions of __timers refused",
            ((or_zero(f"sum by (code) ({metric('refused_timer_partitions')})"), "{{code}}"),),
        ),
    ),
    "Queues": (
        Panel(
            "Messages that are not finished",
            (
                (or_zero(f"sum by (group, topic) ({metric('queue_backlog_messages')})"), "{{group}}, {{topic}}"),
                (total("queue_leased_messages"), "leased"),
                (total("queue_waiting_messages"), "wait for a time"),
            ),
        ),
        Panel(
            "Age of the oldest message that is not finished",
            ((or_zero(top(f"max by (group, topic) ({metric('queue_oldest_seconds')})")), "{{group}}, {{topic}}"),),
            "s",
        ),
        Panel(
            "Leased a second",
            (
                (or_zero(rate("queue_messages_leased_total", "group")), "{{group}}"),
                (or_zero(rate("queue_messages_leased_again_total", "group")), "again, {{group}}"),
            ),
            "cps",
        ),
        Panel("Answered a second", ((or_zero(rate("queue_messages_answered_total", "word")), "{{word}}"),), "cps"),
        Panel(
            "Failed for the last time",
            ((or_zero(rate("queue_messages_answered_total", "group", word='="reject"')), "{{group}}"),),
            "cps",
            text="Messages that members rejected: dead letters, or dropped where the queue has none.",
        ),
        Panel(
            "Leases that ended, answers that came too late",
            (
                (or_zero(rate("queue_leases_expired_total", "group")), "ended, {{group}}"),
                (or_zero(rate("queue_messages_answered_late_total", "word")), "too late, {{word}}"),
            ),
            "cps",
        ),
        Panel(
            "Partitions of __shares refused",
            ((or_zero(f"sum by (code) ({metric('refused_queue_partitions')})"), "{{code}}"),),
        ),
    ),
    "Exclusive producers": (
        Panel("Partitions with an exclusive producer", ((f"sum({metric('exclusive_partitions')})", "partitions"),)),
        Panel("Changes", ((rate("exclusive_producer_changes_total", "change"), "{{change}}"),), "cps"),
        Panel("Refused batches", ((rate("exclusive_refused_batches_total", "code"), "{{code}}"),), "cps"),
        Panel(
            "Partitions of __holders refused",
            ((or_zero(f"sum by (code) ({metric('refused_exclusive_partitions')})"), "{{code}}"),),
        ),
    ),
    "Processes": (
        Panel("CPU", ((f"rate(process_cpu_seconds_total{HERE}[$__rate_interval])", "{{instance}}"),), "percentunit"),
        Panel("Memory", ((f"process_resident_memory_bytes{HERE}", "{{instance}}"),), "bytes"),
        Panel("Lines logged, warning and above", ((rate("log_lines_total", "level"), "{{level}}"),), "cps"),
        Panel(
            "Time until the TLS certificate expires",
            ((f"({metric('tls_certificate_expires_seconds')} > 0) - time()", "{{instance}}"),),
            "s",
            empty="no process has a certificate",
        ),
        Panel("Changes of TLS files", ((rate("tls_reloads_total", "outcome"), "{{outcome}}"),), "cps"),
    ),
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "ledgermq",
        "title": "LedgerMQ",
        "tags": ["ledgermq"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                _source(),
                _variable("job", "ledgermq_ready"),
                _variable("instance", 'ledgermq_ready{job=~"$job"}'),
            ]
        },
        "panels": list(_panels()),
    }


def queries(*, used: bool = True) -> list[str]:
    """Return every query, with a pattern that matches everything in place of Grafana's variables. `used`: False
    leaves out those that have no data while what they show is not in use.
    """
    found = []
    for panels in ROWS.values():
        shown = [panel for panel in panels if used or not panel.empty]
        for expression in (expression for panel in shown for expression, _ in panel.queries):
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def _panels() -> Iterator[dict[str, Any]]:
    number, top_edge = 1, 0
    for title, panels in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, top_edge, WIDTH, 1),
        }
        number, top_edge = number + 1, top_edge + 1
        per_row = 6 if panels[0].kind == "stat" else PER_ROW
        height, width = (STAT_HEIGHT if panels[0].kind == "stat" else HEIGHT), WIDTH // per_row
        for place, panel in enumerate(panels):
            yield _panel(
                number, panel, _place(width * (place % per_row), top_edge + height * (place // per_row), width, height)
            )
            number += 1
        top_edge += height * -(-len(panels) // per_row)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": source}
        for at, (expression, legend) in enumerate(panel.queries)
    ]
    defaults = {"unit": panel.unit, "min": 0} | ({"noValue": panel.empty} if panel.empty else {})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "gridPos": place,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str, series: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values({series}, {label})", "refId": label},
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
