"""A route of the interface as data: everything that the server, the OpenAPI document and the tests need of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq_gateway.http.call import JSON, Handler
from ledgermq_gateway.http.problems import Problem


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header. `schema`: of JSON Schema."""

    name: str
    help: str
    schema: Mapping[str, Any]
    place: str = "query"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """`types`: by media type the type of msgspec that the body is, None for bytes. `optional`: it may be left out."""

    types: Mapping[str, Any]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`path`: with names in braces. `answers`: by media type the type of msgspec of the answer 200, None for bytes.
    `status`: of success; `also`: others, with the same answer. `public`: served without asking brokers who calls.
    `by_cookie`: whether the console's cookie may say who calls. `ends_with_caller`: a call that changes something is
    cancelled nevertheless when its caller leaves, because it undoes then what it did.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Mapping[str, Any] | None = None
    status: int = 200
    also: tuple[int, ...] = ()
    public: bool = False
    by_cookie: bool = True
    ends_with_caller: bool = False

    @property
    def changes(self) -> bool:
        """Return whether the call changes something."""
        return self.method != "GET"

    @property
    def goes_on(self) -> bool:
        """Return whether the call goes on to its end when its caller leaves."""
        return self.changes and not self.ends_with_caller

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


class Routes:
    """Finds routes. The same shape of path has one set of names."""

    def __init__(self, table: Sequence[Route]) -> None:
        self.table = tuple(table)
        self._by_length: dict[int, list[tuple[Route, tuple[str, ...]]]] = {}
        for route in self.table:
            segments = route.segments
            self._by_length.setdefault(len(segments), []).append((route, segments))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the variable parts of the path. Raises Problem (404, 405)."""
        segments = path.strip("/").split("/")
        fitting = [
            (route, names)
            for route, pattern in self._by_length.get(len(segments), ())
            if (names := _names(pattern, segments)) is not None
        ]
        least = min((len(names) for _, names in fitting), default=0)  # a literal segment comes before a name
        fitting = [(route, names) for route, names in fitting if len(names) == least]
        if not fitting:
            raise Problem("NO_SUCH_PATH", "there is no such path: /openapi.json lists them")
        for route, names in fitting:
            if route.method == method:
                return route, names
        methods = ", ".join(sorted({route.method for route, _ in fitting}))
        raise Problem("METHOD_NOT_ALLOWED", f"this path takes {methods}", headers=(("Allow", methods),))


def _names(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for part, segment in zip(pattern, segments, strict=True):
        if part.startswith("{"):
            found[part[1:-1]] = segment
        elif part != segment:
            return None
    return found


def check_query(route: Route, query: Mapping[str, str]) -> None:
    """Raise Problem for a parameter that the route does not have, or lacks."""
    known = [parameter for parameter in route.parameters if parameter.place == "query"]
    for name in query:
        if name not in {parameter.name for parameter in known}:
            raise Problem("INVALID_REQUEST", f"this path has no parameter {name[:40]!r}")
    for parameter in known:
        if parameter.required and parameter.name not in query:
            raise Problem("INVALID_REQUEST", f"the parameter {parameter.name} is missing: {parameter.help}")


def check_type(route: Route, content_type: str, has_body: bool) -> None:
    """Raise Problem where the type of the body is not one that the route takes."""
    if route.body is None:
        if has_body:
            raise Problem("INVALID_REQUEST", "this path takes no body: send none")
        return
    if not content_type and not has_body and route.body.optional:
        return
    if content_type not in route.body.types:
        raise Problem(
            "UNSUPPORTED_MEDIA_TYPE",
            f"send Content-Type: {' or '.join(route.body.types)}"
            + (
                "; there is no default, because any web page may send a body without a type" if not content_type else ""
            ),
        )


JSON_BODY = JSON
