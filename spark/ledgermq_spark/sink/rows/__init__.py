"""Rows of a frame as records: columns checked, partitions computed, batches collected."""
