"""The APIs that the listener serves: the only list. The answer to ApiVersions, what a connection
accepts and docs/kafka.md are made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import api_versions_response as answered
from ledgermq_broker.kafka.wire.messages import (
    API_VERSIONS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
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
        "`acks` 1 waits for the store as `all` does; no transactions. Versions 0 to 2 are announced for librdkafka,"
        " which never uses them, and refused",
        announced_from=0,
    ),
    Served(
        FETCH,
        4,
        12,
        "No fetch sessions, no topic ids, no fetches from followers. `read_committed` and `read_uncommitted` read the"
        " same: undecided records have no offset yet",
    ),
    Served(LIST_OFFSETS, 1, 9, "The record with the largest timestamp (−3) is not looked for: error 43"),
    Served(METADATA, 0, 13, "One replica for each partition, its leader; topics of the system are hidden"),
    Served(API_VERSIONS, 0, 4, ""),
    Served(INIT_PRODUCER_ID, 0, 5, "Idempotent producers only: a transactional id gets error 53"),
    Served(OFFSET_FOR_LEADER_EPOCH, 2, 4, "Each epoch ends where the log ends: nothing is ever cut off"),
)
_BY_KEY = {served.api.key: served for served in TABLE}


def served(key: int, version: int) -> Served | None:
    """Return the API of a request; None if it is not served in this version."""
    found = _BY_KEY.get(key)
    return found if found is not None and found.first <= version <= found.last else None


def api_versions(code: Code = Code.NONE) -> answered.ApiVersionsResponse:
    """Return the answer to ApiVersions."""
    return answered.ApiVersionsResponse(
        error_code=code,
        api_keys=[
            answered.ApiVersion(
                api_key=one.api.key,
                min_version=one.first if one.announced_from is None else one.announced_from,
                max_version=one.last,
            )
            for one in sorted(TABLE, key=lambda one: one.api.key)
        ],
    )
