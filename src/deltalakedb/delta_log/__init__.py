"""The transaction log as files: `_delta_log` read and written through a store."""

from deltalakedb.delta_log.reader import FileTxnLogReader, open_file_log
from deltalakedb.delta_log.writer import FileTxnLogWriter

__all__ = ["FileTxnLogReader", "FileTxnLogWriter", "open_file_log"]
