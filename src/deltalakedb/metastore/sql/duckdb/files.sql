-- DuckDB keeps everything of a file in one row.

-- name: tombstones at
SELECT f.remove_action FROM (
  SELECT file_id, path_hash, dv_id, remove_version, tombstone, remove_action,
    max(add_version) OVER (PARTITION BY path_hash, dv_id ORDER BY file_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS again
  FROM dl_files WHERE table_id = ? AND remove_version IS NOT NULL AND +add_version <= ?
) f
WHERE f.remove_version <= ? AND f.tombstone AND (f.again IS NULL OR f.again < f.remove_version)
  AND NOT EXISTS (
    SELECT 1 FROM dl_files g WHERE g.table_id = ? AND g.remove_version IS NULL AND g.path_hash = f.path_hash AND g.dv_id = f.dv_id
      AND +g.file_id > f.file_id AND +g.add_version <= ? AND +g.add_version >= f.remove_version
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

-- name: bucket digests
-- only: duckdb
SELECT bucket, count(*), sum(size)::BIGINT, sum(('0x' || substr(digest, 1, 8))::BIGINT)::BIGINT,
       sum(('0x' || substr(digest, 9, 8))::BIGINT)::BIGINT
FROM (
  SELECT f.path_hash & 4095 AS bucket, f.size,
         md5(f.path || chr(31) || f.dv_id || chr(31) || f.size || chr(31) || f.modification_time || chr(31)
             || f.partition_values || chr(31) || coalesce(f.stats, '')) AS digest
  FROM dl_files f
  WHERE f.file_id > ? AND f.file_id < ? AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
) files
GROUP BY bucket;

-- name: interval rows
SELECT f.file_id, f.path_hash, f.add_version, f.remove_version, f.tombstone, f.path, f.dv_id, f.size, f.modification_time,
       f.data_change, f.num_records, f.stats, f.partition_values, f.tags, f.deletion_vector, f.base_row_id,
       f.default_row_commit_version, f.clustering_provider, f.add_extra, f.remove_action
FROM dl_files f
WHERE f.file_id > ? AND f.file_id < ? ORDER BY f.file_id LIMIT ?;
