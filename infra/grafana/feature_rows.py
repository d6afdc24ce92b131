"""Rows of the dashboard about groups, transactions, timed messages, queues and exclusive producers."""

from __future__ import annotations

from infra.grafana.panels import Panel, metric, or_zero, quantiles, rate, top, total

RETRY_LAG = metric("group_lag_records", topic='=~".+[.]retry"')

FEATURES: dict[str, tuple[Panel, ...]] = {
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
}
