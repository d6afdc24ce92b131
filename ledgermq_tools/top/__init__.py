"""`ledgermq top`: what several brokers do right now, from the text that their admin ports give
Prometheus.

That text and not the status API, because it has the rates, the latencies and the bill already, and
needs no connection to a cluster that may be in trouble.
"""
