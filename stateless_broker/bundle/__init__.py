"""One owned bundle: what a broker does with a ledger while the term is its own.

Knows nothing of gRPC, other brokers and routing.
"""
