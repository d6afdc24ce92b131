"""Administration of schemas: register, check, describe, list, delete. A change is in force when its call returns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ledgermq.client.context import ClientContext
from ledgermq.client.schemas.descriptions import SchemaDescription, SchemaField, SubjectDescription, schema_text
from ledgermq.client.schemas.serializer import SchemaSerializer, codec_of
from ledgermq.errors import InvalidConfig, UnknownSchema
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.schema_ids import CONFLUENT, FRAMINGS


class Schemas:
    """The methods of `client.schemas`. Every call ends within the client's `timeout_s`. A subject is judged by the
    access rules of the topic of its name, without `-value` or `-key` at its end.
    """

    def __init__(self, context: ClientContext) -> None:
        self._connections = context.connections
        self._sources = context.sources

    async def put(self, subject: str, schema: Any, kind: str = "", *, compatibility: str = "") -> SchemaDescription:
        """Register a schema as the next version of a subject, and return it; a text that the subject has keeps its
        version. Texts are equal whatever their spacing.

        `schema`: text; a dictionary of Avro or JSON Schema; a class or a file that protoc has generated. `kind`: avro,
        json or protobuf; not needed for the latter two, of Protobuf. `compatibility`: set it for the subject as well,
        as `set_compatibility` does.

        Raises IncompatibleSchema, InvalidRequest, Unauthorized (it needs the right to produce to the topic),
        ResourceExhausted, Unavailable.
        """
        return await self._put(subject, schema, kind, compatibility, dry_run=False)

    async def check(self, subject: str, schema: Any, kind: str = "", *, compatibility: str = "") -> SchemaDescription:
        """Judge a schema as `put` does, and return the version that it would be; change nothing. Raises as `put`; it
        needs the right to describe the topic only.
        """
        return await self._put(subject, schema, kind, compatibility, dry_run=True)

    async def set_compatibility(self, subject: str, compatibility: str) -> str:
        """Set how the next version of a subject has to fit those before: none, backward (new readers read old values),
        forward (old readers read new values), full (both); with `_transitive` behind it, all of the newest hundred
        instead of the last. Return what is in force. A table has to be able to follow in each mode.

        Raises InvalidRequest, Unauthorized (it needs the right to alter the topic), Unavailable.
        """
        request = pb.PutSchemaRequest(subject=subject, compatibility=compatibility)
        answer = await self._connections.ask(lambda at: at.put_schema(request), self._connections.deadline())
        return answer.compatibility

    async def describe(self, subject: str, version: int = 0, *, deleted: bool = False) -> SchemaDescription:
        """Return a version of a subject with its text and fields, 0 the newest. `deleted`: one that is deleted, too.
        Raises UnknownSchema, Unauthorized, Unavailable.
        """
        return await self._describe(pb.DescribeSchemaRequest(subject=subject, version=version, deleted=deleted))

    async def by_id(self, schema_id: int) -> SchemaDescription:
        """Return the schema of an id, also one that is deleted. Raises UnknownSchema, Unavailable."""
        if not 1 <= schema_id < 2**32:
            raise UnknownSchema(f"there is no schema with the id {schema_id}")
        return await self._describe(pb.DescribeSchemaRequest(id=schema_id))

    async def find(self, subject: str, schema: Any, kind: str = "", *, deleted: bool = False) -> SchemaDescription:
        """Return the version of a subject that has this schema, given as for `put`. Raises UnknownSchema,
        InvalidRequest, Unauthorized, Unavailable.
        """
        kind, text = schema_text(schema, kind)
        return await self._describe(pb.DescribeSchemaRequest(subject=subject, kind=kind, text=text, deleted=deleted))

    async def list(self, prefix: str = "", *, deleted: bool = False) -> Sequence[SubjectDescription]:
        """Return the subjects whose names begin so and which the caller may see, with their versions, without texts.
        `deleted`: deleted versions, too. Raises Unavailable.
        """
        request = pb.ListSchemasRequest(prefix=prefix, deleted=deleted)
        answer = await self._connections.ask(lambda at: at.list_schemas(request), self._connections.deadline())
        return [
            SubjectDescription(
                each.subject, each.compatibility, [_described(version) for version in each.versions], each.trouble
            )
            for each in answer.subjects
        ]

    async def delete(self, subject: str, version: int = 0, *, for_good: bool = False) -> Sequence[int]:
        """Delete a version of a subject, or with 0 all; return their numbers. They are hidden, and the next version is
        not compared with them. `for_good`: hide forever what was deleted before. Ids and texts stay in each case,
        because records may need them, and are never given to another schema.

        The answer to an attempt may be lost; then the next one returns no numbers. Raises UnknownSchema,
        InvalidRequest, Unauthorized (it needs the right to delete the topic), Unavailable.
        """
        request = pb.DeleteSchemaRequest(
            subject=subject, version=version, for_good=for_good, nonce=self._sources.new_id()
        )
        answer = await self._connections.ask(lambda at: at.delete_schema(request), self._connections.deadline())
        return list(answer.versions)

    async def serializer(
        self, subject: str, schema: Any = None, kind: str = "", *, register: bool = True, framing: str = CONFLUENT
    ) -> SchemaSerializer:
        """Return a serializer of a subject's values, for `serializer=` and `deserializer=`. Values begin with the id of
        their schema, as those of Confluent's serializers do. It belongs to this client, which has to be open.

        `schema`, `kind`: as for `put`; None: the subject's newest. Of Protobuf the class that protoc has generated.
        `register`: put the schema if the subject lacks it; otherwise it has to be there. `framing`: confluent; header
        for bare values whose record names the schema in a header, which producers with this serializer write; or none
        for bare values, which are all of this one schema. Avro needs the extra "avro", JSON Schema "schemas".

        Values: dictionaries of Avro, which are converted to the schema whichever they were written by; what JSON has,
        validated in both directions; messages of Protobuf. Raises InvalidConfig, and what `put` and `find` raise.
        """
        if framing not in FRAMINGS:
            raise InvalidConfig(f"framing must be one of {', '.join(FRAMINGS)}, not {framing[:40]!r}")
        if schema is None:
            own = await self.describe(subject)
            return SchemaSerializer(codec_of(own.kind, None, own.text, framing), own, framing, self.by_id)
        kind, text = schema_text(schema, kind)
        codec = codec_of(kind, schema, text, framing)
        if register:
            found = await self._put(subject, schema, kind, "", dry_run=False)
            own = await self.describe(subject, found.version)
        else:
            own = await self.find(subject, schema, kind)
        return SchemaSerializer(codec, own, framing, self.by_id)

    async def _put(self, subject: str, schema: Any, kind: str, mode: str, *, dry_run: bool) -> SchemaDescription:
        kind, text = schema_text(schema, kind)
        request = pb.PutSchemaRequest(subject=subject, kind=kind, text=text, compatibility=mode, dry_run=dry_run)
        answer = await self._connections.ask(lambda at: at.put_schema(request), self._connections.deadline())
        return _described(answer.schema, compatibility=answer.compatibility)

    async def _describe(self, request: pb.DescribeSchemaRequest) -> SchemaDescription:
        answer = await self._connections.ask(lambda at: at.describe_schema(request), self._connections.deadline())
        return _described(answer.schema, compatibility=answer.compatibility, subjects=tuple(answer.subjects))


def _described(found: pb.SchemaInfo, *, compatibility: str = "", subjects: Sequence[str] = ()) -> SchemaDescription:
    return SchemaDescription(
        found.id,
        found.subject,
        found.version,
        found.kind,
        found.text,
        tuple(SchemaField(each.id, each.path, each.type, each.removed) for each in found.fields),
        datetime.fromtimestamp(found.created_ms / 1000, UTC) if found.created_ms else None,
        found.created_by,
        found.deleted,
        compatibility,
        subjects,
    )
