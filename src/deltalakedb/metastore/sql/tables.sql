-- The registry of tables and namespaces.

-- name: insert
-- a new table; the database assigns its id; no row if another writer was first with name or location
INSERT INTO dl_tables (name, location, real_location, state, state_reason, comment, tags, settings, created_at,
  updated_at)
VALUES (?, ?, ?, ?, NULL, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
RETURNING table_id;

-- name: insert head
-- a head without a version yet
INSERT INTO dl_heads (table_id, head_version, head_timestamp, first_version, num_files, size_bytes, num_records, files_without_count, next_file_seq,
  metadata_version, protocol_version, frozen, table_name)
VALUES (?, -1, 0, 0, 0, 0, 0, 0, 0, -1, -1, FALSE, ?);

-- name: insert mirror
-- nothing published yet
INSERT INTO dl_mirror (table_id, published_version, published_at, checkpoint_version, paused)
VALUES (?, ?, NULL, -1, FALSE);

-- name: list
-- every table with its head, by name
SELECT {table} FROM {tables}
ORDER BY t.name;

-- name: by name
-- one table with its head
SELECT {table} FROM {tables}
WHERE t.name = ?;

-- name: by location
-- one table with its head
SELECT {table} FROM {tables}
WHERE t.location = ?;

-- name: in namespace
-- the tables whose names begin with the namespace and a dot
SELECT {table} FROM {tables}
WHERE t.name > ? AND t.name < ?
ORDER BY t.name;

-- name: locations
SELECT location FROM dl_tables;

-- name: near
-- tables with a name, at a location or above it, or below it
SELECT name, location, real_location FROM dl_tables
WHERE name = ? OR (real_location > ? AND real_location < ?) OR real_location IN (??)
ORDER BY name;

-- name: rename
UPDATE dl_tables SET name = ?, updated_at = ? WHERE table_id = ?;

-- name: rename head
-- an append that waits for the head saw the old name, and sees nothing new but the head
UPDATE dl_heads SET table_name = ? WHERE table_id = ?;

-- name: renew head
-- only: postgres
-- A statement that waits for the head has read the table's old location already; a new row makes it find nothing,
-- so that it starts over.
WITH old AS (DELETE FROM dl_heads WHERE table_id = ? RETURNING *) INSERT INTO dl_heads SELECT * FROM old
RETURNING table_id;

-- name: set location
UPDATE dl_tables SET location = ?, real_location = ?, updated_at = ? WHERE table_id = ?;

-- name: set comment
UPDATE dl_tables SET comment = ?, updated_at = ? WHERE table_id = ?;

-- name: set tags
UPDATE dl_tables SET tags = ?, updated_at = ? WHERE table_id = ?;

-- name: set setting
-- the settings of one table, as a whole
UPDATE dl_tables SET settings = ?, updated_at = ? WHERE table_id = ?;

-- name: set state
UPDATE dl_tables SET state = ?, state_reason = ?, updated_at = ? WHERE table_id = ?;

-- name: set frozen
-- the same on the row that commits lock
UPDATE dl_heads SET frozen = ? WHERE table_id = ?;

-- name: names
-- names close to a missing one are suggested from these
SELECT name FROM dl_tables ORDER BY name LIMIT 1000;

-- name: namespaces
SELECT name, comment, properties, created_at FROM dl_namespaces ORDER BY name;

-- name: insert namespace
INSERT INTO dl_namespaces (name, comment, properties, created_at) VALUES (?, ?, ?, ?);

-- name: delete namespace
DELETE FROM dl_namespaces WHERE name = ?;

-- name: setting
-- one setting of the whole catalog
SELECT value FROM dl_settings WHERE name = ?;

-- name: settings like
-- settings of the whole catalog whose names fit a pattern
SELECT name, value FROM dl_settings WHERE name LIKE ?;

-- name: delete setting
DELETE FROM dl_settings WHERE name = ?;

-- name: insert setting
-- nothing happens if another process has set it since it was deleted
INSERT INTO dl_settings (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: beginnings
-- when the audit begins, and when the oldest table was made
SELECT (SELECT recorded_at FROM dl_audit ORDER BY audit_id LIMIT 1), (SELECT min(created_at) FROM dl_tables);
