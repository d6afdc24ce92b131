"""`ledgermq status`: what people and programs read of a cluster that is well, and of one that is
not.
"""

from __future__ import annotations

from ledgermq.cli.status import status_report
from ledgermq.client.descriptions import BrokerDescription, BundleDescription, ClusterDescription

PROBLEM = "bundle 1 has no owner, so its partitions are not served"


def described(*problems: str) -> ClusterDescription:
    bundles = (BundleDescription(0, "a:1", 1, ""), BundleDescription(1, "", 0, ""))
    return ClusterDescription("ab", "file:///x", (BrokerDescription("a", "a:1", True),), bundles, "1", "a:1", problems)


def test_a_cluster_is_well_where_nothing_is_amiss() -> None:
    report = status_report(described(), 3)
    assert report.facts["health"] == "ok"
    assert report.document()["problems"] == []


def test_each_problem_is_told_to_people_and_programs() -> None:
    report = status_report(described(PROBLEM, "another"), 3)
    assert report.facts["health"] == "trouble"
    assert report.document()["problems"] == [{"problem": PROBLEM}, {"problem": "another"}]
