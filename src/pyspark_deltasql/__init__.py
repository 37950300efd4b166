"""Found by Spark through its name: makes ``format("deltasql")`` known wherever the package is installed."""

from deltalakedb.spark.data_source import DeltaSqlSource as DefaultSource

__all__ = ["DefaultSource"]
