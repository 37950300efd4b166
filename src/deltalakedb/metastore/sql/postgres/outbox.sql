-- A note that can be found out again does not wait for its flush to disk.

-- name: published
UPDATE dl_outbox SET state = 'published', published_at = ?, error = NULL, reads = NULL
WHERE table_id = ? AND version = ? AND state <> 'published'
  AND set_config('synchronous_commit', 'off', true) IS NOT NULL;

-- name: published range
-- An update locks the rows of a range in the order that its plan finds them, and two publishers may find
-- them differently. So they are locked first, and those that another publisher is just marking are left to it.
UPDATE dl_outbox o SET state = 'published', published_at = ?, error = NULL, reads = NULL
FROM (
  SELECT l.table_id, l.version FROM dl_outbox l
  WHERE l.table_id = ? AND l.version BETWEEN ? AND ? AND l.state <> 'published'
    AND set_config('synchronous_commit', 'off', true) IS NOT NULL
  ORDER BY l.version FOR UPDATE SKIP LOCKED
) l WHERE o.table_id = l.table_id AND o.version = l.version;
