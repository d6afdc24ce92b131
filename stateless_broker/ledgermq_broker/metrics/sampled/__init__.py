"""Values that are too dear to read at each scrape: sampled in the background."""
