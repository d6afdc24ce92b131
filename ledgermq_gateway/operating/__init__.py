"""What operators do over HTTP: dead letters, unresolved messages, traces."""
