"""Resolve the named types of an Avro schema: fields are found by the same paths when a schema is registered and when
values are decoded. Pure.
"""

from __future__ import annotations

from typing import Any

NAMED = ("record", "error", "enum", "fixed")
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
OWN = frozenset({*PRIMITIVES, *NAMED, "array", "map"})
"""What is no name of a type of the schema."""


def full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def branch_name(node: Any) -> str:
    """Return what the branch of a union with this type is called in a path."""
    return str(node if isinstance(node, str) else node.get("name") or node["type"])


class NamedTypes:
    """The named types of a schema, as far as it was gone through."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def resolved(self, node: Any, namespace: str) -> tuple[Any, str]:
        """Return the definition of a type with the namespace within it, and keep it for references to it. A union is
        returned as it is.
        """
        if isinstance(node, dict) and "name" in node and node.get("type") in NAMED:
            name = full_name(node["name"], node.get("namespace", namespace))
            self._known[name] = (node, name.rpartition(".")[0])
            return self._known[name]
        if isinstance(node, dict) and isinstance(node.get("type"), str) and node["type"] not in OWN:
            return self.resolved(node["type"], namespace)  # a reference that is written as an object
        if isinstance(node, str) and node not in OWN:
            return self._known.get(full_name(node, namespace)) or self._known[node]
        return node, namespace
