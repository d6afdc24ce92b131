"""What all processes that open a port share."""
