"""`ledgermq schema …`: register, check, show, list and delete schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ledgermq.cli.arguments.options import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    Debug,
    Output,
    OutputFormat,
    Target,
    Timeout,
    Yes,
)
from ledgermq.cli.output.exit_codes import EPILOG
from ledgermq.cli.output.report import Report, Rows, show, show_rows
from ledgermq.cli.output.reporting import command
from ledgermq.cli.output.terminal import confirm, notes
from ledgermq.cli.session import connected
from ledgermq.client.schemas.descriptions import SchemaDescription
from ledgermq.errors import InvalidRequest

Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Name of the subject: TOPIC-value for the values of a topic.")
]
File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help="File with the schema: .avsc is Avro, .json JSON Schema, .b64 a Protobuf FileDescriptorProto in base64.",
        show_default=False,
    ),
]
Kind = Annotated[
    str, typer.Option("--kind", help="avro, json or protobuf; not given: as FILE is named.", show_default=False)
]
Compatibility = Annotated[
    str,
    typer.Option(
        "--compatibility",
        "-C",
        help="Set for the subject: none, backward, forward or full, each but none with _transitive or without.",
        show_default=False,
    ),
]
Version = Annotated[
    int,
    typer.Option("--version", "-v", min=0, help="Number of the version; not given: the newest.", show_default=False),
]
Deleted = Annotated[bool, typer.Option("--deleted", help="Deleted versions, too.")]

KINDS = {".avsc": "avro", ".json": "json", ".b64": "protobuf"}
COLUMNS = ("subject", "version", "id", "kind", "compatibility", "created", "created_by", "deleted", "trouble")
FIELD_COLUMNS = ("id", "path", "type", "removed")


def register(app: typer.Typer) -> None:
    schema = typer.Typer(no_args_is_help=True, epilog=EPILOG)
    app.add_typer(schema, name="schema", help="Register, check, show, list and delete schemas of values.")
    command(schema, "put")(put)
    command(schema, "check")(check)
    command(schema, "list")(list_schemas)
    command(schema, "show")(show_schema)
    command(schema, "delete")(delete)


async def put(
    subject: Subject,
    file: File = None,
    kind: Kind = "",
    compatibility: Compatibility = "",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Register a schema as the next version of a subject, or set the subject's compatibility, or both.

    A schema that the subject has keeps its version. Examples:

    ledgermq schema put orders-value order.avsc

    ledgermq schema put orders-value --compatibility full_transitive
    """
    if file is None:
        if not compatibility:
            raise InvalidRequest("name a file with a schema, or --compatibility, or both")
        async with connected(target, timeout_s) as client:
            mode = await client.schemas.set_compatibility(subject, compatibility)
        show(Report("", {"subject": subject, "compatibility": mode}), output)
        return
    text, found = _read(file, kind)
    async with connected(target, timeout_s) as client:
        made = await client.schemas.put(subject, text, found, compatibility=compatibility)
    show(Report("", _facts(made)), output)


async def check(
    subject: Subject,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the schema, as for `ledgermq schema put`.")],
    kind: Kind = "",
    compatibility: Compatibility = "",
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Say whether a schema can be the next version of a subject, and change nothing."""
    text, found = _read(file, kind)
    async with connected(target, timeout_s) as client:
        would_be = await client.schemas.check(subject, text, found, compatibility=compatibility)
    show(Report("", _facts(would_be)), output)


async def list_schemas(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only subjects that begin so.", show_default=False)
    ] = "",
    deleted: Deleted = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """List subjects with their versions."""
    async with connected(target, timeout_s) as client:
        subjects = await client.schemas.list(prefix, deleted=deleted)
    rows: list[dict[str, Any]] = []
    for each in subjects:
        common = {"subject": each.subject, "compatibility": each.compatibility, "trouble": each.trouble}
        rows += [{**_facts(version), **common, "deleted": version.deleted} for version in each.versions] or [common]
    show_rows(Rows("schemas", COLUMNS, rows), output, "There are no schemas.")


async def show_schema(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT|ID", help="Name of the subject, or a schema's id.")],
    version: Version = 0,
    deleted: Deleted = False,
    target: Target = DEFAULT_TARGET,
    output: Output = OutputFormat.TABLE,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Show a schema with its text and the ids of its fields."""
    async with connected(target, timeout_s) as client:
        if subject.isascii() and subject.isdigit():
            found = await client.schemas.by_id(int(subject))
        else:
            found = await client.schemas.describe(subject, version, deleted=deleted)
    rows = [{"id": each.id, "path": each.path, "type": each.type, "removed": each.removed} for each in found.fields]
    facts = {**_facts(found), "deleted": found.deleted, "text": found.text}
    show(Report("", facts, [Rows("fields", FIELD_COLUMNS, rows)]), output)


async def delete(
    subject: Subject,
    version: Annotated[
        int, typer.Option("--version", "-v", min=0, help="Only this version; not given: all.", show_default=False)
    ] = 0,
    for_good: Annotated[bool, typer.Option("--for-good", help="Hide forever what was deleted before.")] = False,
    yes: Yes = False,
    target: Target = DEFAULT_TARGET,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    debug: Debug = False,
) -> None:
    """Delete a version of a subject, or all. Ids and texts stay, because records may need them."""
    if not yes:
        what = f"version {version}" if version else "all versions"
        confirm(f"Delete {what} of subject {subject}{' for good' if for_good else ''}?")
    async with connected(target, timeout_s) as client:
        versions = await client.schemas.delete(subject, version, for_good=for_good)
    notes().print(
        f"Deleted of subject {subject}: {', '.join(map(str, versions)) or 'what an earlier attempt had deleted'}."
    )


def _read(file: Path, kind: str) -> tuple[str, str]:
    found = kind or KINDS.get(file.suffix, "")
    if not found:
        raise InvalidRequest(f"the name of {file} does not say which kind of schema it has: give --kind")
    try:
        return file.read_text(encoding="utf-8"), found
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error


def _facts(found: SchemaDescription) -> dict[str, Any]:
    return {
        "subject": found.subject,
        "version": found.version,
        "id": found.id,
        "kind": found.kind,
        "compatibility": found.compatibility,
        "created": found.created.isoformat(timespec="seconds") if found.created else None,
        "created_by": found.created_by,
    }
