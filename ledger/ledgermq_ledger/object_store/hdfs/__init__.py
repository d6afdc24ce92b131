"""Objects as files of an HDFS."""
