-- Postgres has a clock of its own, which commits go by: asked with the lock, since every round trip is a wait.

-- name: lock
SELECT {table},
       h.next_file_seq, h.metadata_version, h.protocol_version, h.frozen, h.shape, h.head_sha256,
       CASE WHEN EXISTS (SELECT 1 FROM dl_outbox o WHERE o.table_id = h.table_id AND o.state <> 'published') THEN -1
            ELSE m.published_version END,
       (m.paused OR EXISTS (SELECT 1 FROM dl_settings s WHERE s.name = 'mirror.paused')),
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM dl_heads h
JOIN dl_tables t ON t.table_id = h.table_id
JOIN dl_mirror m ON m.table_id = h.table_id
WHERE h.table_id IN (??)
ORDER BY h.table_id;
