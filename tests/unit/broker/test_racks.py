"""Whether a client runs in the rack of the broker, and names of racks."""

from __future__ import annotations

import pytest

from ledgermq.client.admin.brokers.costs import merged
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidConfig
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.client_ids import RACK_CHARS_MAX, found_rack, metadata_of
from ledgermq_broker.costs.racks import OTHER, SAME, UNKNOWN, RackTraffic


@pytest.mark.parametrize(
    ("of_broker", "of_client", "kind"),
    [("a", "a", SAME), ("a", "b", OTHER), ("a", "A", OTHER), ("", "a", UNKNOWN), ("a", "", UNKNOWN), ("", "", UNKNOWN)],
)
def test_the_rack_of_a_client_seen_from_a_broker(of_broker: str, of_client: str, kind: str) -> None:
    racks = RackTraffic(of_broker)
    racks.of(of_client).bytes_in += 7
    assert {name: traffic.bytes_in for name, traffic in racks.by_kind.items()} == {
        SAME: 0, OTHER: 0, UNKNOWN: 0,
    } | {kind: 7}  # fmt: skip


@pytest.mark.parametrize("wrong", ["two words", "z\u00fcrich", "x" * (RACK_CHARS_MAX + 1), "a\n", 5, None])
def test_what_no_rack_can_be(wrong: object) -> None:
    with pytest.raises(InvalidConfig, match="rack"):
        ClientSettings(rack=wrong)  # type: ignore[arg-type]
    assert not isinstance(wrong, str) or found_rack(wrong) == "", "what another program sends is unknown then"


def test_a_call_carries_what_the_program_has() -> None:
    assert metadata_of("", "") == ()
    assert metadata_of("c", "r") == (("ledgermq-client-id", "c"), ("ledgermq-rack", "r"))
    assert ClientSettings(rack="eu-1a").rack == found_rack("eu-1a") == "eu-1a"


def test_traffic_of_all_brokers_is_added_and_older_ones_count_none() -> None:
    answers = [pb.ListCostsResponse(since_ms=1), *(pb.ListCostsResponse(since_ms=1) for _ in range(2))]
    for answer in answers[1:]:
        answer.traffic.add(rack=OTHER, bytes_in=3, bytes_out=2**40)
    [found] = merged(answers).traffic
    assert (found.rack, found.bytes_in, found.bytes_out) == (OTHER, 6, 2**41)
    assert not merged(answers[:1]).traffic
