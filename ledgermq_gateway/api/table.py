"""The table of routes: the only list of what the gateway serves. The server, the OpenAPI document, the page and the
tests read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ledgermq_gateway.api.operating import operating_routes
from ledgermq_gateway.api.registry import registry_routes
from ledgermq_gateway.api.route import Body, Parameter, Route
from ledgermq_gateway.http.call import ARROW, EVENTS, JSON, NDJSON, OCTETS
from ledgermq_gateway.records import downloads, events, reading, transactions, writing
from ledgermq_gateway.records.bodies import RecordsIn
from ledgermq_gateway.records.forms import VALUES
from ledgermq_gateway.resources import access, cluster, groups, lookup, own, topics
from ledgermq_gateway.resources.parameters import CURSOR, POSITION_HELP, chosen, number, switch, text

IDEMPOTENCY = Parameter(
    "Idempotency-Key",
    "Sent again with the same key, the records are recognized, in topics with dedup.window.ms.",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "header",
)
TRANSACTION_KEY = replace(
    IDEMPOTENCY, help="Sent again with the same key, the transaction is recognized, and committed once at most."
)
TOPIC_ID = number("topic_id", "Refuse (409) if the topic of this name has another id by now.", 0, 2**63 - 1)
FILTERS = (
    text("tags", "Only records with one of these tags, with commas between."),
    text("filter", "Only records that this filter lets pass (docs/filters.md)."),
)
PAGE = (
    number("limit", "Most records of the page.", 1, 10_000, reading.LIMIT),
    number("wait_ms", "How long to wait while there is nothing.", 0, 50_000, 0),
    chosen("order", "Upwards from the place where the page begins, or downwards below it.", reading.ORDERS),
    *FILTERS,
    VALUES,
)
BEGINS = "If not given: earliest, or latest with order=newest."
DRY_RUN = switch("dry_run", "Change nothing; answer what would be changed.")


def table(is_ready: Callable[[], bool], version: str) -> tuple[Route, ...]:
    """Return all routes."""
    made: list[Route] = []

    def all_routes() -> tuple[Route, ...]:
        return tuple(made)

    made += [
        *_cluster(),
        *_topics(),
        *_records(),
        *_bulk(),
        *_groups(),
        *_lookup(),
        *(*operating_routes(), *registry_routes()),
        *(replace(route, by_cookie=not route.changes) for route in _access()),
        Route(
            "GET",
            "/openapi.json",
            own.get_document(all_routes, version),
            "This document.",
            answers={JSON: dict},
            public=True,
        ),
        Route(
            "GET", "/docs", own.get_page(all_routes, version), "It as a page.", answers={"text/html": None}, public=True
        ),
        Route("GET", "/livez", own.get_livez, "Whether the process works.", answers={"text/plain": None}, public=True),
        Route(
            "GET",
            "/readyz",
            own.get_readyz(is_ready),
            "Whether a broker has answered lately.",
            answers={"text/plain": None},
            public=True,
        ),
    ]
    return tuple(made)


def _cluster() -> list[Route]:
    return [
        Route(
            "GET", "/v1/cluster", topics.get_cluster, "Brokers, bundles and problems.", answers={JSON: topics.Cluster}
        ),
        Route(
            "GET",
            "/v1/brokers",
            cluster.list_brokers,
            "What each broker says of itself: release, bundles, load, memory, settings.",
            answers={JSON: cluster.BrokerReports},
        ),
        Route(
            "GET",
            "/v1/connections",
            cluster.list_connections,
            "Who is connected to the brokers.",
            answers={JSON: cluster.Connections},
        ),
        Route(
            "GET",
            "/v1/tables",
            cluster.list_tables,
            "The tables of topics, which other programs read, in pages by topic.",
            (
                text("after", "Only topics after this one: `after` of the page before."),
                number("limit", "Most tables of the page.", 1, cluster.TABLES_MAX, cluster.TABLES),
            ),
            answers={JSON: cluster.Tables},
        ),
        Route("GET", "/v1/loads", cluster.list_loads, "What topics cost now.", answers={JSON: cluster.Loads}),
    ]


def _topics() -> list[Route]:
    return [
        Route(
            "GET",
            "/v1/topics",
            topics.list_topics,
            "Topics, by name, in pages.",
            (
                text("prefix", "Only names that begin with this."),
                text("after", "Only names after this one: that of the page before."),
                number("limit", "Most topics of the page.", 1, topics.LIMIT_MAX, topics.LIMIT),
            ),
            answers={JSON: topics.Topics},
        ),
        Route(
            "POST",
            "/v1/topics",
            topics.create_topic,
            "Create a topic.",
            body=Body({JSON: topics.TopicIn}),
            answers={JSON: topics.TopicDetails},
            status=201,
        ),
        *_one_topic("/v1/topics/{topic}", {JSON: topics.TopicDetails}),
    ]


def _one_topic(one: str, details: dict[str, type]) -> list[Route]:
    return [
        Route("GET", one, topics.get_topic, "One topic with its partitions.", answers=details),
        Route(
            "PATCH",
            one,
            topics.alter_topic,
            "Add partitions, change settings.",
            (TOPIC_ID,),
            Body({JSON: topics.TopicChange}),
            details,
        ),
        Route(
            "DELETE",
            one,
            topics.delete_topic,
            "Delete a topic with its records. Within its grace it can be undeleted.",
            (TOPIC_ID, switch("now", "Delete it for good, without its grace.")),
            status=204,
        ),
        Route("POST", f"{one}/undelete", topics.undelete_topic, "Bring a deleted topic back.", answers=details),
        Route(
            "GET",
            f"{one}/offsets",
            topics.get_offsets,
            "An offset of each partition.",
            (text("at", "earliest, latest, a time with its zone (RFC 3339), or an age like 15m.", default="latest"),),
            answers={JSON: topics.TopicOffsets},
        ),
        Route(
            "DELETE",
            f"{one}/records",
            topics.delete_records,
            "Delete records from the beginning of the log on.",
            (
                Parameter("before", POSITION_HELP, {"type": "string"}, required=True),
                number("partition", "Only this partition.", 0, 2**31 - 1),
                DRY_RUN,
            ),
            answers={JSON: topics.DeletedRecords},
        ),
    ]


def _records() -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/topics/{topic}/records",
            writing.post_records,
            "Write records: all of them, or the answer says which are stored.",
            (IDEMPOTENCY,),
            Body({JSON: RecordsIn, NDJSON: None, OCTETS: None, ARROW: None}),
            {JSON: writing.StoredRecords},
        ),
        Route(
            "GET",
            "/v1/topics/{topic}/partitions/{partition}/records",
            reading.get_partition,
            "A page of one partition.",
            (text("from", f"{POSITION_HELP} {BEGINS}"), *PAGE),
            answers={JSON: reading.PartitionPage, NDJSON: None, ARROW: None, OCTETS: None},
        ),
        Route(
            "GET",
            "/v1/topics/{topic}/records",
            reading.get_records,
            "A page of several partitions; `next` goes on behind it.",
            (
                Parameter("cursor", "Where to go on: `next` of the page before.", CURSOR),
                text("from", f"Where to begin without a cursor: earliest, latest, a time, an age. {BEGINS}"),
                text("partitions", "Numbers with commas between; all, if not given."),
                *PAGE,
            ),
            answers={JSON: reading.TopicPage, NDJSON: None, ARROW: None, OCTETS: None},
        ),
        Route(
            "GET",
            "/v1/topics/{topic}/events",
            events.get_events,
            "Records as they come, as server-sent events.",
            (
                Parameter("Last-Event-ID", "The id of the last event: the stream goes on behind it.", CURSOR, "header"),
                Parameter("cursor", "The same, for programs that cannot send the header.", CURSOR),
                text("from", "Where to begin without a cursor: earliest, latest, a time, an age.", default="latest"),
                text("partitions", "Numbers with commas between; all, if not given."),
                *FILTERS,
                chosen(
                    "gap", "What happens where records are gone: the stream fails, or skips them.", ("fail", "skip")
                ),
                VALUES,
            ),
            answers={EVENTS: None},
        ),
    ]


def _bulk() -> list[Route]:
    return [
        Route(
            "POST",
            "/v1/transactions",
            transactions.post_transaction,
            "Write records of any topics, all of them or none.",
            (TRANSACTION_KEY,),
            Body({JSON: transactions.TransactionIn}),
            {JSON: transactions.TransactionOut},
        ),
        Route(
            "GET",
            "/v1/topics/{topic}/download",
            downloads.get_download,
            "A range of a topic as a file, sent as it is read.",
            (
                text("from", f"Where the range begins: {POSITION_HELP}", default="earliest"),
                text("to", "Where it ends, in the same forms; records that come later are left out.", default="latest"),
                text("partitions", "Numbers with commas between; all, if not given."),
                number("limit", "Most records.", 1, downloads.RECORDS_MAX, downloads.RECORDS),
                *FILTERS,
                chosen("format", "The form of the file.", downloads.FORMATS),
                VALUES,
            ),
            answers={NDJSON: None, ARROW: None},
        ),
    ]


def _groups() -> list[Route]:
    one = "/v1/groups/{group}"
    return [
        Route("GET", "/v1/groups", groups.list_groups, "Consumer groups, by name.", answers={JSON: groups.Groups}),
        Route(
            "GET",
            "/v1/lags",
            cluster.list_lags,
            "How far groups are behind, by group and topic, in pages of groups.",
            (
                text("topic", "Only groups that read this topic."),
                text("group", "Only this group."),
                text("after", "Only groups after this one: `after` of the page before."),
                number("limit", "Most groups of the page.", 1, cluster.LIMIT_MAX, cluster.LIMIT),
            ),
            answers={JSON: cluster.Lags},
        ),
        Route("GET", one, groups.get_group, "One group.", answers={JSON: groups.GroupDetails}),
        Route(
            "GET",
            f"{one}/lag",
            groups.get_lag,
            "How far the group is behind, by partition.",
            answers={JSON: groups.GroupLags},
        ),
        Route("DELETE", one, groups.delete_group, "Delete a group with its offsets.", status=204),
        Route("GET", f"{one}/offsets", groups.get_offsets, "Committed offsets.", answers={JSON: groups.GroupOffsets}),
        Route(
            "PUT",
            f"{one}/offsets",
            groups.put_offsets,
            "Commit offsets of a reader that is no member.",
            body=Body({JSON: groups.OffsetsIn}),
            answers={JSON: groups.GroupOffsets},
        ),
        Route(
            "POST",
            f"{one}/reset",
            groups.reset_group,
            "Set committed offsets.",
            body=Body({JSON: groups.ResetIn}),
            answers={JSON: groups.Resets},
        ),
    ]


def _lookup() -> list[Route]:
    return [
        Route(
            "GET",
            "/v1/topics/{topic}/find",
            lookup.find,
            "Records with a key.",
            (
                text("key", "The key, as text."),
                text("key_base64", "The key, in base64."),
                text("from", "Where the search begins: earliest, latest, a time, an age.", default="earliest"),
                text("to", "Where it ends.", default="latest"),
                number("limit", "Most records.", 1, lookup.FOUND_MAX, lookup.FOUND),
                chosen("order", "Which come first.", ("newest", "oldest")),
                VALUES,
            ),
            answers={JSON: lookup.FoundRecords},
            also=(206,),
        ),
        Route(
            "GET",
            "/v1/delayed",
            lookup.list_delayed,
            "Records that wait until they are due, in the order in which they are.",
            (
                text("topic", "Only of this topic."),
                number("partition", "Only of this partition.", 0, 2**31 - 1),
                number("limit", "Most records.", 1, lookup.LISTED_MAX, lookup.FOUND),
            ),
            answers={JSON: lookup.DelayedRecords},
        ),
        Route("DELETE", "/v1/delayed/{handle}", lookup.recall, "Recall a record.", answers={JSON: lookup.Recalled}),
    ]


def _access() -> list[Route]:
    rules, tokens = "/v1/access/rules", "/v1/access/tokens"
    return [
        Route("GET", rules, access.list_rules, "Access rules.", answers={JSON: access.Rules}),
        Route(
            "POST",
            rules,
            access.grant,
            "Store an access rule.",
            body=Body({JSON: access.RuleIn}),
            answers={JSON: access.Granted},
            status=201,
        ),
        Route("DELETE", f"{rules}/{{rule}}", access.revoke, "Remove an access rule.", status=204),
        Route("GET", tokens, access.list_tokens, "Tokens, without what they are.", answers={JSON: access.Tokens}),
        Route(
            "POST",
            tokens,
            access.create_token,
            "Make a token; it is in this answer only.",
            body=Body({JSON: access.TokenIn}),
            answers={JSON: access.TokenOut},
            status=201,
        ),
        Route("DELETE", f"{tokens}/{{token_id}}", access.revoke_token, "Remove a token.", status=204),
        Route(
            "GET",
            "/v1/access/test",
            access.test_rules,
            "Whether a principal may do something.",
            (
                Parameter("operation", "Like produce, consume, group, cluster.", {"type": "string"}, required=True),
                text("name", "Of the topic, group or transactional id."),
                text("principal", "Another principal than the caller; needs the operation cluster."),
            ),
            answers={JSON: access.Decision},
        ),
        Route("GET", "/v1/quotas", access.list_quotas, "Quotas.", answers={JSON: access.Quotas}),
        Route(
            "PUT",
            "/v1/quotas",
            access.put_quota,
            "Set or drop limits of a quota.",
            body=Body({JSON: access.QuotaIn}),
            answers={JSON: access.Quota},
        ),
    ]
