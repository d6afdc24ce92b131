"""Administration of topics."""
