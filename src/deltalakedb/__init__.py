"""Delta Lake with its transaction log in a database: the names of ``deltalake``, plus catalogs.

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

    from deltalakedb.catalog import Catalog, CatalogSnapshot, open_log
    from deltalakedb.query import QueryBuilder
    from deltalakedb.registration import register, unregister
    from deltalakedb.settings import Config
    from deltalakedb.table.drop_in.delta_table import DeltaTable, write_deltalake
    from deltalakedb.table.drop_in.functions import convert_to_deltalake
    from deltalakedb.table.transaction import CatalogTransaction
    from deltalakedb.transfer.exporting import export_table
    from deltalakedb.transfer.following import follow_table
    from deltalakedb.transfer.importing.api import import_status, import_table, import_tables
    from deltalakedb.transfer.importing.plan import plan_import
    from deltalakedb.transfer.reports import (
        ExportReport,
        FollowReport,
        ImportPlan,
        ImportProgress,
        ImportReport,
        ImportStatus,
        ManyReport,
        RelocationReport,
        RestoreReport,
        RollbackReport,
        VerifyReport,
    )
    from deltalakedb.transfer.rollback import rollback_import
    from deltalakedb.transfer.verifying.verifier import verify_table
else:
    add_aliases()
    #: the module of each name of ours, imported when it is first used
    _HOMES = {
        "catalog": "Catalog CatalogSnapshot open_log",
        "query": "QueryBuilder",
        "registration": "register unregister",
        "settings": "Config",
        "table.drop_in.functions": "convert_to_deltalake",
        "table.drop_in.delta_table": "DeltaTable write_deltalake",
        "table.transaction": "CatalogTransaction",
        "transfer.exporting": "export_table",
        "transfer.following": "follow_table",
        "transfer.importing.api": "import_status import_table import_tables",
        "transfer.importing.plan": "plan_import",
        "transfer.reports": "ExportReport FollowReport ImportPlan ImportProgress ImportReport ImportStatus "
        "ManyReport RelocationReport RestoreReport RollbackReport VerifyReport",
        "transfer.rollback": "rollback_import",
        "transfer.verifying.verifier": "verify_table",
    }
    _own = {name: f"deltalakedb.{home}" for home, names in _HOMES.items() for name in names.split()}
    __getattr__ = stock_getattr(__name__, "deltalake", _own)

__all__ = [
    "BloomFilterProperties",
    "Catalog",
    "CatalogSnapshot",
    "CatalogTransaction",
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
    "RelocationReport",
    "RestoreReport",
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
