"""Decide who may do what, purely: principals, access rules, and what is known of static tokens.

There is no I/O and no clock here. A broker (`stateless_broker.security`) feeds the records of
`__metadata` in, finds out which principal makes a call, and asks for each name that the call uses.
Must not know: gRPC, certificates, and where records lie.
"""
