"""Filters: which messages a consumer wants, by their tag and headers. Pure: an expression as text, and rows in."""
