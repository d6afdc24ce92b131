"""Keep consumer groups and committed offsets: a pure state, fed by a log.

`coordinator.GroupCoordinator` is the entry point. Nothing here uses asyncio, a store or a clock:
time is a parameter, and records are the result.
"""
