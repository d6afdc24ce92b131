"""Routes of the schema registry, below /registry: the URL that serializers of confluent-kafka are given."""

from __future__ import annotations

from dataclasses import replace

from ledgermq_gateway.api.route import Body, Parameter, Route
from ledgermq_gateway.http.call import JSON, SCHEMA_JSON
from ledgermq_gateway.resources import schemas
from ledgermq_gateway.resources.parameters import switch, text

BASE = "/registry"
SUBJECT = f"{BASE}/subjects/{{subject}}"
VERSION = f"{SUBJECT}/versions/{{version}}"
BODY = Body({SCHEMA_JSON: schemas.SchemaIn, JSON: schemas.SchemaIn})
ANSWER = {SCHEMA_JSON: schemas.SchemaOut}
NORMALIZE = switch("normalize", "Texts are equal whatever their spacing, with it and without.")
DELETED = switch("deleted", "Deleted versions, too.")
PERMANENT = switch("permanent", "Hide forever what was deleted before.")
FORMAT = text("format", "Of Protobuf every form is the FileDescriptorProto in base64.")


def registry_routes() -> list[Route]:
    """Return the routes; the console has none of them."""
    return [replace(route, by_cookie=False) for route in _routes()]


def _routes() -> list[Route]:
    return [
        *_of_serializers(),
        Route(
            "GET",
            f"{BASE}/subjects",
            schemas.list_subjects,
            "Names of subjects.",
            (text("subjectPrefix", "Only names that begin with this."), DELETED),
            answers={SCHEMA_JSON: list[str]},
        ),
        Route(
            "GET",
            f"{SUBJECT}/versions",
            schemas.list_versions,
            "Numbers of a subject's versions.",
            (DELETED,),
            answers={SCHEMA_JSON: list[int]},
        ),
        Route(
            "DELETE",
            SUBJECT,
            schemas.delete_subject,
            "Delete all versions of a subject.",
            (PERMANENT,),
            answers={SCHEMA_JSON: list[int]},
        ),
        Route(
            "DELETE",
            VERSION,
            schemas.delete_version,
            "Delete a version of a subject.",
            (PERMANENT,),
            answers={SCHEMA_JSON: int},
        ),
        Route(
            "POST",
            f"{BASE}/compatibility/subjects/{{subject}}/versions/{{version}}",
            schemas.judge,
            "Whether a schema can be the next version, by the subject's compatibility.",
            (NORMALIZE, switch("verbose", "The answer says why in each case.")),
            BODY,
            {SCHEMA_JSON: schemas.Judged},
        ),
        *_modes(),
    ]


def _of_serializers() -> list[Route]:
    return [
        Route(
            "GET",
            f"{BASE}/associations/resources/-/{{topic}}",
            schemas.get_associations,
            "Always 404: a topic's subject is the one of its name.",
            (text("resourceType", "topic"), text("associationType", "value or key")),
            answers={SCHEMA_JSON: schemas.SchemaOut},
        ),
        Route(
            "POST",
            f"{SUBJECT}/versions",
            schemas.register,
            "Register a schema as the next version of a subject.",
            (NORMALIZE,),
            BODY,
            ANSWER,
        ),
        Route(
            "POST",
            SUBJECT,
            schemas.look_up,
            "The version of a subject with this schema.",
            (NORMALIZE, DELETED, FORMAT),
            BODY,
            ANSWER,
        ),
        Route(
            "GET",
            VERSION,
            schemas.get_version,
            "A version of a subject, or latest.",
            (DELETED, FORMAT),
            answers=ANSWER,
        ),
        Route(
            "GET",
            f"{BASE}/schemas/ids/{{id}}",
            schemas.get_by_id,
            "The schema of an id.",
            (
                text("subject", "Of no consequence: an id has one text."),
                FORMAT,
                Parameter("fetchMaxId", "Of no consequence.", {"type": "string"}),
            ),
            answers=ANSWER,
        ),
    ]


def _modes() -> list[Route]:
    one = f"{BASE}/config/{{subject}}"
    mode = {SCHEMA_JSON: schemas.ModeOut}
    default = switch("defaultToGlobal", "Of no consequence: a subject always has a mode.")
    return [
        Route("GET", f"{BASE}/config", schemas.get_mode, "The compatibility of subjects without one.", answers=mode),
        Route("GET", one, schemas.get_mode, "The compatibility of a subject.", (default,), answers=mode),
        Route(
            "PUT",
            one,
            schemas.put_mode,
            "Set the compatibility of a subject.",
            body=Body({SCHEMA_JSON: schemas.ModeIn, JSON: schemas.ModeIn}),
            answers={SCHEMA_JSON: schemas.ModeSet},
        ),
    ]
