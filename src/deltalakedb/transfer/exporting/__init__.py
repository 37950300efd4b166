"""Exporting: a table of the catalog becomes a plain Delta table, elsewhere or in place."""
