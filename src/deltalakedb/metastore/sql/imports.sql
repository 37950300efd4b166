-- Imports of existing tables and the receipts of their batches.

-- name: open
-- unfinished imports of a name or a location
SELECT {import}
FROM dl_imports WHERE phase IN ('loading', 'verifying') AND (name = ? OR location = ?) ORDER BY started_at;

-- name: by name
-- newest first
SELECT {import}
FROM dl_imports WHERE name = ? ORDER BY started_at DESC;

-- name: all
-- newest first
SELECT {import}
FROM dl_imports ORDER BY started_at DESC, name;

-- name: by table
-- the import that made a table
SELECT {import}
FROM dl_imports WHERE table_id = ?;

-- name: receipts
SELECT {receipt}
FROM dl_import_batches WHERE import_id = ? ORDER BY batch;

-- name: proofs
-- of the batches that hold files of the checkpoint
SELECT begins, ends, proof FROM dl_import_batches WHERE import_id = ? AND kind = 'base' AND ends >= begins ORDER BY batch;

-- name: drop proofs
UPDATE dl_import_batches SET proof = NULL WHERE import_id = ?;

-- name: claim receipt
-- only: postgres
-- an empty one; nothing happens if the batch has one, and a twin waits here until the first has ended
INSERT INTO dl_import_batches (import_id, {receipt})
VALUES (?, ?, 'base', 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING;

-- name: unclaim receipt
-- only: postgres
DELETE FROM dl_import_batches WHERE import_id = ? AND batch = ?;

-- name: drop receipts
DELETE FROM dl_import_batches WHERE import_id = ? AND batch >= ?;

-- name: insert table
-- under the id that was reserved
INSERT INTO dl_tables (table_id, name, location, real_location, state, state_reason, comment, tags, settings,
  created_at, updated_at)
VALUES (?, ?, ?, ?, 'active', NULL, NULL, '{}', '{}', ?, ?);

-- name: drop table
-- what is remembered of the import that brought a table stays; one that is only being undone is not meant
UPDATE dl_imports SET phase = 'dropped' WHERE table_id = ? AND phase = 'finalized';

-- name: set location
-- of the imports that brought a table, when it moves
UPDATE dl_imports SET location = ? WHERE table_id = ?;

-- name: unreserve
-- the row whose id was reserved
DELETE FROM dl_tables WHERE table_id = ?;
