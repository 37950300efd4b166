"""The SQL room: the catalog's tables on SQLite, DuckDB and Postgres. Nothing above it speaks SQL."""
