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
    from deltalakedb.table.drop_in.convert import convert_to_deltalake
    from deltalakedb.table.drop_in.delta_table import DeltaTable
    from deltalakedb.table.drop_in.query_builder import QueryBuilder
    from deltalakedb.table.write.write import write_deltalake
    from deltalakedb.transfer.exporting.export import ExportReport, export_table
    from deltalakedb.transfer.following import FollowReport, follow_table
    from deltalakedb.transfer.importing.api import import_table
    from deltalakedb.transfer.importing.many import ManyReport, import_tables
    from deltalakedb.transfer.importing.plan import ImportPlan, plan_import
    from deltalakedb.transfer.importing.report import (
        ImportProgress,
        ImportReport,
        ImportStatus,
        import_status,
    )
    from deltalakedb.transfer.rollback import RollbackReport, rollback_import
    from deltalakedb.transfer.verifying.report import VerifyReport
    from deltalakedb.transfer.verifying.verifier import verify_table
else:
    add_aliases()
    __getattr__ = stock_getattr(
        __name__,
        "deltalake",
        {
            "Catalog": "deltalakedb.catalog",
            "Config": "deltalakedb.settings",
            "DeltaTable": "deltalakedb.table.drop_in.delta_table",
            "ExportReport": "deltalakedb.transfer.exporting.export",
            "FollowReport": "deltalakedb.transfer.following",
            "ImportPlan": "deltalakedb.transfer.importing.plan",
            "ImportProgress": "deltalakedb.transfer.importing.report",
            "ImportReport": "deltalakedb.transfer.importing.report",
            "ImportStatus": "deltalakedb.transfer.importing.report",
            "ManyReport": "deltalakedb.transfer.importing.many",
            "QueryBuilder": "deltalakedb.table.drop_in.query_builder",
            "RollbackReport": "deltalakedb.transfer.rollback",
            "VerifyReport": "deltalakedb.transfer.verifying.report",
            "convert_to_deltalake": "deltalakedb.table.drop_in.convert",
            "export_table": "deltalakedb.transfer.exporting.export",
            "follow_table": "deltalakedb.transfer.following",
            "import_status": "deltalakedb.transfer.importing.report",
            "import_table": "deltalakedb.transfer.importing.api",
            "import_tables": "deltalakedb.transfer.importing.many",
            "open_log": "deltalakedb.catalog",
            "plan_import": "deltalakedb.transfer.importing.plan",
            "register": "deltalakedb.registration",
            "rollback_import": "deltalakedb.transfer.rollback",
            "unregister": "deltalakedb.registration",
            "verify_table": "deltalakedb.transfer.verifying.verifier",
            "write_deltalake": "deltalakedb.table.write.write",
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
