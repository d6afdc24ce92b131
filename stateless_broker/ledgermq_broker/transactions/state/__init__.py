"""Decide about transactions, purely: the coordinator of transactional ids, and the participant of a bundle.

There is no I/O and no clock here. A broker (`ledgermq_broker.transactions`) passes calls and the
time in, writes the records of each decision, and sends the answer when they are durable.
"""
