"""Objects as files of a local disk, or of a file system that machines share."""
