"""Rows of the dashboard about brokers, their store and their processes."""

from __future__ import annotations

from infra.grafana.panels import HERE, Panel, metric, or_zero, quantile, quantiles, rate, stat, top, total

BROKERS: dict[str, tuple[Panel, ...]] = {
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
        Panel(
            "Dollars per hour, for requests, by topic",
            ((f"3600 * {rate('store_topic_dollars_total', 'topic')}", "{{topic}}"),),
            "currencyUSD",
            text="A segment's PUT is paid by the topics in it, by their bytes; (cluster): requests for no topic.",
        ),
        Panel(
            "Bytes of clients by rack",
            ((rate("client_bytes_total", "direction, rack"), "{{direction}}, {{rack}}"),),
            "Bps",
            text="What is in another rack crosses availability zones, if racks are named for them.",
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
                (rate("moves_to_rack_total", "job"), "moves to the rack of the bytes"),
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
        Panel("Small files merged", ((rate("merged_files_total"), "{{instance}}"),), "cps"),
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
        Panel(
            "Automatic cuts",
            (
                (or_zero(f"max({metric('automatic_cut_age_seconds')})"), "age of the newest, s"),
                (or_zero(f"max({metric('automatic_cuts')})"), "there are"),
                (f"sum(increase({metric('automatic_cuts_failed_total')}[$__rate_interval]))", "failed"),
            ),
        ),
    ),
}

PROCESSES: dict[str, tuple[Panel, ...]] = {
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
