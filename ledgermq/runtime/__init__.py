"""Asyncio helpers that every package needs: back-off, waits, re-reads, tasks, a loop in a thread.

The lowest layer of the project: it imports only `ledgermq.errors` and `ledgermq.sources`.
"""
