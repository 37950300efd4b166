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
    convert_to_deltalake,
    enable_nanosecond_timestamps,
    init_tracing,
    rust_core_version,
)

from deltalakedb._version import __version__
from deltalakedb.lake import Catalog, open_log
from deltalakedb.table.delta_table import DeltaTable
from deltalakedb.table.writer import write_deltalake
from deltalakedb.transfer.export import ExportReport, export_table
from deltalakedb.transfer.findings import VerifyReport
from deltalakedb.transfer.importer import import_table
from deltalakedb.transfer.many import ManyReport, import_tables
from deltalakedb.transfer.plan import ImportPlan, plan_import
from deltalakedb.transfer.report import ImportProgress, ImportReport
from deltalakedb.transfer.rollback import RollbackReport, rollback_import
from deltalakedb.transfer.status import ImportStatus, import_status
from deltalakedb.transfer.verify import verify_table

__all__ = [
    "BloomFilterProperties",
    "Catalog",
    "ColumnProperties",
    "CommitProperties",
    "DataType",
    "DeltaTable",
    "ExportReport",
    "Field",
    "ImportPlan",
    "ImportProgress",
    "ImportReport",
    "ImportStatus",
    "ManyReport",
    "Metadata",
    "PostCommitHookProperties",
    "QueryBuilder",
    "RollbackReport",
    "Schema",
    "TableFeatures",
    "Transaction",
    "VariantType",
    "VerifyReport",
    "WriterProperties",
    "__version__",
    "convert_to_deltalake",
    "enable_nanosecond_timestamps",
    "export_table",
    "import_status",
    "import_table",
    "import_tables",
    "init_tracing",
    "open_log",
    "plan_import",
    "rollback_import",
    "rust_core_version",
    "verify_table",
    "write_deltalake",
]
