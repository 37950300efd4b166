-- The catalog's schema. Tokens in braces are the engine's types; "only" limits a statement to engines.
-- Rows with add_version and remove_version are intervals: live at v when add_version <= v and
-- (remove_version IS NULL or remove_version > v). Times are epoch milliseconds.

-- name: settings of the whole catalog
CREATE TABLE dl_settings (
  name TEXT NOT NULL{pk},
  value TEXT
);

-- name: namespaces
CREATE TABLE dl_namespaces (
  name TEXT NOT NULL{pk},
  comment TEXT,
  properties TEXT NOT NULL,
  created_at {bigint} NOT NULL
);

-- name: sequence of table ids
-- only: duckdb
CREATE SEQUENCE dl_table_ids;

-- name: the registry of tables
-- state: active, importing or frozen; settings and tags are JSON objects
CREATE TABLE dl_tables (
  table_id {auto_table_id},
  name {ctext} NOT NULL{unique},
  location {ctext} NOT NULL{unique},
  state TEXT NOT NULL,
  state_reason TEXT,
  comment TEXT,
  tags TEXT NOT NULL,
  settings TEXT NOT NULL,
  created_at {bigint} NOT NULL,
  updated_at {bigint} NOT NULL
);

-- name: the head of each table, locked by every commit
-- head_version is -1 until version 0 is ratified; first_version is the oldest that SQL can rebuild;
-- num_records counts what stats tell, files_without_count says how many files do not tell;
-- metadata_version and protocol_version say since when the live ones hold, frozen refuses every commit,
-- table_name is that of dl_tables, head_sha256 is the digest of the newest commit's bytes if they are kept: all
-- these are columns here because only the locked row is sure to be as new as the lock
CREATE TABLE dl_heads (
  table_id {bigint} NOT NULL{pk},
  head_version {bigint} NOT NULL,
  head_timestamp {bigint} NOT NULL,
  first_version {bigint} NOT NULL,
  num_files {bigint} NOT NULL,
  size_bytes {bigint} NOT NULL,
  num_records {bigint} NOT NULL,
  files_without_count {bigint} NOT NULL,
  next_file_seq {bigint} NOT NULL,
  metadata_version {bigint} NOT NULL,
  protocol_version {bigint} NOT NULL,
  frozen BOOLEAN NOT NULL,
  table_name {ctext} NOT NULL,
  head_sha256 TEXT
);

-- name: how far each table is published
CREATE TABLE dl_mirror (
  table_id {bigint} NOT NULL{pk},
  published_version {bigint} NOT NULL,
  published_at {bigint},
  checkpoint_version {bigint} NOT NULL,
  paused BOOLEAN NOT NULL
);

-- name: transactions, which group the commits of several tables
CREATE TABLE dl_transactions (
  txn_uuid TEXT NOT NULL{pk},
  committed_at {bigint} NOT NULL,
  actor TEXT,
  num_commits {bigint} NOT NULL
);

-- name: commits
-- origin: sql (ratified here), import or adopt; info is the commitInfo action's JSON as written
CREATE TABLE dl_commits (
  table_id {bigint} NOT NULL,
  version {bigint} NOT NULL,
  txn_uuid TEXT NOT NULL,
  ordinal {bigint} NOT NULL,
  timestamp {bigint} NOT NULL,
  operation TEXT,
  is_blind_append BOOLEAN NOT NULL,
  data_change BOOLEAN NOT NULL,
  num_added {bigint} NOT NULL,
  num_removed {bigint} NOT NULL,
  info TEXT,
  origin TEXT NOT NULL,
  actor TEXT,
  sha256 TEXT,
  size_bytes {bigint}{key: table_id, version}
);

-- name: find a commit by its transaction
-- only: sqlite, postgres
CREATE UNIQUE INDEX dl_commits_txn ON dl_commits (txn_uuid, table_id, ordinal);

-- name: find a commit by its time
-- only: sqlite, postgres
CREATE INDEX dl_commits_time ON dl_commits (table_id, timestamp);

-- name: the exact bytes of commits
-- a row vanishes when its bytes are pruned; dl_commits keeps digest and length for ever
CREATE TABLE dl_commit_bytes (
  table_id {bigint} NOT NULL,
  version {bigint} NOT NULL,
  bytes {blob} NOT NULL{key: table_id, version}
);

-- name: publishing state of commits
-- state: pending, published or failed; reads is JSON of the rows and files that an unpublished commit depends
-- on: null for a blind append, and once it is published
CREATE TABLE dl_outbox (
  table_id {bigint} NOT NULL,
  version {bigint} NOT NULL,
  state TEXT NOT NULL,
  attempts {bigint} NOT NULL,
  next_try_at {bigint},
  published_at {bigint},
  error TEXT,
  reads TEXT{key: table_id, version}
);

