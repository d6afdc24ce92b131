"""Register the data source by name: Spark finds `spark.read.format("ledgermq")` where this package
is installed.

Spark looks for it in a separate Python process, which need not be the program's interpreter. If
that interpreter lacks what the source needs, Spark still finds the source, and its first call
raises an error that names the interpreter.
"""

try:
    from ledgermq_spark.source.data_source import LedgerMQDataSource as DefaultSource
except (ImportError, AttributeError) as error:
    from pyspark_ledgermq.elsewhere import source_that_refuses

    DefaultSource = source_that_refuses(error)  # type: ignore[misc,assignment]

__all__ = ["DefaultSource"]
