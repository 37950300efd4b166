"""The same names for asyncio: methods and functions await, and no event loop is ever blocked.

Everything runs in a bounded pool of threads, by the synchronous implementation.

Example:
    >>> from deltalakedb.aio import Catalog, open_table, write_deltalake
    >>> await write_deltalake(uri, df, mode="append")
    >>> table = await open_table(uri)
    >>> async for batch in table.scan(columns=["id"]):
    ...     print(batch.num_rows)
"""

from deltalakedb import catalog
from deltalakedb.aio.catalogs import Catalog, Mirror, Transaction, TxnLog
from deltalakedb.aio.proxies import async_function, async_function_on_table
from deltalakedb.aio.streams import Batches, Stream
from deltalakedb.aio.tables import DeltaTable, TableAlterer, TableMerger, TableOptimizer, open_table
from deltalakedb.table import convert, writer
from deltalakedb.transfer import export, follow, importer, many, plan, rollback, status, verify

__all__ = [
    "Batches",
    "Catalog",
    "DeltaTable",
    "Mirror",
    "Stream",
    "TableAlterer",
    "TableMerger",
    "TableOptimizer",
    "Transaction",
    "TxnLog",
    "convert_to_deltalake",
    "export_table",
    "follow_table",
    "import_status",
    "import_table",
    "import_tables",
    "open_log",
    "open_table",
    "plan_import",
    "rollback_import",
    "verify_table",
    "write_deltalake",
]

write_deltalake = async_function_on_table(writer.write_deltalake, DeltaTable)
convert_to_deltalake = async_function(convert.convert_to_deltalake)
open_log = async_function(catalog.open_log, lambda log: TxnLog._of(log, None))
follow_table = async_function(follow.follow_table)
import_table = async_function(importer.import_table)
import_tables = async_function(many.import_tables)
import_status = async_function(status.import_status)
plan_import = async_function(plan.plan_import)
rollback_import = async_function(rollback.rollback_import)
verify_table = async_function(verify.verify_table)
export_table = async_function(export.export_table)
