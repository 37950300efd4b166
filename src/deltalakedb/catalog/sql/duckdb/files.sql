-- DuckDB keeps everything of a file in one row.

-- name: tombstones at
SELECT f.remove_action FROM dl_files f
WHERE f.table_id = ? AND f.remove_version IS NOT NULL AND f.remove_version <= ? AND f.tombstone
  AND NOT EXISTS (
    SELECT 1 FROM dl_files g WHERE g.table_id = f.table_id AND g.path_hash = f.path_hash AND g.dv_id = f.dv_id
      AND g.file_id > f.file_id AND g.add_version <= ? AND g.add_version >= f.remove_version
  );
