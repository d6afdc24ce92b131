"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.client.schemas.admin import Schemas as AsyncSchemas
from ledgermq.client.schemas.descriptions import SchemaDescription, SubjectDescription
from ledgermq.client.schemas.serializer import SchemaSerializer
from ledgermq.protocol.naming.schema_ids import CONFLUENT
from ledgermq.sync.background import Background


class Schemas:
    """The methods of `client.schemas`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncSchemas) -> None:
        self._background = background
        self._inner = inner

    def put(self, subject: str, schema: Any, kind: str = "", *, compatibility: str = "") -> SchemaDescription:
        """Register a schema as the next version of a subject, and return it; a text that the subject has keeps its
        version. Texts are equal whatever their spacing.

        `schema`: text; a dictionary of Avro or JSON Schema; a class or a file that protoc has generated. `kind`: avro,
        json or protobuf; not needed for the latter two, of Protobuf. `compatibility`: set it for the subject as well,
        as `set_compatibility` does.

        Raises IncompatibleSchema, InvalidRequest, Unauthorized (it needs the right to produce to the topic),
        ResourceExhausted, Unavailable.
        """
        return self._background.run(self._inner.put(subject, schema, kind, compatibility=compatibility))

    def check(self, subject: str, schema: Any, kind: str = "", *, compatibility: str = "") -> SchemaDescription:
        """Judge a schema as `put` does, and return the version that it would be; change nothing. Raises as `put`; it
        needs the right to describe the topic only.
        """
        return self._background.run(self._inner.check(subject, schema, kind, compatibility=compatibility))

    def set_compatibility(self, subject: str, compatibility: str) -> str:
        """Set how the next version of a subject has to fit those before: none, backward (new readers read old values),
        forward (old readers read new values), full (both); with `_transitive` behind it, all of the newest hundred
        instead of the last. Return what is in force. A table has to be able to follow in each mode.

        Raises InvalidRequest, Unauthorized (it needs the right to alter the topic), Unavailable.
        """
        return self._background.run(self._inner.set_compatibility(subject, compatibility))

    def describe(self, subject: str, version: int = 0, *, deleted: bool = False) -> SchemaDescription:
        """Return a version of a subject with its text and fields, 0 the newest. `deleted`: one that is deleted, too.
        Raises UnknownSchema, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.describe(subject, version, deleted=deleted))

    def by_id(self, schema_id: int) -> SchemaDescription:
        """Return the schema of an id, also one that is deleted. Raises UnknownSchema, Unavailable."""
        return self._background.run(self._inner.by_id(schema_id))

    def find(self, subject: str, schema: Any, kind: str = "", *, deleted: bool = False) -> SchemaDescription:
        """Return the version of a subject that has this schema, given as for `put`. Raises UnknownSchema,
        InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.find(subject, schema, kind, deleted=deleted))

    def list(self, prefix: str = "", *, deleted: bool = False) -> Sequence[SubjectDescription]:
        """Return the subjects whose names begin so and which the caller may see, with their versions, without texts.
        `deleted`: deleted versions, too. Raises Unavailable.
        """
        return self._background.run(self._inner.list(prefix, deleted=deleted))

    def delete(self, subject: str, version: int = 0, *, for_good: bool = False) -> Sequence[int]:
        """Delete a version of a subject, or with 0 all; return their numbers. They are hidden, and the next version is
        not compared with them. `for_good`: hide forever what was deleted before. Ids and texts stay in each case,
        because records may need them, and are never given to another schema.

        The answer to an attempt may be lost; then the next one returns no numbers. Raises UnknownSchema,
        InvalidRequest, Unauthorized (it needs the right to delete the topic), Unavailable.
        """
        return self._background.run(self._inner.delete(subject, version, for_good=for_good))

    def serializer(
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
        return self._background.run(self._inner.serializer(subject, schema, kind, register=register, framing=framing))