-- name: find what is not yet published
-- only: sqlite, postgres
CREATE INDEX dl_outbox_open ON dl_outbox (table_id, version) WHERE state <> 'published';

-- name: metadata as intervals; raw is the action's JSON
CREATE TABLE dl_metadata (
  table_id {bigint} NOT NULL,
  add_version {bigint} NOT NULL,
  remove_version {bigint},
  raw TEXT NOT NULL{key: table_id, add_version}
);

-- name: protocol as intervals; raw is the action's JSON
CREATE TABLE dl_protocol (
  table_id {bigint} NOT NULL,
  add_version {bigint} NOT NULL,
  remove_version {bigint},
  raw TEXT NOT NULL{key: table_id, add_version}
);

-- name: application transactions as intervals
CREATE TABLE dl_txns (
  table_id {bigint} NOT NULL,
  app_id {ctext} NOT NULL,
  app_version {bigint} NOT NULL,
  add_version {bigint} NOT NULL,
  remove_version {bigint},
  raw TEXT NOT NULL{key: table_id, app_id, add_version}
);

-- name: metadata domains as intervals
CREATE TABLE dl_domains (
  table_id {bigint} NOT NULL,
  domain {ctext} NOT NULL,
  removed BOOLEAN NOT NULL,
  add_version {bigint} NOT NULL,
  remove_version {bigint},
  raw TEXT NOT NULL{key: table_id, domain, add_version}
);

-- name: files as intervals
-- file_id is (table_id << 40) | seq, and sequence numbers are given in the order of commits; identity is
-- (path, dv_id); partition_values is the JSON of the add action
CREATE TABLE dl_files (
  file_id {file_id},
  add_version {bigint} NOT NULL,
  remove_version {bigint},
  deletion_timestamp {bigint},
  size {bigint} NOT NULL,
  modification_time {bigint} NOT NULL,
  num_records {bigint},
  data_change BOOLEAN NOT NULL,
  path {ctext} NOT NULL,
  dv_id {ctext} NOT NULL,
  partition_values {ctext} NOT NULL
);

-- name: find removed files by the version that removed them
-- only: sqlite, postgres
CREATE INDEX dl_files_removed ON dl_files ((file_id >> 40), remove_version) WHERE remove_version IS NOT NULL;

-- name: what few files have
-- more is JSON of tags, row ids, clustering provider and unknown fields; remove_action is the exact remove, and
-- null if another row of the same identity replaced the file
CREATE TABLE dl_file_details (
  file_id {file_id},
  deletion_vector TEXT,
  more TEXT,
  remove_action TEXT
);

-- name: statistics of recent files, as JSON
-- a file has a row here until it is packed
CREATE TABLE dl_file_stats (
  file_id {file_id},
  stats TEXT
);

-- name: statistics of packed files, as compressed JSON
-- of all ids from first_id to last_id
CREATE TABLE dl_stats_blocks (
  first_id {file_id},
  last_id {bigint} NOT NULL,
  crc {bigint} NOT NULL,
  data {blob} NOT NULL
);

-- name: packs
-- the files with ids from first_id to last_id
CREATE TABLE dl_packs (
  first_id {file_id},
  last_id {bigint} NOT NULL,
  num_files {bigint} NOT NULL
);

-- name: columns of packs, derived from rows and statistics
-- low and high are images of the least and the greatest value; null if some value is unknown
CREATE TABLE dl_pack_columns (
  first_id {bigint} NOT NULL,
  name {ctext} NOT NULL,
  low {bigint},
  high {bigint},
  crc {bigint} NOT NULL,
  data {blob} NOT NULL{key: first_id, name}
);

-- name: columns are compressed already
-- only: postgres
ALTER TABLE dl_pack_columns ALTER COLUMN data SET STORAGE EXTERNAL;

-- name: blocks are compressed already
-- only: postgres
ALTER TABLE dl_stats_blocks ALTER COLUMN data SET STORAGE EXTERNAL;

-- name: leases, on the database's clock
CREATE TABLE dl_leases (
  name TEXT NOT NULL{pk},
  holder TEXT NOT NULL,
  token {bigint} NOT NULL,
  expires_at {bigint} NOT NULL
);

-- name: imports of existing tables
-- phase: loading, verifying, finalized, failed or undone; plan and details are JSON objects; table_id is
-- reserved from the beginning and in the registry only once the import is finalized
CREATE TABLE dl_imports (
  import_id TEXT NOT NULL{pk},
  table_id {bigint} NOT NULL,
  name {ctext} NOT NULL,
  location {ctext} NOT NULL,
  engine TEXT NOT NULL,
  phase TEXT NOT NULL,
  plan TEXT NOT NULL,
  first_version {bigint} NOT NULL,
  source_version {bigint} NOT NULL,
  batches_total {bigint} NOT NULL,
  files_expected {bigint} NOT NULL,
  actor TEXT NOT NULL,
  started_at {bigint} NOT NULL,
  updated_at {bigint} NOT NULL,
  finished_at {bigint},
  digest TEXT,
  error TEXT,
  details TEXT NOT NULL
);

