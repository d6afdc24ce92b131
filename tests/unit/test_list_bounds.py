"""Every repeated field of every request has a bound in the .proto, and one entry too many is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.list_bounds import items_max_of
from ledgermq.protocol.methods import METHODS, Method
from ledgermq_broker.admission import queries
from ledgermq_broker.metadata import topic_path
from ledgermq_broker.paths import deletion_path
from ledgermq_broker.paths.fetching import fetch_path
from ledgermq_broker.queues import fetching
from ledgermq_offsets.limits import GroupLimits

Path = tuple[FieldDescriptor, ...]


def lists_of(kind: Descriptor) -> Iterator[Path]:
    """Every way from a message to one of its repeated fields, by its own walk and not by that of the rule."""
    for field in kind.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.is_repeated:
            yield (field,)
        if field.message_type is not None and not is_map:
            for path in lists_of(field.message_type):
                yield (field, *path)


def request_of(method: Method) -> Descriptor:
    return pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name[method.name].input_type


ALL = [(method, path) for method in METHODS for path in lists_of(request_of(method))]


def filled(kind: Descriptor, path: Path, count: int) -> Message:
    """A request whose last list of the path has `count` entries."""
    message: Message = kind._concrete_class()
    at = message
    for field in path[:-1]:
        at = getattr(at, field.name).add() if field.is_repeated else getattr(at, field.name)
        at.SetInParent()
    last = path[-1]
    if last.message_type is not None and last.message_type.GetOptions().map_entry:
        value = 1 if last.message_type.fields_by_name["value"].message_type is None else None
        is_text = last.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING
        getattr(at, last.name).update({str(number): "1" if is_text else value for number in range(count)})
    elif last.message_type is not None:
        entries = getattr(at, last.name)
        for _ in range(count):
            entries.add()
    else:
        entry = {FieldDescriptor.TYPE_STRING: "a", FieldDescriptor.TYPE_BYTES: b"a"}.get(last.type, 1)
        getattr(at, last.name).extend([entry] * count)
    return message


def test_there_are_lists() -> None:
    assert len(ALL) > 35
    assert any(path[-1].name == "tags" for _, path in ALL), "lists inside of lists, too"


@pytest.mark.parametrize(
    ("method", "path"), ALL, ids=lambda given: given.name if isinstance(given, Method) else given[-1].full_name
)
def test_one_entry_too_many_is_refused(method: Method, path: Path) -> None:
    bound = items_max_of(path[-1])
    assert bound > 0
    with pytest.raises(InvalidRequest, match=f"at most {bound} "):
        method.decode_request(filled(request_of(method), path, bound + 1).SerializeToString())
    method.decode_request(filled(request_of(method), path, min(bound, 5000)).SerializeToString())


def test_the_bounds_are_those_that_the_broker_itself_has() -> None:
    """A process without a wire judges by these."""
    limits = GroupLimits()
    assert items_max_of(pb.FetchRequest.DESCRIPTOR.fields_by_name["partitions"]) == fetch_path.PARTITIONS_MAX
    assert items_max_of(pb.ListOffsetsRequest.DESCRIPTOR.fields_by_name["queries"]) == queries.QUERIES_MAX
    assert items_max_of(pb.DescribeTopicsRequest.DESCRIPTOR.fields_by_name["topics"]) == topic_path.NAMES_MAX
    assert items_max_of(pb.DeleteRecordsRequest.DESCRIPTOR.fields_by_name["partitions"]) == deletion_path.PARTITIONS_MAX
    assert items_max_of(pb.ShareFetchRequest.DESCRIPTOR.fields_by_name["partitions"]) == fetching.PARTITIONS_MAX
    assert items_max_of(pb.CommitOffsetsRequest.DESCRIPTOR.fields_by_name["commits"]) == limits.commits_max
    assert items_max_of(pb.GroupHeartbeatRequest.DESCRIPTOR.fields_by_name["owned"]) == limits.partitions_max
    assert items_max_of(pb.GroupSubscription.DESCRIPTOR.fields_by_name["topics"]) == limits.topics_max
