"""Decide who may do what, and how much, purely: principals, access rules, what is known of static tokens,
quotas.

There is no I/O and no clock here. A broker (`ledgermq_broker.access`) feeds the records of
`__metadata` in, finds out which principal makes a call, and asks for each name that the call uses.
Must not know: gRPC, certificates, and where records lie.
"""
