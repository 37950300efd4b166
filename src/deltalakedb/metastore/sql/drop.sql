-- All rows of one table except its files, in the order in which they are deleted.

-- name: dl_domains
DELETE FROM dl_domains WHERE table_id = ?;

-- name: dl_txns
DELETE FROM dl_txns WHERE table_id = ?;

-- name: dl_metadata
DELETE FROM dl_metadata WHERE table_id = ?;

-- name: dl_protocol
DELETE FROM dl_protocol WHERE table_id = ?;

-- name: dl_vacuumed
DELETE FROM dl_vacuumed WHERE table_id = ?;

-- name: dl_outbox
DELETE FROM dl_outbox WHERE table_id = ?;

-- name: dl_commit_bytes
DELETE FROM dl_commit_bytes WHERE table_id = ?;

-- name: dl_commits
DELETE FROM dl_commits WHERE table_id = ?;

-- name: dl_mirror
DELETE FROM dl_mirror WHERE table_id = ?;

-- name: dl_heads
DELETE FROM dl_heads WHERE table_id = ?;

-- name: dl_tables
DELETE FROM dl_tables WHERE table_id = ?;

-- name: dl_imports
-- what is remembered of the import that brought the table stays; one that is only being undone is not meant
UPDATE dl_imports SET phase = 'dropped' WHERE table_id = ? AND phase = 'finalized';
