"""Serve queue groups in the brokers that own the bundles of their partitions (docs/design.md, chapter 18)."""
