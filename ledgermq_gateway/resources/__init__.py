"""Handlers: one file for each group of resources."""
