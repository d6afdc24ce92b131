"""Bounded pages of records, read without a consumer."""
