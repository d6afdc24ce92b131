"""All schemas at one moment, a pure fold of records of `__metadata`, and what a change of them writes.

* An id belongs to one text forever: the counts of ids are a separate record, and texts stay when a schema is
  deleted for good.
* A field id belongs to one field of one subject forever (`fields`).
* Equal texts have equal ids, under whatever subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ledgermq.errors import DataDamaged, IncompatibleSchema, InvalidRequest, ResourceExhausted, UnknownSchema
from ledgermq.hints import did_you_mean
from ledgermq.protocol.limits import with_nonce
from ledgermq_broker.schemas.state.kinds import avro, json_schema, protobuf
from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_ledger.format.versioned import Unreadable
from ledgermq_ledger.schemas.fields import numbered
from ledgermq_ledger.schemas.records import (
    PREFIXES,
    SCHEMA_PREFIX,
    SCHEMAS_KEY,
    SUBJECT_PREFIX,
    Counts,
    Schema,
    Subject,
    decode_counts,
    decode_schema,
    decode_subject,
    encode_counts,
    encode_schema,
    encode_subject,
    schema_key,
    subject_key,
    subject_of,
)
from ledgermq_ledger.schemas.subjects import SUBJECT_CHARS_MAX, is_subject

Record = tuple[bytes, bytes | None]
Records = Mapping[bytes, tuple[int, bytes]]
"""By key: (offset, value) of the newest record."""

SCHEMAS_MAX = 10_000
VERSIONS_MAX = 1_000
"""Of one subject, deleted ones included."""
TEXTS_BYTES_MAX = 64 * 1024 * 1024
"""Every broker holds all texts in memory."""
COMPARED_MAX = 100
"""Versions that a transitive mode compares with, from the newest one on."""
NONCES_KEPT = 64
REASONS_MAX = 10
MODES = ("none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")
DEFAULT_MODE = "backward"
KINDS = {module.KIND: module for module in (avro, json_schema, protobuf)}
LIBRARIES = {avro.KIND: "avro", json_schema.KIND: "jsonschema-rs"}


@dataclass(frozen=True, slots=True)
class Registry:
    """`schemas` by subject and version. `unreadable`: why, by the subject of the record; "" for the counts."""

    schemas: Mapping[str, Mapping[int, Schema]] = field(default_factory=dict)
    subjects: Mapping[str, Subject] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[bytes, int] = field(default_factory=dict)
    by_id: Mapping[int, Schema] = field(default_factory=dict)
    by_digest: Mapping[bytes, int] = field(default_factory=dict)
    texts_bytes: int = 0

    def mode(self, subject: str) -> str:
        return self.subjects.get(subject, Subject()).compatibility or DEFAULT_MODE

    def living(self, subject: str, *, deleted: bool = False) -> list[Schema]:
        """Return the versions of a subject, ascending; with `deleted` also those that are not deleted for good."""
        kept = self.subjects.get(subject, Subject())
        hidden = kept.for_good if deleted else kept.for_good | kept.deleted
        found = sorted(self.schemas.get(subject, {}).values(), key=lambda each: each.version)
        return [each for each in found if each.version not in hidden]

    def of_id(self, id_: int) -> Schema:
        """Return the schema of an id, also one that is deleted: rows may need it. Raises UnknownSchema."""
        if id_ not in self.by_id:
            raise UnknownSchema(f"there is no schema with the id {id_}")
        return self.by_id[id_]

    def subjects_of(self, id_: int) -> list[str]:
        """Return the subjects that have a text, deleted or not."""
        return sorted(name for name, versions in self.schemas.items() if any(v.id == id_ for v in versions.values()))

    def version(self, subject: str, version: int, *, deleted: bool = False) -> Schema:
        """Return a version of a subject, 0 the newest. Raises UnknownSchema."""
        found = self._found(subject, deleted=deleted)
        if not version:
            return found[-1]
        for each in found:
            if each.version == version:
                return each
        raise UnknownSchema(f"subject {subject!r} has no version {version}; its newest one is {found[-1].version}")

    def same(self, subject: str, parsed: Parsed, *, deleted: bool = False) -> Schema:
        """Return the newest version of a subject with the same text. Raises UnknownSchema."""
        for each in reversed(self._found(subject, deleted=deleted)):
            if each.digest == parsed.digest:
                return each
        raise UnknownSchema(f"subject {subject!r} has no such schema: `ledgermq schema put {subject}` registers it")

    def _found(self, subject: str, *, deleted: bool) -> list[Schema]:
        found = self.living(subject, deleted=deleted)
        if not found:
            raise UnknownSchema(f"there is no subject {subject[:SUBJECT_CHARS_MAX]!r}")
        return found

    def check_readable(self, subject: str) -> None:
        """Raise DataDamaged if a record that a change would build on cannot be read."""
        for name in (subject, ""):
            if name in self.unreadable:
                what = f"subject {name!r}" if name else "the counts of schemas"
                raise DataDamaged(f"a record of {what} cannot be read by this release: {self.unreadable[name]}")


def registry_of(records: Records, before: Registry | None = None) -> Registry:
    """Return the schemas of these records. `before`: of earlier records, which is returned if they are the same;
    what did not change is not decoded again.
    """
    offsets = {key: offset for key, (offset, _) in records.items() if key.startswith(PREFIXES)}
    known = before or Registry()
    if offsets == known.offsets:
        return known
    schemas: dict[str, dict[int, Schema]] = {}
    subjects: dict[str, Subject] = {}
    unreadable: dict[str, str] = {}
    counts = Counts()
    for key, offset in offsets.items():
        value, name = records[key][1], subject_of(key)
        is_known = known.offsets.get(key) == offset and name not in known.unreadable
        found: Schema | Subject | Counts | Unreadable
        if key.startswith(SCHEMA_PREFIX):
            version = int(key.rpartition(b"/")[2]) if is_known else 0
            found = known.schemas[name][version] if is_known else decode_schema(key, value)
        elif key.startswith(SUBJECT_PREFIX):
            found = known.subjects[name] if is_known else decode_subject(value)
        elif key == SCHEMAS_KEY:
            found = decode_counts(value)
        else:
            continue
        if isinstance(found, Unreadable):
            unreadable[name] = found.why
        elif isinstance(found, Schema):
            schemas.setdefault(name, {})[found.version] = found
        elif isinstance(found, Subject):
            subjects[name] = found
        else:
            counts = found
    every = [each for versions in schemas.values() for each in versions.values()]
    return Registry(
        schemas,
        subjects,
        counts,
        unreadable,
        offsets,
        {each.id: each for each in every},
        {each.digest: each.id for each in every},
        sum(len(each.text) for each in every),
    )


def checked_subject(subject: str) -> str:
    """Return the name of a subject. Raises InvalidRequest."""
    if is_subject(subject):
        return subject
    raise InvalidRequest(
        f"subject {subject[:SUBJECT_CHARS_MAX]!r}: a name has 1 to {SUBJECT_CHARS_MAX} letters, digits and signs of"
        " ._-; that of the values of a topic is TOPIC-value"
    )


def checked_mode(mode: str) -> str:
    """Return a compatibility mode. Raises InvalidRequest."""
    if mode and mode not in MODES:
        raise InvalidRequest(f"unknown compatibility {mode[:40]!r}; {did_you_mean(mode[:40], MODES)}")
    return mode


def parsed(kind: str, text: str) -> Parsed:
    """Return a schema that was read. Raises InvalidRequest."""
    if kind not in KINDS:
        raise InvalidRequest(f"unknown kind of schema {kind[:40]!r}: {', '.join(KINDS)}")
    try:
        found: Parsed = KINDS[kind].parse(text)
    except ImportError:
        raise InvalidRequest(
            f'the broker lacks the package {LIBRARIES.get(kind, kind)}: pip install "ledgermq[broker]"'
        ) from None
    return found


def judge(registry: Registry, subject: str, wanted: Parsed, mode: str = "") -> None:
    """Check a schema that would be the next version of a subject. `mode`: as it would be set with it.

    Raises IncompatibleSchema by the subject's mode, and in each mode if a table could not follow. A text that the
    subject has is not judged again.
    """
    registry.check_readable(subject)
    mode = mode or registry.mode(subject)
    others = registry.living(subject)
    if any(each.digest == wanted.digest for each in others):
        return  # it was judged before
    compared = others[-COMPARED_MAX:] if mode.endswith("_transitive") else others[-1:]
    why: list[str] = []
    for other in reversed(compared if mode != "none" else []):
        if other.kind != wanted.kind:
            why.append(f"version {other.version} is of kind {other.kind}")
            continue
        why += [f"version {other.version}: {text}" for text in _refusals(mode, wanted, parsed(other.kind, other.text))]
    if why:
        more = f" (and {len(why) - REASONS_MAX} more)" if len(why) > REASONS_MAX else ""
        raise IncompatibleSchema(
            f"the schema is not {mode} compatible with subject {subject!r}: {'; '.join(why[:REASONS_MAX])}{more}"
        )
    versions = registry.schemas.get(subject, {})
    if versions:
        numbered(versions[max(versions)].fields, wanted.fields, registry.counts.field_ids)


def _refusals(mode: str, wanted: Parsed, other: Parsed) -> list[str]:
    refusals, found = KINDS[wanted.kind].refusals, []
    if mode.startswith(("backward", "full")):
        found += refusals(wanted.model, other.model)
    if mode.startswith(("forward", "full")):
        found += [f"earlier readers: {text}" for text in refusals(other.model, wanted.model)]
    return found


def put(
    registry: Registry, subject: str, wanted: Parsed | None, mode: str, now_ms: int, created_by: str
) -> tuple[Schema | None, list[Record]]:
    """Return the version of a subject that has this schema, and what is to be written; nothing if it is there. The
    schema was judged by this registry (`judge`). `wanted`: None changes the `mode` only.

    Raises DataDamaged, ResourceExhausted, and IncompatibleSchema if the table could not follow.
    """
    registry.check_readable(subject)
    before = registry.subjects.get(subject, Subject())
    after = replace(before, compatibility=mode) if mode else before
    if wanted is None:
        return None, [(subject_key(subject), encode_subject(after))] if after != before else []
    for each in reversed(registry.living(subject)):
        if each.digest == wanted.digest:
            return each, [(subject_key(subject), encode_subject(after))] if after != before else []
    _check_room(registry, subject, wanted)
    counts, versions = registry.counts, registry.schemas.get(subject, {})
    earlier = versions[max(versions)].fields if versions else ()
    fields, field_ids = numbered(earlier, wanted.fields, counts.field_ids)
    id_ = registry.by_digest.get(wanted.digest) or counts.ids + 1
    counts = replace(counts, ids=max(counts.ids, id_), field_ids=field_ids)
    version = max([before.newest, *versions]) + 1
    schema = Schema(subject, version, id_, wanted.kind, wanted.text, wanted.digest, fields, now_ms, created_by)
    return schema, [
        (schema_key(subject, version), encode_schema(schema)),
        (subject_key(subject), encode_subject(replace(after, newest=version))),
        (SCHEMAS_KEY, encode_counts(counts)),
    ]


def _check_room(registry: Registry, subject: str, wanted: Parsed) -> None:
    if sum(map(len, registry.schemas.values())) >= SCHEMAS_MAX:
        raise ResourceExhausted(f"the cluster has {SCHEMAS_MAX} schemas, deleted ones included, the most that it keeps")
    if len(registry.schemas.get(subject, {})) >= VERSIONS_MAX:
        raise ResourceExhausted(
            f"subject {subject!r} has {VERSIONS_MAX} versions, the most of one: use another subject"
        )
    if registry.texts_bytes + len(wanted.text) > TEXTS_BYTES_MAX:
        raise ResourceExhausted(f"all schemas together have at most {TEXTS_BYTES_MAX} bytes, deleted ones included")


def delete(
    registry: Registry, subject: str, version: int, nonce: bytes, *, for_good: bool
) -> tuple[Sequence[int], list[Record]]:
    """Return the versions of a subject that are deleted then (`version` 0: all), and what is to be written. With a
    nonce that is known nothing is.

    Raises UnknownSchema, DataDamaged, and InvalidRequest to delete for good what was not deleted before.
    """
    registry.check_readable(subject)
    if nonce and nonce in registry.counts.nonces:
        return (), []
    newest = registry.version(subject, version, deleted=for_good)
    chosen = [newest] if version else registry.living(subject, deleted=for_good)
    gone = frozenset(each.version for each in chosen)
    before = registry.subjects.get(subject, Subject())
    if for_good and not gone <= before.deleted:
        raise InvalidRequest(f"subject {subject!r}: delete what is to be deleted for good without that first")
    after = replace(before, deleted=before.deleted | gone)
    if for_good:
        after = replace(before, deleted=before.deleted - gone, for_good=before.for_good | gone)
    counts = replace(registry.counts, nonces=with_nonce(registry.counts.nonces, nonce, NONCES_KEPT))
    return sorted(gone), [(subject_key(subject), encode_subject(after)), (SCHEMAS_KEY, encode_counts(counts))]
