"""Run `ledgermq top`: show what several brokers do right now, from the Prometheus text of their
admin ports.

It reads that text and not the status API, because the text already has the rates, the latencies and
the bill. It also needs no connection to a cluster that may be in trouble.
"""
