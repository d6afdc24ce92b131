"""The APIs that the listener serves: the only list. The answer to ApiVersions, what a connection
accepts and docs/kafka.md are made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq_broker.kafka.brokers import Offers
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import api_versions_response as answered
from ledgermq_broker.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_SHARE_GROUP_OFFSETS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_SHARE_GROUP_OFFSETS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    DESCRIBE_TRANSACTIONS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
    Api,
)


@dataclass(frozen=True, slots=True)
class Served:
    """`first`, `last`: the versions that are served. `announced_from`: the first one that ApiVersions names.
    `note`: how it differs from Kafka's, for the page.
    """

    api: Api
    first: int
    last: int
    note: str
    announced_from: int | None = None


TABLE: Sequence[Served] = (
    Served(
        PRODUCE,
        3,
        12,
        "`acks` 1 waits for the store as `all` does. Records of a transaction get no offset before the commit:"
        " Java receives −1, other clients −2³¹. Versions 0 to 2 are announced for librdkafka, which never uses"
        " them, and refused",
        announced_from=0,
    ),
    Served(
        FETCH,
        4,
        12,
        "No fetch sessions, no topic ids, no fetches from followers. `read_committed` and `read_uncommitted` read the"
        " same: undecided records have no offset yet",
    ),
    Served(
        LIST_OFFSETS,
        1,
        9,
        "Nothing lies in another tier: −4 is the log start, −5 finds nothing. The record with the largest timestamp"
        " (−3) is searched by time",
    ),
    Served(METADATA, 0, 13, "One replica for each partition, its leader; topics of the system are hidden"),
    Served(API_VERSIONS, 0, 4, ""),
    Served(INIT_PRODUCER_ID, 0, 5, "A time-out of transactions above 15 minutes gets error 50"),
    Served(ADD_PARTITIONS_TO_TXN, 0, 3, "At most 10,000 partitions in a transaction. Version 4 is for brokers"),
    Served(ADD_OFFSETS_TO_TXN, 0, 4, ""),
    Served(TXN_OFFSET_COMMIT, 0, 5, "All offsets of a request are taken, or none. Version 5 adds the group (KIP-890)"),
    Served(
        END_TXN,
        0,
        5,
        "Up to version 4 the epoch stays the same from one transaction to the next; version 5 returns the next one"
        " (KIP-890)",
    ),
    Served(
        DESCRIBE_TRANSACTIONS,
        0,
        0,
        "Producer ids are shown as other numbers, since who knows one may write in its place. After a takeover of the"
        " coordinator, a transaction has begun then",
    ),
    Served(
        LIST_TRANSACTIONS,
        0,
        1,
        "The ids of the broker that is asked, as in Kafka, also those of our own clients. Producer ids as in"
        " DescribeTransactions. Not by a pattern",
    ),
    Served(OFFSET_FOR_LEADER_EPOCH, 2, 4, "Each epoch ends where the log ends: nothing is ever cut off"),
    Served(FIND_COORDINATOR, 0, 6, "Types 0, groups, and 1, transactions"),
    Served(JOIN_GROUP, 0, 9, "A group whose members the broker assigns, ours or KIP-848's, gets error 23"),
    Served(SYNC_GROUP, 0, 5, ""),
    Served(HEARTBEAT, 0, 4, ""),
    Served(LEAVE_GROUP, 0, 5, ""),
    Served(OFFSET_COMMIT, 2, 9, "No retention of single commits: `offsets_retention_ms` counts for all"),
    Served(OFFSET_FETCH, 1, 9, "The leader epoch of a commit is not kept: −1"),
    Served(DESCRIBE_GROUPS, 0, 6, "Groups whose members the broker assigns are shown, too"),
    Served(
        LIST_GROUPS,
        0,
        5,
        "The groups of the broker that is asked, as in Kafka. Share groups without members from version 5 on",
    ),
    Served(
        DELETE_GROUPS,
        0,
        2,
        "Share groups, too. A name that is a consumer group and a share group gets error 24: delete one of them by"
        " `ledgermq group` or `ledgermq queue`",
    ),
    Served(OFFSET_DELETE, 0, 0, "Only while the group has no members of the classic kind"),
    Served(
        CONSUMER_GROUP_HEARTBEAT,
        0,
        1,
        "KIP-848, `group.protocol=consumer`. Assignors `uniform`, `range`, `sticky`, `consistent_hash`; the group uses"
        " what most members name. A pattern needs the right to all topics that begin like it",
    ),
    Served(
        CONSUMER_GROUP_DESCRIBE,
        0,
        1,
        "Members of LedgerMQ's own protocol are shown, too; a group without members is described by DescribeGroups",
    ),
    Served(
        SHARE_GROUP_HEARTBEAT,
        1,
        1,
        "KIP-932: members of queue groups. Each member is given all partitions of its topics",
    ),
    Served(SHARE_GROUP_DESCRIBE, 1, 1, "Groups that have members now, or have begun"),
    Served(
        DESCRIBE_SHARE_GROUP_OFFSETS,
        0,
        0,
        "The offset below which all messages are finished; −1 where the group has not begun",
    ),
    Served(
        ALTER_SHARE_GROUP_OFFSETS,
        0,
        0,
        "Error 68 while the coordinator knows members of this protocol. Below the log start the group begins there,"
        " beyond the end the partition gets error 1",
    ),
    Served(DELETE_SHARE_GROUP_OFFSETS, 0, 0, "Error 68 while the coordinator knows members of this protocol"),
    Served(
        SHARE_FETCH,
        1,
        1,
        "`MaxRecords` is exact. A message that was delivered five times goes to the dead letters of the group."
        " `BatchSize` and `MinBytes` count for nothing",
    ),
    Served(
        SHARE_ACKNOWLEDGE,
        1,
        1,
        "Durable when it is answered. Of offsets that are only partly leased, those that are count, and the answer is"
        " error 121",
    ),
    Served(
        CREATE_TOPICS,
        2,
        7,
        "Settings that LedgerMQ lacks get error 40. One replica, whatever is asked. The name of a deleted topic is free"
        " when its grace is over: error 36 until then",
    ),
    Served(DELETE_TOPICS, 1, 6, "`ledgermq topic undelete` brings a topic back while its grace lasts"),
    Served(
        DELETE_RECORDS,
        0,
        2,
        "In force for every reader when it is answered. Keyed topics and a legal hold get error 44",
    ),
    Served(CREATE_PARTITIONS, 0, 3, "Assignments only have to be as many as the partitions that are added"),
    Served(
        DESCRIBE_CONFIGS,
        1,
        4,
        "Topics; of the broker that is asked, and of share groups, a few names, which are read-only. 5,000 resources in"
        " a request, no documentation",
    ),
    Served(
        ALTER_CONFIGS,
        0,
        2,
        "Topics. Unsets what the request does not name; a legal hold has to be named, else error 44",
    ),
    Served(
        INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        "Topics; brokers get error 42, share groups error 40 for what is not in force. Set and delete; append and"
        " subtract get error 40",
    ),
    Served(
        DESCRIBE_CLUSTER,
        0,
        2,
        "The brokers of Metadata; the broker that is asked stands for the controller. No operations are named",
    ),
    Served(
        DESCRIBE_ACLS,
        1,
        3,
        "Those access rules of `ledgermq acl` that Kafka's words can express. Error 54 with `security = open`",
    ),
    Served(
        CREATE_ACLS,
        1,
        3,
        "A rule for each, at most 1,000 in a request. What there is no rule for gets error 42",
    ),
    Served(DELETE_ACLS, 1, 3, "An ACL that several filters mean stands in the answer to the first of them"),
    Served(
        DESCRIBE_CLIENT_QUOTAS,
        0,
        1,
        "Those quotas of `ledgermq quota` for which Kafka has a limit. A client id belongs to a user",
    ),
    Served(
        ALTER_CLIENT_QUOTAS,
        0,
        1,
        "`producer_byte_rate` and `consumer_byte_rate` of users, and of client ids of users. Others get error 42",
    ),
    Served(
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        0,
        "Numbers of iterations, never salts or keys. For programs that may change them",
    ),
    Served(
        ALTER_USER_SCRAM_CREDENTIALS,
        0,
        0,
        "In force at every broker when it is answered. Connections that a former password proved end",
    ),
    Served(
        DESCRIBE_LOG_DIRS,
        1,
        4,
        "One directory, with the bytes in segments and Parquet files of the partitions that the broker leads, without"
        " cleaned versions of keyed topics. Its size is not known: −1",
    ),
    Served(
        SASL_HANDSHAKE,
        1,
        1,
        "PLAIN, OAUTHBEARER, SCRAM-SHA-256 and SCRAM-SHA-512. Version 0 is announced for librdkafka, which does not"
        " use it, and refused",
        announced_from=0,
    ),
    Served(SASL_AUTHENTICATE, 0, 2, "Again on the same connection before the credential ends, by the same principal"),
)
_BY_KEY = {served.api.key: served for served in TABLE}


def served(key: int, version: int) -> Served | None:
    """Return the API of a request; None if it is not served in this version."""
    found = _BY_KEY.get(key)
    return found if found is not None and found.first <= version <= found.last else None


TRANSACTION_VERSION, FIRST_PROTOCOL, SECOND_PROTOCOL = "transaction.version", 1, 2
SHARE_VERSION, SHARE_GROUPS = "share.version", 1
FEATURES_EPOCH = 1
"""Clients take the features of the answer with the highest epoch that they have seen: one that offers the second
protocol is above those that offer none, whose epoch is −1, unknown. So a client that speaks it goes on to do so.
"""
NOTHING_MORE = Offers()
OF_SHARE_GROUPS = frozenset(
    {
        *(SHARE_GROUP_HEARTBEAT, SHARE_GROUP_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE),
        *(DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_OFFSETS),
    }
)


def api_versions(code: Code = Code.NONE, *, offers: Offers = NOTHING_MORE) -> answered.ApiVersionsResponse:
    """Return the answer to ApiVersions. `offers`: what clients may use, as every broker knows it."""
    answer = answered.ApiVersionsResponse(
        error_code=code,
        api_keys=[
            answered.ApiVersion(
                api_key=one.api.key,
                min_version=one.first if one.announced_from is None else one.announced_from,
                max_version=one.last,
            )
            for one in sorted(TABLE, key=lambda one: one.api.key)
            if offers.share_groups or one.api not in OF_SHARE_GROUPS
        ],
    )
    if offers.renewals:
        levels = [(TRANSACTION_VERSION, FIRST_PROTOCOL, SECOND_PROTOCOL)]
        levels += [(SHARE_VERSION, SHARE_GROUPS, SHARE_GROUPS)] if offers.share_groups else []
        answer.supported_features = [answered.SupportedFeatureKey(name, low, high) for name, low, high in levels]
        answer.finalized_features_epoch = FEATURES_EPOCH
        answer.finalized_features = [
            answered.FinalizedFeatureKey(name, max_version_level=high, min_version_level=low)
            for name, low, high in levels
        ]
    return answer
