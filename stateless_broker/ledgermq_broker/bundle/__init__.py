"""Own one bundle: what a broker does with a ledger during its term.

Must not know gRPC, other brokers and routing.
"""
