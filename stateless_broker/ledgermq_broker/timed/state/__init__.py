"""Decide about timed messages, purely: where they wait, which are due, and what a bundle has delivered.

There is no I/O and no clock here. A broker (`ledgermq_broker.timed`) passes blocks and the time in,
writes the records of each decision together with the data that belong to it, and delivers.
"""
