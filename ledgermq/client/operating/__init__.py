"""What operators do with the work of programs: dead letters, unresolved messages, traces."""
