-- DuckDB has no unique keys here.

-- name: insert transaction
INSERT INTO dl_transactions (txn_uuid, committed_at, actor, num_commits)
SELECT * FROM (VALUES (?, ?, ?, ?)) AS made (txn_uuid, committed_at, actor, num_commits)
WHERE NOT EXISTS (SELECT 1 FROM dl_transactions t WHERE t.txn_uuid = made.txn_uuid);
