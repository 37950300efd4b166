"""SQL over tables, under the name that ``deltalake`` gives it."""

from deltalakedb.table.query_builder import QueryBuilder

__all__ = ["QueryBuilder"]
