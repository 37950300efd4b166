-- DuckDB plans every statement anew, and correlated questions cost it the most.

-- name: lock
SELECT {table},
       h.next_file_seq, h.metadata_version, h.protocol_version, h.frozen, h.head_sha256,
       CASE WHEN h.table_id IN (SELECT o.table_id FROM dl_outbox o WHERE o.state <> 'published') THEN -1
            ELSE m.published_version END,
       (m.paused OR (SELECT count(*) FROM dl_settings s WHERE s.name = 'mirror.paused') > 0), NULL
FROM {tables}
WHERE h.table_id IN (??)
ORDER BY h.table_id;
