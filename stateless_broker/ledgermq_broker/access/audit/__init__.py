"""The audit log of a broker."""
