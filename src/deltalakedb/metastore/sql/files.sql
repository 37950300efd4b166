-- Files as intervals. The files of a table are those with ids from table_id << 40 up to the next table's.

-- name: some live
-- a few live files of the newest version
SELECT path FROM dl_files WHERE file_id >= ? AND file_id < ? AND remove_version IS NULL LIMIT 20;

-- name: tombstones
-- what versions up to one removed, with the exact action
SELECT f.file_id, f.path, f.dv_id, f.remove_version, d.remove_action
FROM dl_files f JOIN dl_file_details d ON d.file_id = f.file_id
WHERE (f.file_id >> 40) = ? AND f.remove_version <= ? AND d.remove_action IS NOT NULL;

-- name: removed
-- every file that some version removed: when by its writer's clock, and when that version was committed here;
-- the time of an imported commit may be that of its file, which a copy changes
SELECT f.path, f.dv_id, f.size, f.deletion_timestamp, CASE WHEN c.origin <> 'import' THEN c.timestamp END, f.remove_version
FROM dl_files f
LEFT JOIN dl_commits c ON c.table_id = (f.file_id >> 40) AND c.version = f.remove_version
WHERE (f.file_id >> 40) = ? AND f.remove_version IS NOT NULL;

-- name: removed between
-- files that were live at a version and are not any more at a later one
SELECT file_id FROM dl_files
WHERE (file_id >> 40) = ? AND remove_version > ? AND remove_version <= ? AND add_version <= ?;

-- name: removed since
-- files that were live at a version and are gone
SELECT path, dv_id, remove_version FROM dl_files
WHERE (file_id >> 40) = ? AND remove_version > ? AND add_version <= ?
ORDER BY remove_version;

-- name: last at
-- the last file that a version or an earlier one added
SELECT file_id FROM dl_files WHERE file_id >= ? AND file_id < ? AND add_version <= ? ORDER BY file_id DESC LIMIT 1;

-- name: keys after
SELECT path, dv_id FROM dl_files WHERE file_id > ? AND file_id < ?;

-- name: totals at
-- counters of an older version
SELECT count(*), coalesce(sum(size), 0), coalesce(sum(num_records), 0), count(*) - count(num_records) FROM dl_files
WHERE file_id >= ? AND file_id < ? AND add_version <= ? AND (remove_version IS NULL OR remove_version > ?);

-- name: interval rows
-- every row of a table with its interval, in the order of the ids, for a comparison with the whole log
SELECT f.file_id, f.add_version, f.remove_version, f.path, f.dv_id, f.size, f.modification_time, f.data_change, f.num_records,
       f.partition_values, d.deletion_vector, d.more, d.remove_action
FROM dl_files f LEFT JOIN dl_file_details d ON d.file_id = f.file_id
WHERE f.file_id > ? AND f.file_id < ? ORDER BY f.file_id LIMIT ?;

-- name: range sums
-- what the files in a range of ids add up to, their texts joined in the order of ids
SELECT count(*), count(remove_version), sum(size), sum(modification_time), coalesce(sum(num_records), 0), count(num_records),
       sum(CASE WHEN data_change THEN 1 ELSE 0 END), {joined: path}, {joined: dv_id}, {joined: partition_values}
FROM (SELECT * FROM dl_files WHERE file_id >= ? AND file_id < ? ORDER BY file_id) f;

-- name: blobs
-- checksums and data of all packs and blocks from an id on, a few at a time
SELECT first_id, crc, data FROM dl_stats_blocks WHERE first_id >= ? AND first_id < ? ORDER BY first_id LIMIT 64;

-- name: pack blobs
SELECT first_id, crc, data FROM dl_pack_columns WHERE first_id = ?;

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

-- name: blind versions
-- blind appends after a version
SELECT version FROM dl_commits WHERE table_id = ? AND version > ? AND is_blind_append;

-- name: details
-- what few files have, of the ids in a range; and a row without an id if the last file is still there
SELECT file_id, deletion_vector, more FROM dl_file_details
WHERE file_id >= ? AND file_id <= ? AND (deletion_vector IS NOT NULL OR more IS NOT NULL)
UNION ALL SELECT NULL, NULL, NULL FROM dl_files WHERE file_id = ?;

