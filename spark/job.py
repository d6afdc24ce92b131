"""Run Parquet compaction of a whole root as a Spark job, from a clone: spark-submit spark/job.py ROOT …"""

import sys

from ledgermq_spark.job import main

sys.exit(main(sys.argv[1:]))
