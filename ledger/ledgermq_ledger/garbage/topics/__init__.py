"""Garbage of topics: expired records, their files and versions, and topics that were removed."""
