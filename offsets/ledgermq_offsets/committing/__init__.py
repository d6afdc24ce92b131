"""Committed offsets: committed, staged in a transaction, reset, expired."""
