"""Decide about transactions, purely: the coordinator of transactional ids, and the participant of a bundle.

No I/O, no clock: a broker (`stateless_broker.transactions`) gives them calls and time, writes the
records of their decisions, and sends answers when those are durable.
"""
