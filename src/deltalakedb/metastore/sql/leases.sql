-- Leases: who may do what only one may do. Times are the database's own.

-- name: one
SELECT holder, token, expires_at FROM dl_leases WHERE name = ?;

-- name: insert
-- nothing happens where a rival was faster
INSERT INTO dl_leases (name, holder, token, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: take
-- only where nobody else took it in the meantime
UPDATE dl_leases SET holder = ?, token = ?, expires_at = ? WHERE name = ? AND token = ?;

-- name: extend
UPDATE dl_leases SET expires_at = ? WHERE name = ? AND token = ? AND holder = ?;

-- name: held
-- those whose names fit a pattern and that have not run out
SELECT name, holder, expires_at FROM dl_leases WHERE name LIKE ? AND expires_at > ?;
