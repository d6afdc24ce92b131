"""Which producer has a partition for itself (an exclusive producer).

Pure: no clock, no store, no event loop. `ledgermq_broker.exclusive` runs it.
"""
