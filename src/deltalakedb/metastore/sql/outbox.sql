-- What is ratified and not yet published.

-- name: open
-- versions to publish, oldest first, with their bytes; none while the table is paused or frozen. No more of them than a number,
-- and none once those before it come to so many bytes
SELECT w.version, w.timestamp, b.bytes, w.attempts, w.txn_uuid FROM (
  SELECT o.table_id, o.version, c.timestamp, o.attempts, CASE WHEN x.num_commits > 1 THEN c.txn_uuid END AS txn_uuid,
         sum(c.size_bytes) OVER (ORDER BY o.version) - c.size_bytes AS bytes_before
  FROM dl_outbox o
  JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version
  LEFT JOIN dl_transactions x ON x.txn_uuid = c.txn_uuid
  WHERE o.table_id = ? AND o.state <> 'published'
    AND NOT EXISTS (SELECT 1 FROM dl_mirror m WHERE m.table_id = o.table_id AND m.paused)
    AND NOT EXISTS (SELECT 1 FROM dl_heads h WHERE h.table_id = o.table_id AND h.frozen)
    AND NOT EXISTS (SELECT 1 FROM dl_settings s WHERE s.name = 'mirror.paused')
  ORDER BY o.version LIMIT ?
) w
JOIN dl_commit_bytes b ON b.table_id = w.table_id AND b.version = w.version
WHERE w.bytes_before < ? ORDER BY w.version;

-- name: group
-- the tables of one transaction, each with the newest version it made there
SELECT t.table_id, t.name, t.location, c.version, c.timestamp, coalesce(o.state, 'published') FROM dl_commits c
JOIN dl_tables t ON t.table_id = c.table_id
LEFT JOIN dl_outbox o ON o.table_id = c.table_id AND o.version = c.version
WHERE c.txn_uuid = ? AND NOT EXISTS (
  SELECT 1 FROM dl_commits later WHERE later.txn_uuid = c.txn_uuid AND later.table_id = c.table_id AND later.ordinal > c.ordinal
)
ORDER BY t.name;

-- name: reads
-- what an unpublished commit was made from
SELECT reads FROM dl_outbox WHERE table_id = ? AND version = ?;

-- name: open versions
SELECT version FROM dl_outbox WHERE table_id = ? AND state <> 'published' ORDER BY version;

-- name: published
-- a range of versions, marked under the lock of the head
UPDATE dl_outbox SET state = 'published', published_at = ?, error = NULL, reads = NULL
WHERE table_id = ? AND version BETWEEN ? AND ? AND state <> 'published';

-- Marking ranges of versions of some tables as published: statements run in this order.

-- name: publish ranges
WITH r (table_id, oldest, newest, noted_at) AS (VALUES {rows})
UPDATE dl_outbox SET state = 'published', published_at = r.noted_at, error = NULL, reads = NULL
FROM r WHERE dl_outbox.table_id = r.table_id AND dl_outbox.version BETWEEN r.oldest AND r.newest AND state <> 'published';

-- name: publish watermarks
-- only: sqlite, duckdb
WITH r (table_id, oldest, newest, noted_at) AS (VALUES {rows})
UPDATE dl_mirror SET published_version = r.newest, published_at = r.noted_at
FROM r WHERE dl_mirror.table_id = r.table_id AND published_version < r.newest;

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

-- name: behind
-- tables with something to publish now, the longest waiting first
SELECT t.name FROM dl_outbox o
JOIN dl_tables t ON t.table_id = o.table_id
JOIN dl_heads h ON h.table_id = o.table_id
JOIN dl_mirror m ON m.table_id = o.table_id
JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version
WHERE o.state <> 'published' AND NOT m.paused AND NOT h.frozen
GROUP BY t.table_id, t.name
HAVING max(CASE WHEN o.next_try_at > ? THEN 1 ELSE 0 END) = 0
ORDER BY min(c.timestamp);

-- name: status
-- one row per table; the columns up to checkpoint_version are those that a MirrorStatus begins with
SELECT t.name, t.location, t.state, t.state_reason, h.head_version, m.published_version, m.published_at, m.checkpoint_version,
       m.paused,
       (SELECT count(*) FROM dl_outbox o WHERE o.table_id = t.table_id AND o.state <> 'published'),
       (SELECT min(c.timestamp) FROM dl_outbox o JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version
        WHERE o.table_id = t.table_id AND o.state <> 'published'),
       (SELECT max(o.attempts) FROM dl_outbox o WHERE o.table_id = t.table_id AND o.state = 'failed'),
       (SELECT min(o.error) FROM dl_outbox o WHERE o.table_id = t.table_id AND o.state = 'failed'),
       (SELECT max(o.next_try_at) FROM dl_outbox o WHERE o.table_id = t.table_id AND o.state = 'failed'),
       t.table_id
FROM {tables}
WHERE t.name = coalesce(?, t.name)
ORDER BY t.name;

-- name: notes
-- the pause of the whole catalog, and what could not be written besides commits
SELECT name, value FROM dl_settings WHERE name LIKE 'mirror.%' AND name NOT LIKE 'mirror.lost.%';

-- name: paused
-- those of some tables whose publishing is paused, by themselves or with the whole catalog
SELECT m.table_id FROM dl_mirror m
WHERE m.table_id IN (??) AND (m.paused OR EXISTS (SELECT 1 FROM dl_settings s WHERE s.name = 'mirror.paused'));

-- name: set paused
UPDATE dl_mirror SET paused = ? WHERE table_id = ?;

-- name: set checkpoint
-- the watermark only ever rises
UPDATE dl_mirror SET checkpoint_version = ? WHERE table_id = ? AND checkpoint_version < ?;
