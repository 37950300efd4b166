"""The transaction log as files: `_delta_log` read and written through a store."""

from deltalakedb.delta_log.commit_file import FileTxnLogWriter
from deltalakedb.delta_log.reader import FileTxnLogReader, open_file_log

__all__ = ["FileTxnLogReader", "FileTxnLogWriter", "open_file_log"]
