-- DuckDB has no unique keys here: its writers take turns.

-- name: insert
INSERT INTO dl_leases (name, holder, token, expires_at)
SELECT ?, ?, 1, ? WHERE NOT EXISTS (SELECT 1 FROM dl_leases WHERE name = ?)
RETURNING token;
