-- Blind appends, each ratified with all its rows by one statement that is a transaction by itself: the head is
-- held while the server works and never while it waits for a client.

-- name: ratify
-- only: postgres
-- {asked}, {files} and {details} are lists of values.
-- Nothing happens unless every table is as its writer saw it: a head that was moved on is fine, another name,
-- schema or protocol is not. What stands before the lock is as old as the statement, so only the head's own
-- columns are sure to be new.
WITH asked (
  number, table_id, name, location, read_version, seen_version, info, rest, operation, data_change,
  num_added, size_bytes, num_records, files_without_count, details
) AS (VALUES {asked}),
held AS MATERIALIZED (
  SELECT a.number, h.table_id, h.head_version + 1 AS version, h.head_sha256 AS after, h.next_file_seq AS seq,
         greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint, h.head_timestamp + 1) AS at,
         h.head_version = m.published_version
           AND NOT EXISTS (SELECT 1 FROM dl_outbox o WHERE o.table_id = h.table_id AND o.state <> 'published') AS clear
  FROM asked a
  JOIN dl_heads h ON h.table_id = a.table_id
  JOIN dl_tables t ON t.table_id = a.table_id AND t.location = a.location
  JOIN dl_mirror m ON m.table_id = a.table_id
  WHERE NOT h.frozen AND h.table_name = a.name AND h.head_version >= a.seen_version
    AND h.metadata_version <= a.read_version AND h.protocol_version <= a.read_version
  ORDER BY h.table_id FOR UPDATE OF h
),
made AS MATERIALIZED (
  SELECT h.*, a.name, a.operation, a.data_change, a.num_added, a.size_bytes, a.num_records, a.files_without_count,
         a.details, '{{"timestamp":' || h.at || a.info AS info,
         convert_to('{{"commitInfo":{{"timestamp":' || h.at || a.info || E'}}\n', 'UTF8') || a.rest AS bytes
  FROM held h JOIN asked a ON a.number = h.number
  WHERE (SELECT count(*) FROM held) = (SELECT count(*) FROM asked)
),
heads AS (
  UPDATE dl_heads h SET head_version = m.version, head_timestamp = m.at, num_files = h.num_files + m.num_added,
         size_bytes = h.size_bytes + m.size_bytes, num_records = h.num_records + m.num_records,
         files_without_count = h.files_without_count + m.files_without_count,
         next_file_seq = m.seq + m.num_added, head_sha256 = encode(sha256(m.bytes), 'hex')
  FROM made m WHERE h.table_id = m.table_id
),
new_files (number, place, size, modification_time, num_records, data_change, path, dv_id, partition_values, stats) AS (
  VALUES {files}
),
files AS (
  INSERT INTO dl_files (file_id, add_version, size, modification_time, num_records, data_change, path, dv_id, partition_values)
  SELECT (m.table_id << 40) | (m.seq + f.place), m.version, f.size, f.modification_time, f.num_records, f.data_change, f.path,
         f.dv_id, f.partition_values
  FROM made m JOIN new_files f ON f.number = m.number
),
stats AS (
  INSERT INTO dl_file_stats (file_id, stats)
  SELECT (m.table_id << 40) | (m.seq + f.place), f.stats FROM made m JOIN new_files f ON f.number = m.number
),
details AS (
  INSERT INTO dl_file_details (file_id, deletion_vector, more)
  SELECT (m.table_id << 40) | (m.seq + d.place), d.deletion_vector, d.more
  FROM made m JOIN ({details}) AS d (number, place, deletion_vector, more) ON d.number = m.number
),
commits AS (
  INSERT INTO dl_commits (table_id, version, txn_uuid, ordinal, timestamp, operation, is_blind_append, data_change,
    num_added, num_removed, info, origin, actor, sha256, size_bytes)
  SELECT table_id, version, ?::text, 0, at, operation, true, data_change, num_added, 0, info, 'sql', ?::text,
         encode(sha256(bytes), 'hex'), length(bytes) FROM made
),
kept AS (
  INSERT INTO dl_commit_bytes (table_id, version, bytes) SELECT table_id, version, bytes FROM made
),
outbox AS (
  INSERT INTO dl_outbox (table_id, version, state, attempts) SELECT table_id, version, 'pending', 0 FROM made
),
audit AS (
  INSERT INTO dl_audit (recorded_at, actor, action, table_id, table_name, version, txn_uuid, details)
  SELECT at, ?::text, 'commit', table_id, name, version, ?::text, details FROM made
),
transactions AS (
  INSERT INTO dl_transactions (txn_uuid, committed_at, actor, num_commits)
  SELECT ?::text, max(at), ?::text, count(*) FROM made HAVING count(*) > 0
)
SELECT version, at, after, clear FROM made ORDER BY number;
