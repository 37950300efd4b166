-- What committed since a version: the questions of the conflict check.

-- name: removed among
-- files that were live at the version and are no longer what they were
SELECT f.path, f.dv_id, f.remove_version FROM dl_files f
WHERE f.table_id = ? AND f.remove_version > ? AND f.add_version <= ? AND f.path_hash IN (??)
ORDER BY f.remove_version;

-- name: removed
-- the first files that were live at the version and are gone
SELECT f.path, f.dv_id, f.remove_version FROM dl_files f
WHERE f.table_id = ? AND f.remove_version > ? AND f.add_version <= ?
ORDER BY f.remove_version LIMIT 5;

-- name: txns
SELECT app_id, add_version FROM dl_txns WHERE table_id = ? AND add_version > ? AND app_id IN (??) ORDER BY add_version LIMIT 1;

-- name: domains
SELECT domain, add_version FROM dl_domains WHERE table_id = ? AND add_version > ? AND domain IN (??) ORDER BY add_version LIMIT 1;

-- name: operation
SELECT operation FROM dl_commits WHERE table_id = ? AND version = ?;

-- name: application
-- the version an application recorded last, and the table's version that carries it
SELECT app_version, add_version FROM dl_txns WHERE table_id = ? AND app_id = ? AND remove_version IS NULL;

-- name: domain
SELECT raw FROM dl_domains WHERE table_id = ? AND domain = ? AND remove_version IS NULL;
