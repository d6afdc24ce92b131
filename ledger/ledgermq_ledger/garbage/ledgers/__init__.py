"""Garbage of a ledger: one module for each kind of its objects."""
