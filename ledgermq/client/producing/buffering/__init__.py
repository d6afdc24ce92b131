"""Records that calls hand over, in the bounds of the buffer."""
