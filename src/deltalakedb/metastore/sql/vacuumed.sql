-- Files that vacuums delete or have deleted.

-- name: among
SELECT path, started, ended FROM dl_vacuumed WHERE table_id = ? AND path_hash IN (??);

-- name: ended
-- files that are deleted for certain, with the version that ended their vacuum
SELECT path, max(ended) FROM dl_vacuumed WHERE table_id = ? AND ended IS NOT NULL GROUP BY path;

-- name: unended
SELECT DISTINCT path FROM dl_vacuumed WHERE table_id = ? AND ended IS NULL;

-- name: end
UPDATE dl_vacuumed SET ended = ? WHERE table_id = ? AND path_hash IN (??) AND ended IS NULL;

-- name: forget
-- what is known of earlier vacuums of these files that are done
DELETE FROM dl_vacuumed WHERE table_id = ? AND path_hash IN (??) AND ended IS NOT NULL;

-- name: release
DELETE FROM dl_vacuumed WHERE table_id = ? AND started = ? AND path_hash IN (??);

-- name: head
SELECT head_version FROM dl_heads WHERE table_id = ?;
