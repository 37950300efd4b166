-- Imports of existing tables: phases, receipts of batches, and what to show of them.

-- name: drop the unused first sketch
DROP TABLE dl_migrations;

-- name: imports
-- phase: loading, verifying, finalized, failed or undone; plan and details are JSON objects; table_id is
-- reserved from the beginning and in the registry only once the import is finalized
CREATE TABLE dl_imports (
  import_id {text} NOT NULL{pk},
  table_id {bigint} NOT NULL,
  name {ctext} NOT NULL,
  location {ctext} NOT NULL,
  engine {text} NOT NULL,
  phase {text} NOT NULL,
  plan {text} NOT NULL,
  first_version {bigint} NOT NULL,
  source_version {bigint} NOT NULL,
  batches_total {bigint} NOT NULL,
  files_expected {bigint} NOT NULL,
  deferred_indexes {bool} NOT NULL,
  actor {text} NOT NULL,
  started_at {bigint} NOT NULL,
  updated_at {bigint} NOT NULL,
  finished_at {bigint},
  digest {text},
  error {text},
  details {text} NOT NULL
);

-- name: find imports by table
-- only: sqlite, postgres
CREATE INDEX dl_imports_name ON dl_imports (name, started_at);

-- name: receipts of batches
-- kind: base (begins and ends are positions in the checkpoint) or tail (they are versions); counters are what
-- the batch changed: files, bytes and rows may fall
CREATE TABLE dl_import_batches (
  import_id {text} NOT NULL,
  batch {bigint} NOT NULL,
  kind {text} NOT NULL,
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
  memory_bytes {bigint} NOT NULL{pk_batches}
);

-- name: imports with what their receipts add up to
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
