-- Files as intervals.

-- name: live by hash
-- live files among some path hashes
SELECT file_id, path, dv_id, size, num_records, path_hash FROM dl_files
WHERE table_id = ? AND remove_version IS NULL AND path_hash IN (??);

-- name: some live
-- a few live files of the newest version
SELECT path FROM dl_files WHERE table_id = ? AND remove_version IS NULL LIMIT 20;

-- name: tombstones at
-- removed files that no newer row of the same identity has brought back; of newer rows, those that were removed too are
-- found in one pass, live ones by the index of paths (the signs keep SQLite from choosing another): linear in removed files
SELECT j.remove_action FROM (
  SELECT file_id, path_hash, dv_id, remove_version, tombstone,
    max(add_version) OVER (PARTITION BY path_hash, dv_id ORDER BY file_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS again
  FROM dl_files WHERE table_id = ? AND remove_version IS NOT NULL AND +add_version <= ?
) f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.remove_version <= ? AND f.tombstone AND (f.again IS NULL OR f.again < f.remove_version)
  AND NOT EXISTS (
    SELECT 1 FROM dl_files g WHERE g.table_id = ? AND g.remove_version IS NULL AND g.path_hash = f.path_hash AND g.dv_id = f.dv_id
      AND +g.file_id > f.file_id AND +g.add_version <= ? AND +g.add_version >= f.remove_version
  );

-- name: removed
-- every file that some version removed: when by its writer's clock, and when that version was committed here;
-- the time of an imported commit may be that of its file, which a copy changes
SELECT f.path, f.dv_id, f.size, f.deletion_timestamp, CASE WHEN c.origin <> 'import' THEN c.timestamp END, f.remove_version
FROM dl_files f
LEFT JOIN dl_commits c ON c.table_id = f.table_id AND c.version = f.remove_version
WHERE f.table_id = ? AND f.remove_version IS NOT NULL;

-- name: removed between
-- files that were live at a version and are not any more at a later one
SELECT file_id FROM dl_files
WHERE table_id = ? AND remove_version > ? AND remove_version <= ? AND add_version <= ?;

-- name: slots
-- all that a table ever had
SELECT kind, slot, field, encoding, encoding_arg, since_version, dropped_version FROM dl_slots WHERE table_id = ? ORDER BY kind, slot;

-- name: close slot
UPDATE dl_slots SET dropped_version = ? WHERE table_id = ? AND kind = ? AND slot = ? AND dropped_version IS NULL;

-- name: upsert level
-- only: sqlite, postgres
INSERT INTO dl_levels (table_id, slot, level, n, lo, hi) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (table_id, slot, level) DO UPDATE SET
  n = dl_levels.n + excluded.n,
  lo = CASE WHEN dl_levels.lo < excluded.lo THEN dl_levels.lo ELSE excluded.lo END,
  hi = CASE WHEN dl_levels.hi > excluded.hi THEN dl_levels.hi ELSE excluded.hi END;

-- name: slots and levels
-- what planning needs to know, in one round trip
SELECT 0, kind, slot, field, encoding, encoding_arg, since_version, NULL, NULL, NULL, NULL
FROM dl_slots WHERE table_id = ? AND dropped_version IS NULL
UNION ALL
SELECT 1, NULL, slot, NULL, NULL, NULL, NULL, level, n, lo, hi FROM dl_levels WHERE table_id = ?;

-- name: totals at
-- counters of an older version
SELECT count(*), coalesce(sum(size), 0), coalesce(sum(num_records), 0), count(*) - count(num_records) FROM dl_files
WHERE table_id = ? AND add_version <= ? AND (remove_version IS NULL OR remove_version > ?);

-- name: gone between
-- files of a version that a newer version has no more: those removed in between
SELECT f.path, f.size, f.modification_time, f.data_change, j.stats, j.partition_values, j.tags, j.deletion_vector,
  j.base_row_id, j.default_row_commit_version, j.clustering_provider, j.add_extra
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.table_id = ? AND f.add_version <= ? AND f.remove_version > ? AND f.remove_version <= ?
ORDER BY f.file_id;

-- name: come between
-- files of a version that an older version did not have: those added in between
SELECT f.path, f.size, f.modification_time, f.data_change, j.stats, j.partition_values, j.tags, j.deletion_vector,
  j.base_row_id, j.default_row_commit_version, j.clustering_provider, j.add_extra
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.table_id = ? AND f.add_version > ? AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
ORDER BY f.file_id;

-- name: by id
-- whole files
SELECT f.path, f.size, f.modification_time, f.data_change, j.stats, j.partition_values, j.tags, j.deletion_vector,
  j.base_row_id, j.default_row_commit_version, j.clustering_provider, j.add_extra
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id WHERE f.file_id IN (??);

-- name: digest texts
-- a page of the files that live at a version: id, hash of the path, size, and all fields of the digest as one text
-- only: sqlite
SELECT f.file_id, f.path_hash, f.size,
       CAST(f.path || char(31) || f.dv_id || char(31) || f.size || char(31) || f.modification_time || char(31)
            || j.partition_values || char(31) || coalesce(j.stats, '') AS BLOB)
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.file_id > ? AND f.file_id < ? AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
ORDER BY f.file_id LIMIT ?;

-- name: stretch
-- the files of some ids, told twice, that live at a version: how many, and their texts of the digest as one, in the
-- order of the ids; engines that hash tell the digest of it
SELECT count(*), CAST(group_concat(text, char(30)) AS BLOB)
FROM (
  SELECT f.path || char(31) || f.dv_id || char(31) || f.size || char(31) || f.modification_time || char(31)
         || j.partition_values || char(31) || coalesce(j.stats, '') AS text
  FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
  WHERE f.file_id > ? AND f.file_id < ? AND j.file_id > ? AND j.file_id < ?
    AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
  ORDER BY f.file_id
);

-- name: closed between
-- files that lived at a version and were removed or replaced up to a later one, as a digest wants them
SELECT f.path_hash, f.path, f.dv_id, f.size, f.modification_time, j.partition_values, coalesce(j.stats, '')
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.table_id = ? AND f.remove_version > ? AND f.remove_version <= ? AND f.add_version <= ?;

-- name: bucket digests
-- the digest of the files that live at a version, summed by bucket; the fields and their order are those of protocol/digest.py
-- only: postgres
SELECT bucket, count(*), sum(size)::bigint, sum(('x' || substr(digest, 1, 8))::bit(32)::bigint)::bigint,
       sum(('x' || substr(digest, 9, 8))::bit(32)::bigint)::bigint
FROM (
  SELECT f.path_hash & 4095 AS bucket, f.size,
         md5(f.path || chr(31) || f.dv_id || chr(31) || f.size || chr(31) || f.modification_time || chr(31)
             || j.partition_values || chr(31) || coalesce(j.stats, '')) AS digest
  FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
  WHERE f.file_id > ? AND f.file_id < ? AND f.add_version <= ? AND (f.remove_version IS NULL OR f.remove_version > ?)
) files
GROUP BY bucket;

-- name: interval rows
-- every row of a table with its interval, in the order of the ids, for a comparison with the whole log
SELECT f.file_id, f.path_hash, f.add_version, f.remove_version, f.tombstone, f.path, f.dv_id, f.size, f.modification_time,
       f.data_change, f.num_records, j.stats, j.partition_values, j.tags, j.deletion_vector, j.base_row_id,
       j.default_row_commit_version, j.clustering_provider, j.add_extra, j.remove_action
FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.file_id > ? AND f.file_id < ? ORDER BY f.file_id LIMIT ?;

-- name: small rows
-- metadata, protocol, txns and domains with their intervals
SELECT 'metaData', '', add_version, remove_version, raw FROM dl_metadata WHERE table_id = ?
UNION ALL
SELECT 'protocol', '', add_version, remove_version, raw FROM dl_protocol WHERE table_id = ?
UNION ALL
SELECT 'txn', app_id, add_version, remove_version, raw FROM dl_txns WHERE table_id = ?
UNION ALL
SELECT 'domainMetadata', domain, add_version, remove_version, raw FROM dl_domains WHERE table_id = ?;

-- name: next seq
-- above every file's sequence number
SELECT next_file_seq FROM dl_heads WHERE table_id = ?;

-- name: other files
-- whether the catalog has files of other tables
SELECT 1 FROM dl_files WHERE table_id <> ? LIMIT 1;

-- name: removed since among
-- files that were live at a version and are no longer what they were
SELECT f.path, f.dv_id, f.remove_version FROM dl_files f
WHERE f.table_id = ? AND f.remove_version > ? AND f.add_version <= ? AND f.path_hash IN (??)
ORDER BY f.remove_version;

-- name: removed since
-- the first files that were live at a version and are gone
SELECT f.path, f.dv_id, f.remove_version FROM dl_files f
WHERE f.table_id = ? AND f.remove_version > ? AND f.add_version <= ?
ORDER BY f.remove_version LIMIT 5;

-- name: keys added since
SELECT path, dv_id FROM dl_files WHERE table_id = ? AND add_version > ?;

-- Undoing what the versions from one on did to a table's files: statements run in this order.

-- name: revert side rows
-- only: sqlite, postgres
DELETE FROM dl_file_json WHERE file_id IN (SELECT file_id FROM dl_files WHERE table_id = ? AND add_version >= ?);

-- name: revert added
DELETE FROM dl_files WHERE table_id = ? AND add_version >= ?;

-- name: revert removed
UPDATE dl_files SET remove_version = NULL, tombstone = TRUE, deletion_timestamp = NULL WHERE table_id = ? AND remove_version >= ?;

-- name: revert slots
DELETE FROM dl_slots WHERE table_id = ? AND since_version >= ? AND since_version > 0;

-- name: revert closed slots
UPDATE dl_slots SET dropped_version = NULL WHERE table_id = ? AND dropped_version >= ?;

-- Deleting all file rows of a table: statements run in this order.

-- name: drop side rows
-- only: sqlite, postgres
DELETE FROM dl_file_json WHERE file_id IN (SELECT file_id FROM dl_files WHERE table_id = ?);

-- name: drop rows
DELETE FROM dl_files WHERE table_id = ?;

-- name: drop levels
DELETE FROM dl_levels WHERE table_id = ?;

-- name: drop slots
DELETE FROM dl_slots WHERE table_id = ?;

-- Deleting the file rows of a range of ids.

-- name: range side rows
-- only: sqlite, postgres
DELETE FROM dl_file_json WHERE file_id BETWEEN ? AND ?;

-- name: range rows
DELETE FROM dl_files WHERE file_id BETWEEN ? AND ?;
