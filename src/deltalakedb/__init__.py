"""A SQL-backed metadata plane for Delta Lake: the names of ``deltalake``, plus catalogs.

Example:
    >>> from deltalakedb import DeltaTable, write_deltalake
    >>> write_deltalake("deltasql://sqlite//lake/meta.db?table=t&location=/lake/t", df)
    >>> DeltaTable("deltasql://sqlite//lake/meta.db?table=t").to_pandas()
"""

from typing import TYPE_CHECKING

from deltalakedb._stock import add_aliases, stock_getattr
from deltalakedb._version import __version__

if TYPE_CHECKING:
    from deltalake import (
        BloomFilterProperties,
        ColumnProperties,
        CommitProperties,
        DataType,
        Field,
        Metadata,
        PostCommitHookProperties,
        Schema,
        TableFeatures,
        Transaction,
        VariantType,
        WriterProperties,
        enable_nanosecond_timestamps,
        init_tracing,
        rust_core_version,
    )

    from deltalakedb.catalog import Catalog, open_log
    from deltalakedb.registration import register, unregister
    from deltalakedb.settings import Config
    from deltalakedb.table.convert import convert_to_deltalake
    from deltalakedb.table.delta_table import DeltaTable
    from deltalakedb.table.query_builder import QueryBuilder
    from deltalakedb.table.writer import write_deltalake
    from deltalakedb.transfer.export import ExportReport, export_table
    from deltalakedb.transfer.findings import VerifyReport
    from deltalakedb.transfer.follow import FollowReport, follow_table
    from deltalakedb.transfer.importer import import_table
    from deltalakedb.transfer.many import ManyReport, import_tables
    from deltalakedb.transfer.plan import ImportPlan, plan_import
    from deltalakedb.transfer.report import ImportProgress, ImportReport
    from deltalakedb.transfer.rollback import RollbackReport, rollback_import
    from deltalakedb.transfer.status import ImportStatus, import_status
    from deltalakedb.transfer.verify import verify_table
else:
    add_aliases()
    __getattr__ = stock_getattr(
        __name__,
        "deltalake",
        {
            "Catalog": "deltalakedb.catalog",
            "Config": "deltalakedb.settings",
            "DeltaTable": "deltalakedb.table.delta_table",
            "ExportReport": "deltalakedb.transfer.export",
            "FollowReport": "deltalakedb.transfer.follow",
            "ImportPlan": "deltalakedb.transfer.plan",
            "ImportProgress": "deltalakedb.transfer.report",
            "ImportReport": "deltalakedb.transfer.report",
            "ImportStatus": "deltalakedb.transfer.status",
            "ManyReport": "deltalakedb.transfer.many",
            "QueryBuilder": "deltalakedb.table.query_builder",
            "RollbackReport": "deltalakedb.transfer.rollback",
            "VerifyReport": "deltalakedb.transfer.findings",
            "convert_to_deltalake": "deltalakedb.table.convert",
            "export_table": "deltalakedb.transfer.export",
            "follow_table": "deltalakedb.transfer.follow",
            "import_status": "deltalakedb.transfer.status",
            "import_table": "deltalakedb.transfer.importer",
            "import_tables": "deltalakedb.transfer.many",
            "open_log": "deltalakedb.catalog",
            "plan_import": "deltalakedb.transfer.plan",
            "register": "deltalakedb.registration",
            "rollback_import": "deltalakedb.transfer.rollback",
            "unregister": "deltalakedb.registration",
            "verify_table": "deltalakedb.transfer.verify",
            "write_deltalake": "deltalakedb.table.writer",
        },
    )

__all__ = [
    "BloomFilterProperties",
    "Catalog",
    "ColumnProperties",
    "CommitProperties",
    "Config",
    "DataType",
    "DeltaTable",
    "ExportReport",
    "Field",
    "FollowReport",
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
    "follow_table",
    "import_status",
    "import_table",
    "import_tables",
    "init_tracing",
    "open_log",
    "plan_import",
    "register",
    "rollback_import",
    "rust_core_version",
    "unregister",
    "verify_table",
    "write_deltalake",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
