-- One statement is one round trip and one transaction.

-- name: publish ranges
-- A note that can be found out again does not wait for its flush to disk. Publishers of the same tables never wait
-- for each other in a circle: rows that another one is marking are left to it, watermarks are locked by id.
WITH r (table_id, oldest, newest, noted_at) AS (VALUES {rows}),
open AS (
  SELECT o.table_id, o.version, r.noted_at FROM dl_outbox o
  JOIN r ON r.table_id = o.table_id AND o.version BETWEEN r.oldest AND r.newest
  WHERE o.state <> 'published' AND set_config('synchronous_commit', 'off', true) IS NOT NULL FOR UPDATE OF o SKIP LOCKED
),
marked AS (
  UPDATE dl_outbox o SET state = 'published', published_at = open.noted_at, error = NULL, reads = NULL
  FROM open WHERE o.table_id = open.table_id AND o.version = open.version
),
behind AS (
  SELECT m.table_id, r.newest, r.noted_at FROM dl_mirror m JOIN r ON r.table_id = m.table_id
  WHERE m.published_version < r.newest ORDER BY m.table_id FOR UPDATE OF m
)
UPDATE dl_mirror m SET published_version = behind.newest, published_at = behind.noted_at
FROM behind WHERE m.table_id = behind.table_id;
