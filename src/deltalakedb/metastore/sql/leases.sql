-- Leases: rights that one holder has at a time. Times are the database's own.

-- name: one
SELECT holder, token, expires_at FROM dl_leases WHERE name = ?;

-- name: take
-- one that has expired, or that a holder with a known token has; no row if another holder has it
UPDATE dl_leases SET holder = ?, token = token + 1, expires_at = ? WHERE name = ? AND (expires_at <= ? OR token = ?)
RETURNING token;

-- name: insert
-- one that is new; no row if another holder was faster
INSERT INTO dl_leases (name, holder, token, expires_at)
SELECT ?, ?, 1, ? WHERE NOT EXISTS (SELECT 1 FROM dl_leases WHERE name = ?)
ON CONFLICT DO NOTHING
RETURNING token;

-- name: extend
UPDATE dl_leases SET expires_at = ? WHERE name = ? AND token = ? AND holder = ?;

-- name: held
-- those whose names match a pattern and that have not expired
SELECT name, holder, expires_at FROM dl_leases WHERE name LIKE ? AND expires_at > ?;
