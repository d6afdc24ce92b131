"""Decide about schemas. Pure: no clock, no network, nothing of the broker."""
