"""Serve the calls about schemas: change them at the controller, answer from the catalog.

A schema is read and compared in a thread, before the controller's lock is taken: it may be large. The
decision under the lock counts only if the subject is as it was judged; otherwise it is judged again.
"""

from __future__ import annotations

import asyncio

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq.sources import Sources
from ledgermq_broker.cluster.heartbeat import SCHEMAS
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_broker.schemas.state.registry import (
    Record,
    Registry,
    checked_mode,
    checked_subject,
    delete,
    judge,
    parsed,
    put,
    registry_of,
)
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.schemas.records import Schema, schema_key, subject_key
from ledgermq_ledger.topics.catalog import Catalog

ATTEMPTS_MAX = 10
PRINCIPAL_CHARS_MAX = 300


class SchemaPath:
    """`run_blocking(function, …)` runs a function in a thread."""

    def __init__(
        self,
        controller: Controller,
        at_controller: AtController,
        metadata: Metadata,
        sources: Sources,
        run_blocking: RunBlocking,
    ) -> None:
        self._controller = controller
        self._at_controller = at_controller
        self._metadata = metadata
        self._sources = sources
        self._run_blocking = run_blocking
        self._registry = Registry()
        self._offset = -1
        self._judging = asyncio.Semaphore(1)
        """One schema is judged at a time, so that this takes at most one core."""

    async def put_schema(self, request: pb.PutSchemaRequest) -> pb.PutSchemaResponse:
        """Register a schema, or set a subject's compatibility, or both. Raises InvalidRequest, IncompatibleSchema,
        ResourceExhausted, Unavailable.
        """
        subject, mode = checked_subject(request.subject), checked_mode(request.compatibility)
        if not (request.kind or request.text or mode):
            raise InvalidRequest("name a schema with its kind, or a compatibility to set, or both")
        if request.dry_run:
            await self._metadata.catch_up()
            return await self._checked(request, mode)

        async def here() -> pb.PutSchemaResponse:
            for _ in range(ATTEMPTS_MAX):
                answer = await self._put(request, subject, mode)
                if answer is not None:
                    return answer
            raise Unavailable(f"other programs change subject {subject!r} all the time; retry", retry_after_ms=200)

        return await self._at_controller.run(request, here, lambda line, passed: line.put_schema(passed))

    async def describe_schema(self, request: pb.DescribeSchemaRequest) -> pb.DescribeSchemaResponse:
        """Return one schema, by id, by subject and version, or by subject and text. Raises UnknownSchema."""
        wanted = await self._parsed(request.kind, request.text) if request.text else None

        def find(registry: Registry) -> Schema:
            if request.id:
                return registry.of_id(request.id)
            subject = checked_subject(request.subject)
            if wanted is not None:
                return registry.same(subject, wanted, deleted=request.deleted)
            return registry.version(subject, request.version, deleted=request.deleted)

        await self._metadata.catch_up()
        registry = self._now()
        schema = find(registry)
        subjects = registry.subjects_of(schema.id) if request.id else ()
        return pb.DescribeSchemaResponse(
            schema=_to_wire(registry, schema, with_text=True),
            subjects=subjects,
            compatibility=registry.mode(schema.subject),
        )

    async def list_schemas(self, request: pb.ListSchemasRequest) -> pb.ListSchemasResponse:
        await self._metadata.catch_up()
        registry = self._now()
        names = {*registry.schemas, *registry.subjects, *registry.unreadable} - {""}
        found = []
        for name in sorted(each for each in names if each.startswith(request.prefix)):
            versions = registry.living(name, deleted=request.deleted)
            trouble = registry.unreadable.get(name, "")
            if versions or trouble or name not in registry.schemas:
                found.append(
                    pb.SchemaSubject(
                        subject=name,
                        compatibility=registry.mode(name),
                        versions=[_to_wire(registry, each) for each in versions],
                        trouble=trouble,
                    )
                )
        return pb.ListSchemasResponse(subjects=found)

    async def delete_schema(self, request: pb.DeleteSchemaRequest) -> pb.DeleteSchemaResponse:
        """Delete a version of a subject, or all. Raises UnknownSchema, InvalidRequest, Unavailable."""
        subject = checked_subject(request.subject)
        check_nonce(request.nonce)
        gone: list[int] = []

        def decide(catalog: Catalog) -> list[Record]:
            versions, records = delete(
                registry_of(catalog.others, self._registry),
                subject,
                request.version,
                request.nonce,
                for_good=request.for_good,
            )
            gone[:] = versions
            return records

        async def here() -> pb.DeleteSchemaResponse:
            await self._controller.put_rules(decide, SCHEMAS)
            return pb.DeleteSchemaResponse(versions=gone)

        return await self._at_controller.run(request, here, lambda line, passed: line.delete_schema(passed))

    def _now(self) -> Registry:
        catalog = self._metadata.catalog
        if self._offset != catalog.offset:
            self._registry, self._offset = registry_of(catalog.others, self._registry), catalog.offset
        return self._registry

    async def _parsed(self, kind: str, text: str) -> Parsed:
        async with self._judging:
            found: Parsed = await self._run_blocking(lambda: parsed(kind, text))
            return found

    async def _judged(self, registry: Registry, request: pb.PutSchemaRequest, mode: str) -> Parsed | None:
        if not request.kind and not request.text:
            registry.check_readable(request.subject)
            return None

        def work() -> Parsed:
            found = parsed(request.kind, request.text)
            judge(registry, request.subject, found, mode)
            return found

        async with self._judging:
            found: Parsed = await self._run_blocking(work)
            return found

    async def _checked(self, request: pb.PutSchemaRequest, mode: str) -> pb.PutSchemaResponse:
        registry = self._now()
        wanted = await self._judged(registry, request, mode)
        schema, _ = put(registry, request.subject, wanted, mode, 0, "")
        return _answer(registry, schema, mode or registry.mode(request.subject))

    async def _put(self, request: pb.PutSchemaRequest, subject: str, mode: str) -> pb.PutSchemaResponse | None:
        """Return None if the subject has changed while the schema was judged."""
        registry = self._now()
        wanted = await self._judged(registry, request, mode)
        found: list[Schema | None] = []

        def decide(catalog: Catalog) -> list[Record]:
            found.clear()
            now = registry_of(catalog.others, registry)
            if _basis(now, subject) != _basis(registry, subject):
                return []
            by = request.created_by[:PRINCIPAL_CHARS_MAX]
            schema, records = put(now, subject, wanted, mode, self._sources.now_ms(), by)
            found.append(schema)
            return records

        await self._controller.put_rules(decide, SCHEMAS)
        return _answer(self._now(), found[0], self._now().mode(subject)) if found else None


def _basis(registry: Registry, subject: str) -> tuple[int | None, int | None]:
    """Return what differs once a subject has changed: each change of it writes its record."""
    kept = registry.subjects.get(subject)
    newest = schema_key(subject, kept.newest) if kept is not None else b""
    return registry.offsets.get(subject_key(subject)), registry.offsets.get(newest)


def _answer(registry: Registry, schema: Schema | None, mode: str) -> pb.PutSchemaResponse:
    wire = None if schema is None else _to_wire(registry, schema)
    return pb.PutSchemaResponse(schema=wire, compatibility=mode)


def _to_wire(registry: Registry, schema: Schema, *, with_text: bool = False) -> pb.SchemaInfo:
    subject = registry.subjects.get(schema.subject)
    is_deleted = subject is not None and schema.version in subject.deleted | subject.for_good
    return pb.SchemaInfo(
        id=schema.id,
        subject=schema.subject,
        version=schema.version,
        kind=schema.kind,
        text=schema.text if with_text else "",
        fields=[
            pb.SchemaField(id=each.id, path=each.path, type=each.type, removed=each.removed) for each in schema.fields
        ]
        if with_text
        else (),
        created_ms=schema.created_ms,
        created_by=schema.created_by,
        deleted=is_deleted,
    )
