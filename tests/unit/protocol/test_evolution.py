"""What a release has declared in protobuf stays: names, numbers, types, methods. Only additions are allowed.

`tests/golden/descriptors/` has the FileDescriptorSet of each release; `make golden` writes it with
the golden root. Messages are compared by their full names, because the files that declare them may
move: nothing on the wire or in the store names a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from infra.protobuf import all_protos, descriptors

RELEASES = sorted((Path(__file__).parents[2] / "golden" / "descriptors").glob("*.binpb"))
Facts = Mapping[str, str]
"""What must stay, by the place where it is declared."""


def _parsed(data: bytes) -> FileDescriptorSet:
    return FileDescriptorSet.FromString(data)


def _field(field: FieldDescriptorProto) -> str:
    kind = FieldDescriptorProto.Type.Name(field.type)
    label = FieldDescriptorProto.Label.Name(field.label)
    oneof = "in a oneof" if field.HasField("oneof_index") and not field.proto3_optional else "alone"
    presence = "with presence" if field.proto3_optional else "without"
    return f"{field.name}: {label} {kind} {field.type_name} {oneof}, {presence}"


def _of_enum(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, str]]:
    yield name, "enum"
    for value in enum.value:
        yield f"{name} = {value.number}", value.name


def _of_message(name: str, message: DescriptorProto) -> Iterator[tuple[str, str]]:
    yield name, "message"
    for field in message.field:
        yield f"{name} field {field.number}", _field(field)
    for reserved in message.reserved_range:
        for number in range(reserved.start, min(reserved.end, reserved.start + 1000)):
            yield f"{name} field {number}", "reserved"
    for nested in message.nested_type:
        yield from _of_message(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        yield from _of_enum(f"{name}.{enum.name}", enum)


def _of_file(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for message in file.message_type:
        yield from _of_message(f"{file.package}.{message.name}", message)
    for enum in file.enum_type:
        yield from _of_enum(f"{file.package}.{enum.name}", enum)
    for service in file.service:
        for method in service.method:
            streams = f"{method.client_streaming}, {method.server_streaming}"
            place = f"{file.package}.{service.name}/{method.name}"
            yield place, f"{method.input_type} → {method.output_type}, {streams}"


def facts(declared: FileDescriptorSet) -> Facts:
    return dict(fact for file in declared.file for fact in _of_file(file))


def broken(released: Facts, now: Facts) -> list[str]:
    """Return what a release declared and what is declared otherwise now, or no longer.

    A field that is gone may only be a reserved number, and a released reservation stays.
    """
    return [
        f"{place}: was {was!r}, is {now.get(place)!r}"
        for place, was in released.items()
        if now.get(place) not in (was, "reserved")
    ]


@pytest.fixture(scope="module")
def now() -> FileDescriptorSet:
    return _parsed(descriptors(all_protos()))


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_everything_that_a_release_declared_is_there(release: Path, now: FileDescriptorSet) -> None:
    released = facts(_parsed(release.read_bytes()))
    assert len(released) > 300
    assert broken(released, facts(now)) == []


def test_every_golden_root_has_its_descriptors() -> None:
    roots = {path.name for path in (Path(__file__).parents[2] / "golden" / "roots").iterdir()}
    assert {path.stem for path in RELEASES} == roots


def _message(declared: FileDescriptorSet, name: str) -> DescriptorProto:
    return next(message for file in declared.file for message in file.message_type if message.name == name)


def _renamed(message: DescriptorProto) -> None:
    message.field[0].name += "_x"


def _renumbered(message: DescriptorProto) -> None:
    message.field[0].number = 900


def _retyped(message: DescriptorProto) -> None:
    message.field[0].type = FieldDescriptorProto.TYPE_BYTES


def _repeated(message: DescriptorProto) -> None:
    message.field[0].label = FieldDescriptorProto.LABEL_REPEATED


def _removed(message: DescriptorProto) -> None:
    del message.field[0]


@pytest.mark.parametrize("change", [_renamed, _renumbered, _retyped, _repeated, _removed])
def test_such_a_change_is_found(now: FileDescriptorSet, change: object) -> None:
    changed = FileDescriptorSet()
    changed.CopyFrom(now)
    assert callable(change)
    change(_message(changed, "CreateTopicRequest"))
    assert broken(facts(now), facts(changed))


def test_additions_and_reserved_numbers_are_no_finding(now: FileDescriptorSet) -> None:
    changed = FileDescriptorSet()
    changed.CopyFrom(now)
    message = _message(changed, "CreateTopicRequest")
    message.field.add(name="added", number=901, type=FieldDescriptorProto.TYPE_INT32)
    gone = message.field[0].number
    del message.field[0]
    message.reserved_range.add(start=gone, end=gone + 1)
    assert broken(facts(now), facts(changed)) == []


def test_the_published_file_names_packages_of_other_languages(now: FileDescriptorSet) -> None:
    (wire,) = (file for file in now.file if file.package == "ledgermq.v1")
    options = wire.options
    assert (options.go_package, options.java_package, options.java_multiple_files) == (
        "ledgermq/v1;ledgermqv1",
        "io.ledgermq.v1",
        True,
    )
