"""A SQL-backed metadata plane for Delta Lake: the names of ``deltalake``, plus catalogs.

Example:
    >>> from deltalakedb import DeltaTable, write_deltalake
    >>> write_deltalake("deltasql://sqlite//lake/meta.db?table=t&location=/lake/t", df)
    >>> DeltaTable("deltasql://sqlite//lake/meta.db?table=t").to_pandas()
"""

from deltalake import (
    BloomFilterProperties,
    ColumnProperties,
    CommitProperties,
    DataType,
    Field,
    Metadata,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    TableFeatures,
    Transaction,
    VariantType,
    WriterProperties,
    enable_nanosecond_timestamps,
    init_tracing,
    rust_core_version,
)

from deltalakedb._version import __version__
from deltalakedb.lake import Catalog, open_log
from deltalakedb.table.converting import convert_to_deltalake
from deltalakedb.table.delta_table import DeltaTable
from deltalakedb.table.writer import write_deltalake
from deltalakedb.transfer.importer import ImportReport, import_table

__all__ = [
    "BloomFilterProperties",
    "Catalog",
    "ColumnProperties",
    "CommitProperties",
    "DataType",
    "DeltaTable",
    "Field",
    "ImportReport",
    "Metadata",
    "PostCommitHookProperties",
    "QueryBuilder",
    "Schema",
    "TableFeatures",
    "Transaction",
    "VariantType",
    "WriterProperties",
    "__version__",
    "convert_to_deltalake",
    "enable_nanosecond_timestamps",
    "import_table",
    "init_tracing",
    "open_log",
    "rust_core_version",
    "write_deltalake",
]
