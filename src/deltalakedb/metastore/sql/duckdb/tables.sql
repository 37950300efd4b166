-- DuckDB has no unique keys here: its writers take turns, and look before they insert.

-- name: insert
INSERT INTO dl_tables (name, location, real_location, state, state_reason, comment, tags, settings, created_at,
  updated_at)
VALUES (?, ?, ?, ?, NULL, ?, ?, ?, ?, ?)
RETURNING table_id;

-- name: insert setting
INSERT INTO dl_settings (name, value) VALUES (?, ?);
