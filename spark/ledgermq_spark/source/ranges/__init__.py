"""Ranges of offsets that a query reads, also of moved partitions and of archives."""
