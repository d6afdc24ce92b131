"""What a member of the Kafka protocol was told to let go stays its own over a takeover, until it knows that."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.records import Held, MemberEntry, MemberValue, Subscription, decode, encode
from tests.property.consumer_life import KafkaClient, both_kinds
from tests.worlds.coordinators import Catalog, Desk


def joined(desk: Desk, number: int) -> KafkaClient:
    client = KafkaClient(number, topics=("t",))
    request = client.request(pb.JOIN)
    client.take(request, desk.heartbeat(request))
    return client


def test_a_partition_that_a_member_may_be_taking_is_not_given_to_another_one_after_a_takeover() -> None:
    catalog = Catalog()
    catalog.create("t", partitions=2)
    desk = Desk(catalog, GroupLimits(), both_kinds)
    first = joined(desk, 0)
    assert first.given is not None
    assert len(first.given) == 2  # it takes its time to begin with them
    second = joined(desk, 1)
    assert second.given == set()  # one of the two was withdrawn, which the first one has not heard
    desk.take_over()
    first.missed = True  # so it says everything to the new coordinator: it has nothing yet
    request = first.request()
    desk.heartbeat(request)  # the answer is lost
    first.begin_with_what_was_given()
    request = second.request()
    second.take(request, desk.heartbeat(request))
    second.begin_with_what_was_given()
    assert not first.owned & second.owned

    request = first.request()
    first.take(request, desk.heartbeat(request))
    first.begin_with_what_was_given()
    desk.heartbeat(first.request())  # it has let go
    request = second.request()
    second.take(request, desk.heartbeat(request))
    assert second.given
    assert second.given | first.owned == {*desk.coordinator.state.groups[request.group].target}


def test_a_withdrawal_of_an_earlier_release_has_no_epoch() -> None:
    held = {
        PartitionId(7, 0): Held(12, True),
        PartitionId(7, 1): Held(13, True, 15),
        PartitionId(7, 2): Held(14, False),
    }
    entry = MemberEntry("g", "m", MemberValue(Subscription(("t",)), False, held, {7: "t"}))
    found = encode(entry)
    assert decode(found.key, found.value) == entry
    data = fmt.Member.FromString(found.value)
    del data.held[0].withdrawn_in[:]
    earlier = decode(found.key, data.SerializeToString())
    assert isinstance(earlier, MemberEntry)
    assert earlier.value is not None
    assert earlier.value.held[PartitionId(7, 1)] == Held(13, True, 0)
