-- Files that vacuums delete or have deleted.

-- name: among
SELECT path, started, ended FROM dl_vacuumed WHERE table_id = ? AND path_hash IN (??);

-- name: ended
-- files that are deleted for certain, with the version that ended their vacuum
SELECT path, ended FROM dl_vacuumed WHERE table_id = ? AND ended IS NOT NULL;

-- name: unended
SELECT path FROM dl_vacuumed WHERE table_id = ? AND ended IS NULL;

-- name: end files
UPDATE dl_vacuumed SET ended = ? WHERE table_id = ? AND path_hash IN (??) AND ended IS NULL;

-- name: forget
DELETE FROM dl_vacuumed WHERE table_id = ? AND path_hash IN (??);

-- name: end
UPDATE dl_vacuumed SET ended = ? WHERE table_id = ? AND started = ? AND ended IS NULL;

-- name: added since
-- files that versions after one have added
SELECT path, dv_id FROM dl_files WHERE table_id = ? AND add_version > ?;

-- name: head
SELECT head_version FROM dl_heads WHERE table_id = ?;