-- name: find imports by table
-- only: sqlite, postgres
CREATE INDEX dl_imports_name ON dl_imports (name, started_at);

-- name: receipts of batches
-- kind: base (begins and ends are positions in the checkpoint) or tail (they are versions); counters are what
-- the batch changed: files, bytes and rows may fall; proof has the digest and the sums of what was read, until
-- the import is finalized
CREATE TABLE dl_import_batches (
  import_id TEXT NOT NULL,
  batch {bigint} NOT NULL,
  kind TEXT NOT NULL,
  begins {bigint} NOT NULL,
  ends {bigint} NOT NULL,
  actions {bigint} NOT NULL,
  num_files {bigint} NOT NULL,
  size_bytes {bigint} NOT NULL,
  num_records {bigint} NOT NULL,
  files_without_count {bigint} NOT NULL,
  next_file_seq {bigint} NOT NULL,
  written_at {bigint} NOT NULL,
  milliseconds {bigint} NOT NULL,
  memory_bytes {bigint} NOT NULL,
  proof {blob}{key: import_id, batch}
);

-- name: files that vacuums delete or have deleted
-- recorded before the first one is deleted, so that no commit adds one of them again;
-- path is decoded and below the table's root; started and ended are the versions of VACUUM START and VACUUM
-- END, ended is null while the vacuum runs and after it was killed
CREATE TABLE dl_vacuumed (
  table_id {bigint} NOT NULL,
  path_hash {bigint} NOT NULL,
  path {ctext} NOT NULL,
  started {bigint} NOT NULL,
  ended {bigint}
);

-- name: find vacuumed files by path
-- only: sqlite, postgres
CREATE INDEX dl_vacuumed_path ON dl_vacuumed (table_id, path_hash);

-- name: sequence of audit rows
-- only: duckdb
CREATE SEQUENCE dl_audit_ids;

-- name: audit of every change
CREATE TABLE dl_audit (
  audit_id {auto_audit_id},
  recorded_at {bigint} NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  table_id {bigint},
  table_name TEXT,
  version {bigint},
  txn_uuid TEXT,
  details TEXT NOT NULL
);

-- Views with documented names, for queries in plain SQL. Times are epoch milliseconds.

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
-- stats is null once the file is packed
CREATE VIEW dl_v_files AS
SELECT t.name AS table_name, f.path, f.size, f.num_records, f.modification_time, f.partition_values, s.stats,
       d.deletion_vector, f.add_version, t.table_id, f.file_id
FROM dl_tables t
JOIN dl_files f ON f.file_id >= (t.table_id << 40) AND f.file_id < ((t.table_id + 1) << 40)
LEFT JOIN dl_file_stats s ON s.file_id = f.file_id
LEFT JOIN dl_file_details d ON d.file_id = f.file_id
WHERE f.remove_version IS NULL;

-- name: every file with the versions it lived through
CREATE VIEW dl_v_file_history AS
SELECT t.name AS table_name, f.path, f.dv_id, f.size, f.num_records, f.add_version, f.remove_version,
       f.deletion_timestamp, t.table_id, f.file_id
FROM dl_tables t
JOIN dl_files f ON f.file_id >= (t.table_id << 40) AND f.file_id < ((t.table_id + 1) << 40);

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

-- name: imports with the totals of their receipts
CREATE VIEW dl_v_imports AS
SELECT i.name AS table_name, i.location, i.phase, i.engine, i.first_version, i.source_version,
       i.batches_total, count(b.batch) AS batches_done, i.files_expected,
       CAST(coalesce(sum(b.actions), 0) AS {bigint}) AS actions_done,
       CAST(coalesce(sum(b.num_files), 0) AS {bigint}) AS num_files,
       CAST(coalesce(sum(b.milliseconds), 0) AS {bigint}) AS load_milliseconds,
       max(b.memory_bytes) AS memory_bytes, i.actor, i.started_at, i.updated_at, i.finished_at, i.digest, i.error,
       i.import_id, i.table_id
FROM dl_imports i
LEFT JOIN dl_import_batches b ON b.import_id = i.import_id
GROUP BY i.name, i.location, i.phase, i.engine, i.first_version, i.source_version, i.batches_total, i.files_expected,
         i.actor, i.started_at, i.updated_at, i.finished_at, i.digest, i.error, i.import_id, i.table_id;
