"""Make the OpenAPI 3.1 document from the table of routes and its msgspec types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ledgermq_gateway.api.route import Route
from ledgermq_gateway.http import problems

_REFERENCE = "#/components/schemas/{name}"
_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail", "retriable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "retriable": {"type": "boolean"},
        "retry_after_ms": {"type": "integer"},
        "instance": {"type": "string", "description": "Id of the request, which the logs have, too."},
    },
}
_PATTERN = r"^[A-Za-z0-9._~-]+$"


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the document. Every route is in it; an error of any kind is a `Problem`."""
    types = [kind for route in routes for kind in _types(route) if kind is not None]
    unique = list({id(kind): kind for kind in types}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    by_type = {id(kind): schema for kind, schema in zip(unique, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "LedgerMQ",
            "version": version,
            "description": "LedgerMQ over HTTP. Within /v1 fields are only added: ignore those you do not know.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(route: Route) -> list[Any]:
    return [*(route.body.types.values() if route.body else ()), *(route.answers or {}).values()]


def _operation(route: Route, schemas: Mapping[int, Any]) -> dict[str, Any]:
    words = re.findall(r"[A-Za-z0-9]+", route.path)
    found: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            **{str(status): _content("Done", route.answers or {}, schemas) for status in (route.status, *route.also)},
            "default": {
                "description": "A problem: `code` says which.",
                "content": {problems.CONTENT_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
            },
        },
    }
    if not route.public:
        found["security"] = [{"token": []}, {}]
    if route.body is not None:
        body = _content("", route.body.types, schemas)
        found["requestBody"] = {"required": not route.body.optional, "content": body["content"]}
    return found


def _parameters(route: Route) -> list[Any]:
    names = re.findall(r"{(\w+)}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in names] + [
        {
            "name": parameter.name,
            "in": parameter.place,
            "required": parameter.required,
            "description": parameter.help,
            "schema": dict(parameter.schema),
        }
        for parameter in route.parameters
    ]


def _path_schema(name: str) -> dict[str, Any]:
    if name == "partition":
        return {"type": "integer", "minimum": 0}
    return {"type": "string", "minLength": 1, "maxLength": 2000, "pattern": _PATTERN}


def _content(text: str, kinds: Mapping[str, Any], schemas: Mapping[int, Any]) -> dict[str, Any]:
    if not kinds:
        return {"description": text}
    return {
        "description": text,
        "content": {media: {"schema": schemas[id(kind)] if kind is not None else {}} for media, kind in kinds.items()},
    }
