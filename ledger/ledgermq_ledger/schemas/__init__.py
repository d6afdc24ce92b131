"""Schemas of values as they stand in `__metadata`, their fields and what these are named in tables. Pure."""
