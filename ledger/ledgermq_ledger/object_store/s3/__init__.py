"""Objects in a bucket of S3: the store, and two libraries that send its requests."""
