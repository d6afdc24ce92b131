"""What every room needs to run on asyncio: back-off, waits, re-reads, tasks, a loop in a thread.

The bottom floor of the project: it imports `ledgermq.errors` and `ledgermq.sources`, nothing else.
"""
