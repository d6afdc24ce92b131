"""Leases without a member object: messages are leased by one call, and answered by another one through handles."""