-- name: known details
-- which of some files have a row of details already
SELECT file_id FROM dl_file_details WHERE file_id IN (??);

-- Statistics and packs.

-- name: recent stats
SELECT file_id, stats FROM dl_file_stats WHERE file_id >= ? AND file_id <= ? ORDER BY file_id;

-- name: count recent
SELECT count(*) FROM dl_file_stats WHERE file_id >= ? AND file_id < ?;

-- name: recent ids
SELECT file_id FROM dl_file_stats WHERE file_id >= ? AND file_id < ? ORDER BY file_id;

-- name: tables to pack
-- tables with many recent files; not those that are being imported, whose batches may be undone
SELECT s.table_id FROM (SELECT file_id >> 40 AS table_id FROM dl_file_stats GROUP BY file_id >> 40 HAVING count(*) >= ?) s
JOIN dl_heads h ON h.table_id = s.table_id;

-- name: pack status
-- packs, files in them, recent files, bytes of columns and of compressed statistics
SELECT (SELECT count(*) FROM dl_packs WHERE first_id >= ? AND first_id < ?),
       (SELECT coalesce(sum(num_files), 0) FROM dl_packs WHERE first_id >= ? AND first_id < ?),
       (SELECT count(*) FROM dl_file_stats WHERE file_id >= ? AND file_id < ?),
       (SELECT coalesce(sum({blob_length}), 0) FROM dl_pack_columns WHERE first_id >= ? AND first_id < ?),
       (SELECT coalesce(sum({blob_length}), 0) FROM dl_stats_blocks WHERE first_id >= ? AND first_id < ?);

-- name: blocks
-- the blocks that overlap a range of ids
SELECT first_id, last_id FROM dl_stats_blocks WHERE first_id <= ? AND last_id >= ? AND first_id >= ?;

-- name: blocks inside
SELECT first_id FROM dl_stats_blocks WHERE first_id >= ? AND last_id <= ?;

-- name: block data
SELECT first_id, crc, data FROM dl_stats_blocks WHERE first_id IN (??);

-- name: packs
SELECT first_id, last_id, num_files FROM dl_packs WHERE first_id >= ? AND first_id < ? ORDER BY first_id;

-- name: zones
SELECT c.first_id, p.last_id, c.name, c.low, c.high
FROM dl_packs p CROSS JOIN dl_pack_columns c
WHERE p.first_id >= ? AND p.first_id < ? AND c.first_id = p.first_id AND c.name IN (??);

-- name: rows to pack
-- paths and partition values of the files in a range of ids
SELECT file_id, path, partition_values FROM dl_files WHERE file_id >= ? AND file_id <= ? ORDER BY file_id;

-- Only what is in the range as a whole: the end of a larger pack that another process made would be lost.

-- name: delete blocks
DELETE FROM dl_stats_blocks WHERE first_id >= ? AND last_id <= ?;

-- name: delete packs
DELETE FROM dl_packs WHERE first_id >= ? AND last_id <= ?;

-- Undoing what the versions from one on did to a table's files, whose ids are above a given one. Their packs stay:
-- ids are never used again, and what has no row is never read.

-- name: revert removals
UPDATE dl_file_details SET remove_action = NULL
WHERE file_id IN (SELECT file_id FROM dl_files WHERE (file_id >> 40) = ? AND remove_version >= ?);

-- name: revert removed
UPDATE dl_files SET remove_version = NULL, deletion_timestamp = NULL WHERE (file_id >> 40) = ? AND remove_version >= ?;

-- Deleting all that is stored for a range of ids.

-- name: range details
DELETE FROM dl_file_details WHERE file_id >= ? AND file_id <= ?;

-- name: range stats
DELETE FROM dl_file_stats WHERE file_id >= ? AND file_id <= ?;

-- name: range blocks
DELETE FROM dl_stats_blocks WHERE first_id >= ? AND first_id <= ?;

-- name: range columns
DELETE FROM dl_pack_columns WHERE first_id >= ? AND first_id <= ?;

-- name: range packs
DELETE FROM dl_packs WHERE first_id >= ? AND first_id <= ?;

-- name: range rows
DELETE FROM dl_files WHERE file_id >= ? AND file_id <= ?;
