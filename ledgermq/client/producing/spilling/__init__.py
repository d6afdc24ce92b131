"""Batches that wait in a local file until a broker takes them."""
