-- A note that can be found out again does not wait for its flush to disk.

-- name: published
UPDATE dl_outbox SET state = 'published', published_at = ?, error = NULL
WHERE table_id = ? AND version BETWEEN ? AND ? AND state <> 'published'
  AND set_config('synchronous_commit', 'off', true) IS NOT NULL;
