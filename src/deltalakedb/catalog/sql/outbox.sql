-- What is ratified and not yet published.

-- name: open
-- versions to publish, oldest first, with their bytes
SELECT o.version, c.timestamp, b.bytes, o.attempts FROM dl_outbox o
JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version
JOIN dl_commit_bytes b ON b.table_id = o.table_id AND b.version = o.version
WHERE o.table_id = ? AND o.state <> 'published' ORDER BY o.version LIMIT ?;

-- name: insert
INSERT INTO dl_outbox (table_id, version, state, attempts, next_try_at, published_at, error) VALUES (?, ?, ?, 0, NULL, NULL, NULL);

-- name: published
UPDATE dl_outbox SET state = 'published', published_at = ?, error = NULL WHERE table_id = ? AND version = ?;

-- name: failed
UPDATE dl_outbox SET state = 'failed', attempts = attempts + 1, next_try_at = ?, error = ? WHERE table_id = ? AND version = ? AND state <> 'published';

-- name: advance
-- the watermark only ever rises
UPDATE dl_mirror SET published_version = ?, published_at = ? WHERE table_id = ? AND published_version < ?;

-- name: lag
SELECT count(*), min(c.timestamp) FROM dl_outbox o
JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version
WHERE o.table_id = ? AND o.state <> 'published';

-- name: last error
-- why the oldest waiting version could not be published
SELECT error FROM dl_outbox WHERE table_id = ? AND state = 'failed' ORDER BY version LIMIT 1;
