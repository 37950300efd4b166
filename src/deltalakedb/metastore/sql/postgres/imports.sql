-- Postgres gives the ids of tables itself unless it is told otherwise.

-- name: insert table
INSERT INTO dl_tables (table_id, name, location, real_location, state, state_reason, comment, tags, settings,
  created_at, updated_at)
OVERRIDING SYSTEM VALUE VALUES (?, ?, ?, ?, 'active', NULL, NULL, '{}', '{}', ?, ?);
