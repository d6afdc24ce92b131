"""Tables: live views of keyed topics."""
