"""The state of queues: which messages of a partition each queue group has finished, and to whom the others
are leased.

Pure: no clock, no store, no event loop. `ledgermq_broker.queues` runs it.
"""
