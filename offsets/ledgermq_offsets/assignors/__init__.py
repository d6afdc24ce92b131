"""Assign partitions to members: pure functions from a `Problem` to a target."""
