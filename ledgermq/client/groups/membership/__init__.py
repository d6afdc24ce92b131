"""A member: its heartbeats, its partitions and its offsets in transactions."""
