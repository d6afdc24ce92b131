"""Rules of what a client may ask, pure."""
