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


class _Place:
    """What the routes have in common that begin with the same segments."""

    __slots__ = ("by_segment", "named", "routes")

    def __init__(self) -> None:
        self.by_segment: dict[str, _Place] = {}
        self.named: _Place | None = None
        self.routes: dict[str, tuple[Route, tuple[tuple[int, str], ...]]] = {}
        """By method the route that ends here, and the places and names of the segments that vary."""

    def of(self, segment: str) -> _Place:
        """Return the place behind a segment of a pattern; make it if there is none."""
        if not segment.startswith("{"):
            return self.by_segment.setdefault(segment, _Place())
        if self.named is None:
            self.named = _Place()
        return self.named

    def find(self, segments: Sequence[str], at: int = 0) -> _Place | None:
        """Return the place of a path; a literal segment comes before a name."""
        if at == len(segments):
            return self if self.routes else None
        found = None
        if (literal := self.by_segment.get(segments[at])) is not None:
            found = literal.find(segments, at + 1)
        if found is None and self.named is not None:
            found = self.named.find(segments, at + 1)
        return found


class Routes:
    """Finds routes. The same shape of path has one set of names."""

    def __init__(self, table: Sequence[Route]) -> None:
        self.table = tuple(table)
        self._root = _Place()
        for route in self.table:
            place = self._root
            for segment in route.segments:
                place = place.of(segment)
            names = [(at, part[1:-1]) for at, part in enumerate(route.segments) if part.startswith("{")]
            place.routes[route.method] = route, tuple(names)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the variable parts of the path. Raises Problem (404, 405)."""
        segments = path.strip("/").split("/")
        place = self._root.find(segments)
        if place is None:
            raise Problem("NO_SUCH_PATH", "there is no such path: /openapi.json lists them")
        if method not in place.routes:
            methods = ", ".join(sorted(place.routes))
            raise Problem("METHOD_NOT_ALLOWED", f"this path takes {methods}", headers=(("Allow", methods),))
        route, names = place.routes[method]
        return route, {name: segments[at] for at, name in names}


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


def preflight(routes: Routes, path: str) -> tuple[tuple[str, str], ...]:
    """Return the headers that say to a browser what pages of other sites may ask of a path."""
    methods = []
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        try:
            routes.find(method, path)
        except Problem:
            continue
        methods.append(method)
    return (
        ("Access-Control-Allow-Methods", ", ".join(methods)),
        (
            "Access-Control-Allow-Headers",
            "authorization, content-type, idempotency-key, last-event-id, traceparent, tracestate",
        ),
        ("Access-Control-Max-Age", "600"),
    )
