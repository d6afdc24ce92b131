"""`ledgermq status`: what people and programs read of a cluster that is well, and of one that is
not.
"""

from __future__ import annotations

from ledgermq.cli.admin.cluster import cluster_report
from ledgermq.cli.admin.status import status_report
from ledgermq.client.messages.descriptions import (
    BrokerDescription,
    BundleDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)

PROBLEM = "bundle 1 has no owner, so its partitions are not served"


def described(*problems: str) -> ClusterDescription:
    bundles = (BundleDescription(0, "a:1", 1, ""), BundleDescription(1, "", 0, "", 3_000_000))
    return ClusterDescription("ab", "file:///x", (BrokerDescription("a", "a:1", True),), bundles, "1", "a:1", problems)


def test_a_cluster_is_well_where_nothing_is_amiss() -> None:
    report = status_report(described(), 3)
    assert report.facts["health"] == "ok"
    assert report.document()["problems"] == []


def test_each_problem_is_told_to_people_and_programs() -> None:
    report = status_report(described(PROBLEM, "another"), 3)
    assert report.facts["health"] == "trouble"
    assert report.document()["problems"] == [{"problem": PROBLEM}, {"problem": "another"}]


def test_the_bundles_of_a_cluster_are_shown_with_their_partitions() -> None:
    partitions = (PartitionDescription(0, 1, "a:1"), PartitionDescription(1, 1, "a:1"))
    report = cluster_report(described(), [TopicDescription("t", 1, partitions, {}, 0)])
    assert (report.facts["bundles"], report.facts["partitions"], report.facts["brokers"]) == (2, 2, 1)
    rows = report.document()["bundles"]
    assert isinstance(rows, list)
    shown = [(row["bundle"], row["owner"], row["partitions"], row["load"]) for row in rows]
    assert shown == [(0, "a:1", 0, 0), (1, "", 2, 3_000_000)]
