"""Ranges of offsets that are planned in one process and read in another."""
