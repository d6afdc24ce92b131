"""Schemas of subjects."""
