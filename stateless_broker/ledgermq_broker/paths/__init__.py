"""Paths of records through a broker: produce, fetch, look-up, deletion."""
