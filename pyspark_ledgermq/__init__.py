"""By this name Spark finds the data source: `spark.read.format("ledgermq")` needs no registration where the package is installed."""

from spark.source.data_source import LedgerMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
