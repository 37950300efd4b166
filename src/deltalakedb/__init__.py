"""A SQL-backed metadata plane for Delta Lake: the names of ``deltalake``, plus catalogs.

Example:
    >>> from deltalakedb import DeltaTable, write_deltalake
    >>> write_deltalake("deltasql://sqlite//lake/meta.db?table=t&location=/lake/t", df)
    >>> DeltaTable("deltasql://sqlite//lake/meta.db?table=t").to_pandas()
"""

from typing import TYPE_CHECKING

from deltalakedb._stock import names_of
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

    from deltalakedb.lake import Catalog, open_log
    from deltalakedb.registration import register, unregister
    from deltalakedb.table.convert import convert_to_deltalake
    from deltalakedb.table.delta_table import DeltaTable
    from deltalakedb.table.writer import write_deltalake
    from deltalakedb.transfer.importer import ImportReport, import_table
else:
    __getattr__ = names_of(
        __name__,
        "deltalake",
        {
            "Catalog": "deltalakedb.lake",
            "DeltaTable": "deltalakedb.table.delta_table",
            "ImportReport": "deltalakedb.transfer.importer",
            "convert_to_deltalake": "deltalakedb.table.convert",
            "import_table": "deltalakedb.transfer.importer",
            "open_log": "deltalakedb.lake",
            "register": "deltalakedb.registration",
            "unregister": "deltalakedb.registration",
            "write_deltalake": "deltalakedb.table.writer",
        },
    )

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
    "register",
    "rust_core_version",
    "unregister",
    "write_deltalake",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
