"""All surfaces by name."""

from __future__ import annotations

from tests.fuzz import input_surfaces, ledger_surfaces, parquet_surfaces, wire_surfaces
from tests.fuzz.surface import Surface


def all_surfaces() -> dict[str, Surface]:
    found = [*wire_surfaces.SURFACES, *ledger_surfaces.surfaces(), *parquet_surfaces.surfaces(), *input_surfaces.surfaces()]
    return {surface.name: surface for surface in found}
