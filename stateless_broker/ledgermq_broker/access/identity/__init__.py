"""Prove who calls: brokers of this cluster, and callers with the signed tokens of an identity provider."""
