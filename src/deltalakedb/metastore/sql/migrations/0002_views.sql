-- Views with documented names, for questions in plain SQL. Times are epoch milliseconds.

-- name: tables with their heads
CREATE VIEW dl_v_tables AS
SELECT t.name, t.location, t.state, t.state_reason, t.comment, t.tags, h.head_version AS version,
       h.head_timestamp AS committed_at, h.first_version, h.num_files, h.size_bytes,
       CASE WHEN h.files_without_count = 0 THEN h.num_records END AS num_records,
       mi.published_version, h.head_version - mi.published_version AS versions_behind, t.created_at, t.table_id
FROM dl_tables t
JOIN dl_heads h ON h.table_id = t.table_id
JOIN dl_mirror mi ON mi.table_id = t.table_id;

-- name: live files
-- only: sqlite, postgres
CREATE VIEW dl_v_files AS
SELECT t.name AS table_name, f.path, f.size, f.num_records, f.modification_time, j.partition_values, j.stats,
       j.deletion_vector, f.add_version, f.table_id, f.file_id
FROM dl_files f
JOIN dl_tables t ON t.table_id = f.table_id
JOIN dl_file_json j ON j.file_id = f.file_id
WHERE f.remove_version IS NULL;

-- name: live files, where a file is one row
-- only: duckdb
CREATE VIEW dl_v_files AS
SELECT t.name AS table_name, f.path, f.size, f.num_records, f.modification_time, f.partition_values, f.stats,
       f.deletion_vector, f.add_version, f.table_id, f.file_id
FROM dl_files f
JOIN dl_tables t ON t.table_id = f.table_id
WHERE f.remove_version IS NULL;

-- name: every file with the versions it lived through
CREATE VIEW dl_v_file_history AS
SELECT t.name AS table_name, f.path, f.dv_id, f.size, f.num_records, f.add_version, f.remove_version,
       f.deletion_timestamp, f.table_id, f.file_id
FROM dl_files f
JOIN dl_tables t ON t.table_id = f.table_id;

-- name: commits
CREATE VIEW dl_v_history AS
SELECT t.name AS table_name, c.version, c.timestamp AS committed_at, c.operation, c.is_blind_append, c.num_added,
       c.num_removed, c.actor, c.origin, c.txn_uuid, c.sha256, c.size_bytes, c.info, c.table_id
FROM dl_commits c
JOIN dl_tables t ON t.table_id = c.table_id;

-- name: schema, partitioning and properties, at every version that changed them
CREATE VIEW dl_v_metadata AS
SELECT t.name AS table_name, m.add_version, m.remove_version, m.raw AS metadata, m.table_id
FROM dl_metadata m
JOIN dl_tables t ON t.table_id = m.table_id;

-- name: protocol, at every version that changed it
CREATE VIEW dl_v_protocol AS
SELECT t.name AS table_name, p.add_version, p.remove_version, p.raw AS protocol, p.table_id
FROM dl_protocol p
JOIN dl_tables t ON t.table_id = p.table_id;

-- name: application transactions
CREATE VIEW dl_v_txns AS
SELECT t.name AS table_name, x.app_id, x.app_version, x.add_version, x.table_id
FROM dl_txns x
JOIN dl_tables t ON t.table_id = x.table_id
WHERE x.remove_version IS NULL;

-- name: publishing state of every version
CREATE VIEW dl_v_mirror AS
SELECT t.name AS table_name, o.version, o.state, o.attempts, o.next_try_at, o.published_at, o.error,
       c.timestamp AS committed_at, o.table_id
FROM dl_outbox o
JOIN dl_tables t ON t.table_id = o.table_id
JOIN dl_commits c ON c.table_id = o.table_id AND c.version = o.version;

-- name: audit
CREATE VIEW dl_v_audit AS
SELECT a.audit_id, a.recorded_at, a.actor, a.action, a.table_name, a.version, a.txn_uuid, a.details FROM dl_audit a;
