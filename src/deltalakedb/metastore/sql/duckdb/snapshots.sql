-- The parts of a locked table are read one by one: `lock heads` and `lock publishing` follow.

-- name: lock
SELECT {registered} FROM dl_tables t WHERE t.table_id IN (??);
