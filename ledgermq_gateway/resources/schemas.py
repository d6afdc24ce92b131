"""The schema registry in Confluent's words, for serializers of others: what those of confluent-kafka call, and what
tools ask besides. Errors have `error_code` and `message` besides, as these programs read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.schemas.descriptions import SchemaDescription
from ledgermq.errors import IncompatibleSchema, InvalidRequest, LedgerMQError, UnknownSchema
from ledgermq_gateway.http.call import SCHEMA_JSON, Answer, Call, Handler
from ledgermq_gateway.http.problems import Problem, problem_of, status_of
from ledgermq_gateway.records.bodies import decode

NO_SUBJECT, NO_VERSION, NO_SCHEMA, NO_MODE, INVALID_SCHEMA = 40401, 40402, 40403, 40408, 42201
KINDS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
TYPES = {kind: type_ for type_, kind in KINDS.items()}
VERSION_MAX = 2**31 - 1
SWITCHES = ("normalize", "deleted", "permanent", "verbose", "defaultToGlobal")
"""Parameters that are true or false, in either case: some clients send True."""


class SchemaIn(Struct, kw_only=True, rename="camel"):
    """`schema`: text; of Protobuf the FileDescriptorProto in base64."""

    schema: str = ""
    schema_type: str | None = None
    references: list[Any] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


class SchemaOut(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """`id`: of the text; values are framed with it."""

    id: int
    schema: str = ""
    schema_type: str = ""
    subject: str = ""
    version: int = 0
    references: list[Any] = []


class ModeIn(Struct, kw_only=True):
    compatibility: Annotated[str, Meta(max_length=40)]


class ModeOut(Struct, kw_only=True, rename="camel"):
    compatibility_level: str


class ModeSet(Struct, kw_only=True):
    compatibility: str


class Judged(Struct, kw_only=True):
    is_compatible: bool
    messages: list[str]


_schema_in = msgspec.json.Decoder(SchemaIn)
_mode_in = msgspec.json.Decoder(ModeIn)


def in_their_words(code: int) -> Callable[[Handler], Handler]:
    """Let errors have what these programs read, besides. `code`: that of something unknown."""

    def decorator(handler: Handler) -> Handler:
        @wraps(handler)
        async def handle(call: Call) -> Any:
            for name in SWITCHES:
                if call.query.get(name, "true").lower() not in ("true", "false"):
                    raise Problem("INVALID_REQUEST", f"the parameter {name} is true or false")
            try:
                return await handler(call)
            except UnknownSchema as error:
                raise _refusal(error, 404, code) from None
            except IncompatibleSchema as error:
                raise _refusal(error, 409, 409) from None
            except InvalidRequest as error:
                raise _refusal(error, 422, INVALID_SCHEMA) from None
            except LedgerMQError as error:
                raise _refusal(error, status_of(error), status_of(error) * 100 + 1) from None

        return handle

    return decorator


def _refusal(error: LedgerMQError, status: int, code: int) -> Problem:
    found = problem_of(error, {"error_code": code, "message": error.message})
    found.status = status
    return found


def _answer(value: Any) -> Answer:
    return Answer(msgspec.json.encode(value), SCHEMA_JSON)


def _given(call: Call) -> tuple[str, str]:
    """Return kind and text of the schema in a body. Raises InvalidRequest."""
    given: SchemaIn = decode(_schema_in, call.body)
    type_ = given.schema_type or "AVRO"
    if type_ not in KINDS:
        raise InvalidRequest(f"schemaType {type_[:40]!r}: {', '.join(KINDS)}")
    for name, value in (("references", given.references), ("metadata", given.metadata), ("ruleSet", given.rule_set)):
        if value:
            raise InvalidRequest(f"{name} are not kept here: write the whole schema into one text")
    return KINDS[type_], given.schema


def _out(found: SchemaDescription) -> SchemaOut:
    return SchemaOut(
        id=found.id,
        schema=found.text,
        schema_type=TYPES.get(found.kind, found.kind),
        subject=found.subject,
        version=found.version,
    )


def _version(text: str) -> int:
    """Return the number of a version, 0 the newest. Raises InvalidRequest."""
    if text in ("latest", "-1"):
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= VERSION_MAX):
        raise InvalidRequest(f"version {text[:20]!r}: a number from 1 on, or latest")
    return int(text)


def _is_on(call: Call, name: str) -> bool:
    return call.query.get(name, "").lower() == "true"


async def get_associations(call: Call) -> Answer:
    """There are none: serializers go on with the name of the topic then."""
    raise Problem("NO_SUCH_PATH", "no topic is associated with another subject than its own")


@in_their_words(NO_SUBJECT)
async def register(call: Call) -> Answer:
    kind, text = _given(call)
    made = await call.caller.client.schemas.put(call.names["subject"], text, kind)
    return _answer(
        SchemaOut(id=made.id, schema=text, schema_type=TYPES[kind], subject=made.subject, version=made.version)
    )


@in_their_words(NO_SCHEMA)
async def look_up(call: Call) -> Answer:
    kind, text = _given(call)
    deleted = _is_on(call, "deleted")
    return _answer(_out(await call.caller.client.schemas.find(call.names["subject"], text, kind, deleted=deleted)))


@in_their_words(NO_SUBJECT)
async def get_version(call: Call) -> Answer:
    version, deleted = _version(call.names["version"]), _is_on(call, "deleted")
    return _answer(_out(await call.caller.client.schemas.describe(call.names["subject"], version, deleted=deleted)))


@in_their_words(NO_SCHEMA)
async def get_by_id(call: Call) -> Answer:
    text = call.names["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequest("an id is a number")
    found = await call.caller.client.schemas.by_id(int(text))
    return _answer(SchemaOut(id=found.id, schema=found.text, schema_type=TYPES.get(found.kind, found.kind)))


@in_their_words(NO_SUBJECT)
async def list_subjects(call: Call) -> Answer:
    found = await call.caller.client.schemas.list(call.query.get("subjectPrefix", ""), deleted=_is_on(call, "deleted"))
    return _answer([each.subject for each in found if each.versions])


@in_their_words(NO_SUBJECT)
async def list_versions(call: Call) -> Answer:
    subject = call.names["subject"]
    found = await call.caller.client.schemas.list(subject, deleted=_is_on(call, "deleted"))
    versions = [version.version for each in found if each.subject == subject for version in each.versions]
    if not versions:
        raise UnknownSchema(f"there is no subject {subject!r}")
    return _answer(versions)


@in_their_words(NO_SUBJECT)
async def delete_subject(call: Call) -> Answer:
    for_good = _is_on(call, "permanent")
    return _answer(list(await call.caller.client.schemas.delete(call.names["subject"], for_good=for_good)))


@in_their_words(NO_VERSION)
async def delete_version(call: Call) -> Answer:
    subject, for_good = call.names["subject"], _is_on(call, "permanent")
    schemas = call.caller.client.schemas
    version = _version(call.names["version"]) or (await schemas.describe(subject, deleted=for_good)).version
    await schemas.delete(subject, version, for_good=for_good)
    return _answer(version)


@in_their_words(NO_MODE)
async def get_mode(call: Call) -> Answer:
    """That of a subject; without one, what counts where none is set."""
    subject = call.names.get("subject", "")
    found = await call.caller.client.schemas.list(subject) if subject else []
    modes = [each.compatibility for each in found if each.subject == subject]
    if subject and not modes:
        raise UnknownSchema(f"there is no subject {subject!r}")
    return _answer(ModeOut(compatibility_level=(modes[0] if modes else "backward").upper()))


@in_their_words(NO_SUBJECT)
async def put_mode(call: Call) -> Answer:
    given: ModeIn = decode(_mode_in, call.body)
    mode = await call.caller.client.schemas.set_compatibility(call.names["subject"], given.compatibility.lower())
    return _answer(ModeSet(compatibility=mode.upper()))


@in_their_words(NO_VERSION)
async def judge(call: Call) -> Answer:
    """By the subject's mode, whatever version is named: that decides with which versions it is compared."""
    _version(call.names["version"])
    kind, text = _given(call)
    try:
        await call.caller.client.schemas.check(call.names["subject"], text, kind)
    except IncompatibleSchema as error:
        return _answer(Judged(is_compatible=False, messages=[error.message]))
    return _answer(Judged(is_compatible=True, messages=[]))
