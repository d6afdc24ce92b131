"""Segments: their bytes, their indexes, and the batches that they hold."""
