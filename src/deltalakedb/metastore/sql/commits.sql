-- Commits: history, exact bytes, idempotency.

-- name: history
-- newest first, up to a version
SELECT {commit}
FROM dl_commits c WHERE c.table_id = ? AND c.version <= ? ORDER BY c.version DESC LIMIT ?;

-- name: versions
SELECT version FROM dl_commits WHERE table_id = ? ORDER BY version;

-- name: one
SELECT {commit}
FROM dl_commits c WHERE c.table_id = ? AND c.version = ?;

-- name: kept bytes
SELECT count(*) FROM dl_commit_bytes WHERE table_id = ? AND version <= ?;

-- name: prune bytes
DELETE FROM dl_commit_bytes WHERE table_id = ? AND version <= ?;

-- name: tail
-- what came after a version, up to another: bytes, and the time of the oldest
SELECT coalesce(sum(size_bytes), 0), min(timestamp) FROM dl_commits WHERE table_id = ? AND version > ? AND version <= ?;

-- name: version at
-- the newest version at or before a time
SELECT max(version) FROM dl_commits WHERE table_id = ? AND timestamp <= ?;

-- name: versions at
-- the newest version of each table at or before a time
SELECT table_id, max(version) FROM dl_commits WHERE timestamp <= ? GROUP BY table_id;

-- name: split at
-- the commits of transactions that have commits before and after a time
SELECT c.table_id, c.version FROM dl_commits c WHERE c.txn_uuid IN (
  SELECT s.txn_uuid FROM dl_transactions x JOIN dl_commits s ON s.txn_uuid = x.txn_uuid
  WHERE x.num_commits > 1 GROUP BY s.txn_uuid HAVING min(s.timestamp) <= ? AND max(s.timestamp) > ?
);

-- name: together with
-- the commits of the transactions that made some versions of a table
SELECT c.table_id, c.version FROM dl_commits c WHERE c.txn_uuid IN (
  SELECT s.txn_uuid FROM dl_commits s WHERE s.table_id = ? AND s.version BETWEEN ? AND ?
);

-- name: time range
-- the first and last commit's time
SELECT min(timestamp), max(timestamp) FROM dl_commits WHERE table_id = ?;

-- name: bytes
SELECT bytes FROM dl_commit_bytes WHERE table_id = ? AND version = ?;

-- name: between
-- commits with their bytes, oldest first; bytes are null if they are no longer kept
SELECT {commit}, b.bytes
FROM dl_commits c
LEFT JOIN dl_commit_bytes b ON b.table_id = c.table_id AND b.version = c.version
WHERE c.table_id = ? AND c.version BETWEEN ? AND ? ORDER BY c.version;

-- name: newest without bytes
SELECT max(c.version) FROM dl_commits c
WHERE c.table_id = ? AND NOT EXISTS (
  SELECT 1 FROM dl_commit_bytes b WHERE b.table_id = c.table_id AND b.version = c.version
);

-- name: without bytes
-- newest first
SELECT c.version FROM dl_commits c
WHERE c.table_id = ? AND NOT EXISTS (
  SELECT 1 FROM dl_commit_bytes b WHERE b.table_id = c.table_id AND b.version = c.version
) ORDER BY c.version DESC;

-- name: by transaction
-- what an earlier attempt with the same id achieved
SELECT table_id, ordinal, version, timestamp, origin FROM dl_commits WHERE txn_uuid = ? ORDER BY table_id, ordinal;

-- name: transaction
SELECT 1 FROM dl_transactions WHERE txn_uuid = ?;

-- name: delete transaction
-- one without any commit left: repeating it does it
DELETE FROM dl_transactions WHERE txn_uuid = ?;

-- name: insert transaction
-- it is there already if some of its commits are made again
INSERT INTO dl_transactions (txn_uuid, committed_at, actor, num_commits) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: txns since
SELECT app_id, add_version FROM dl_txns WHERE table_id = ? AND add_version > ? AND app_id IN (??) ORDER BY add_version LIMIT 1;

-- name: domains since
SELECT domain, add_version FROM dl_domains WHERE table_id = ? AND add_version > ? AND domain IN (??) ORDER BY add_version LIMIT 1;

-- name: application
-- the version an application recorded last, and the table's version that carries it
SELECT app_version, add_version FROM dl_txns WHERE table_id = ? AND app_id = ? AND remove_version IS NULL;

-- name: domain
SELECT raw FROM dl_domains WHERE table_id = ? AND domain = ? AND remove_version IS NULL;
