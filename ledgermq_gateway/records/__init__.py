"""Records over HTTP: written, read in pages, and as a stream of events."""
