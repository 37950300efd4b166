-- DuckDB keeps everything of a file in one row.

-- name: tombstones at
SELECT f.remove_action FROM dl_files f
WHERE f.table_id = ? AND f.remove_version IS NOT NULL AND f.remove_version <= ? AND f.tombstone
  AND NOT EXISTS (
    SELECT 1 FROM dl_files g WHERE g.table_id = f.table_id AND g.path_hash = f.path_hash AND g.dv_id = f.dv_id
      AND g.file_id > f.file_id AND g.add_version <= ? AND g.add_version >= f.remove_version
  );

-- name: gone between
SELECT f.path, f.size, f.modification_time, f.data_change, f.stats, f.partition_values, f.tags, f.deletion_vector,
  f.base_row_id, f.default_row_commit_version, f.clustering_provider, f.add_extra
FROM dl_files f
WHERE f.table_id = ? AND f.add_version <= ? AND f.remove_version > ? AND f.remove_version <= ?
ORDER BY f.file_id;

-- name: come between
SELECT f.path, f.size, f.modification_time, f.data_change, f.stats, f.partition_values, f.tags, f.deletion_vector,
  f.base_row_id, f.default_row_commit_version, f.clustering_provider, f.add_extra
FROM dl_files f
WHERE f.table_id = ? AND f.add_version > ? AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
ORDER BY f.file_id;

-- name: by id
SELECT f.path, f.size, f.modification_time, f.data_change, f.stats, f.partition_values, f.tags, f.deletion_vector,
  f.base_row_id, f.default_row_commit_version, f.clustering_provider, f.add_extra
FROM dl_files f WHERE f.file_id IN (??);
