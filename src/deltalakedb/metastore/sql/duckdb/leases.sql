-- DuckDB has no unique keys here: its writers take turns.

-- name: insert
INSERT INTO dl_leases (name, holder, token, expires_at) VALUES (?, ?, ?, ?);
