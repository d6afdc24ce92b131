"""Defaults that depend on the kind of store, by the scheme of the root; other schemes count as files."""

from __future__ import annotations

HEARTBEAT_MS = {"file": 500, "hdfs": 1000, "s3": 3000, "az": 3000, "gs": 3000}
SPACING_MS = {"file": 0, "hdfs": 100, "s3": 100, "az": 100, "gs": 100}
"""Flush spacing by the scheme of the root.

A put to HDFS takes 40 ms, or half a second without the NameNode's setting of decision 14.
"""
SHARED_WITHIN_MS = {"file": 10, "hdfs": 1000, "s3": 500, "az": 500, "gs": 500}
"""How long what principals send is in service while several of them send, by the scheme of the root: some
puts one after the other.
"""
GIVING_WAY_SHARES = {"file": 0.25, "hdfs": 0.0, "s3": 0.0, "az": 0.0, "gs": 0.0}
"""How long a reader of a backlog waits for puts, for each second that it does not wait, by the scheme of the root. A
put to a distant store waits for the store, and a reader does not disturb it.
"""


def heartbeat_s(root_url: str) -> float:
    """Return the interval of heartbeats. A heartbeat is a PUT and a LIST: on S3, three seconds keep the bill below half
    a dollar per day and broker.
    """
    return HEARTBEAT_MS.get(scheme_of(root_url), HEARTBEAT_MS["file"]) / 1000


def spacing_s(root_url: str) -> float:
    return SPACING_MS.get(scheme_of(root_url), SPACING_MS["file"]) / 1000


def shared_within_s(root_url: str) -> float:
    return SHARED_WITHIN_MS.get(scheme_of(root_url), SHARED_WITHIN_MS["file"]) / 1000


def giving_way_share(root_url: str) -> float:
    return GIVING_WAY_SHARES.get(scheme_of(root_url), GIVING_WAY_SHARES["file"])


def scheme_of(root_url: str) -> str:
    return root_url.partition(":")[0]
