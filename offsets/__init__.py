"""Consumer groups and committed offsets: a pure state, fed by a log.

`coordinator.GroupCoordinator` is the door. Nothing here knows asyncio, a store or a clock: time is
a parameter, records are the result.
"""
