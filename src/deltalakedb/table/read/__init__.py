"""Reading a table: rows, datasets, the change feed, and its files as Arrow."""
