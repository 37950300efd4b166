-- Undoing commits that were never published: all that they changed of one table, except its files.

-- name: dl_metadata
DELETE FROM dl_metadata WHERE table_id = ? AND add_version >= ?;

-- name: dl_metadata open
UPDATE dl_metadata SET remove_version = NULL WHERE table_id = ? AND remove_version >= ?;

-- name: dl_protocol
DELETE FROM dl_protocol WHERE table_id = ? AND add_version >= ?;

-- name: dl_protocol open
UPDATE dl_protocol SET remove_version = NULL WHERE table_id = ? AND remove_version >= ?;

-- name: dl_txns
DELETE FROM dl_txns WHERE table_id = ? AND add_version >= ?;

-- name: dl_txns open
UPDATE dl_txns SET remove_version = NULL WHERE table_id = ? AND remove_version >= ?;

-- name: dl_domains
DELETE FROM dl_domains WHERE table_id = ? AND add_version >= ?;

-- name: dl_domains open
UPDATE dl_domains SET remove_version = NULL WHERE table_id = ? AND remove_version >= ?;

-- name: dl_outbox
DELETE FROM dl_outbox WHERE table_id = ? AND version >= ?;

-- name: dl_commit_bytes
DELETE FROM dl_commit_bytes WHERE table_id = ? AND version >= ?;

-- name: dl_commits
DELETE FROM dl_commits WHERE table_id = ? AND version >= ?;
