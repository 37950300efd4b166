-- What committed since a version: the queries of the conflict check that are not about files.

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
