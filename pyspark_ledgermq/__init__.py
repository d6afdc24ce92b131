"""By this name Spark finds the data source: `spark.read.format("ledgermq")` needs no registration
where the package is installed.

Spark asks for it in a Python process of its own, which need not be the program's. Where that one
lacks what the source needs, the source is still found, and the first thing that Spark does with it
raises an error that names the interpreter.
"""

try:
    from spark.source.data_source import LedgerMQDataSource as DefaultSource
except ImportError as error:
    from pyspark_ledgermq.elsewhere import source_that_refuses

    DefaultSource = source_that_refuses(error)  # type: ignore[misc,assignment]

__all__ = ["DefaultSource"]
