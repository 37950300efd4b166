-- Opening a table: one row has everything but the files.

-- name: open
-- the newest versions of tables by their names
SELECT {table}, h.head_version, h.head_timestamp, d.raw, p.raw
FROM {tables}
LEFT JOIN dl_metadata d ON d.table_id = t.table_id AND d.remove_version IS NULL
LEFT JOIN dl_protocol p ON p.table_id = t.table_id AND p.remove_version IS NULL
WHERE t.name IN (??);

-- name: open at
-- a table by name at one version; the last four columns are null if the catalog does not have that version
SELECT {table}, c.version, c.timestamp, d.raw, p.raw
FROM {tables}
LEFT JOIN dl_commits c ON c.table_id = t.table_id AND c.version = ?
LEFT JOIN dl_metadata d ON d.table_id = t.table_id AND d.add_version <= c.version
  AND (d.remove_version IS NULL OR d.remove_version > c.version)
LEFT JOIN dl_protocol p ON p.table_id = t.table_id AND p.add_version <= c.version
  AND (p.remove_version IS NULL OR p.remove_version > c.version)
WHERE t.name = ?;

-- name: head
-- what is newer than a version that is known already: the last three columns say since when the live metadata
-- and protocol hold, and the last is null if that version is no longer the one that was read
SELECT {table}, h.metadata_version, h.protocol_version, c.version
FROM {tables}
LEFT JOIN dl_commits c ON c.table_id = t.table_id AND c.version = ? AND c.timestamp = ?
WHERE t.name = ?;

-- name: lock
-- heads of the tables of a transaction, in one order, so that two transactions never wait for each other
SELECT {registered}, {locked}, m.published_version,
       CASE WHEN EXISTS (SELECT 1 FROM dl_outbox o WHERE o.table_id = h.table_id AND o.state <> 'published') THEN -1
            ELSE m.published_version END,
       (m.paused OR EXISTS (SELECT 1 FROM dl_settings s WHERE s.name = 'mirror.paused')), {clock}
FROM {tables}
WHERE h.table_id IN (??)
ORDER BY h.table_id;

-- DuckDB plans every statement anew, and joins cost it the most: it reads the parts of a locked table one by one.

-- name: lock heads
-- only: duckdb
SELECT h.table_id, {locked} FROM dl_heads h WHERE h.table_id IN (??);

-- name: lock publishing
-- only: duckdb
-- versions above the newest recorded one may be postponed notes of this process
SELECT m.table_id, m.published_version,
       CASE WHEN EXISTS (SELECT 1 FROM dl_outbox o WHERE o.table_id = m.table_id AND o.version <= m.published_version
                         AND o.state <> 'published') THEN -1
            ELSE m.published_version END,
       m.paused OR EXISTS (SELECT 1 FROM dl_settings s WHERE s.name = 'mirror.paused'), NULL
FROM dl_mirror m WHERE m.table_id IN (??);

-- name: state versions
-- since when the live metadata and protocol hold
SELECT (SELECT max(add_version) FROM dl_metadata WHERE table_id = ? AND remove_version IS NULL),
       (SELECT max(add_version) FROM dl_protocol WHERE table_id = ? AND remove_version IS NULL);

-- name: live metadata
SELECT raw FROM dl_metadata WHERE table_id = ? AND remove_version IS NULL;

-- name: live protocol
SELECT raw FROM dl_protocol WHERE table_id = ? AND remove_version IS NULL;

-- name: close metadata
UPDATE dl_metadata SET remove_version = ? WHERE table_id = ? AND remove_version IS NULL;

-- name: close protocol
UPDATE dl_protocol SET remove_version = ? WHERE table_id = ? AND remove_version IS NULL;

-- name: txns at
SELECT raw FROM dl_txns WHERE table_id = ? AND add_version <= ? AND (remove_version IS NULL OR remove_version > ?);

-- name: txn at
SELECT raw FROM dl_txns WHERE table_id = ? AND app_id = ? AND add_version <= ? AND (remove_version IS NULL OR remove_version > ?);

-- name: close txn
UPDATE dl_txns SET remove_version = ? WHERE table_id = ? AND app_id = ? AND remove_version IS NULL;

-- name: domains at
SELECT raw FROM dl_domains
WHERE table_id = ? AND add_version <= ? AND (remove_version IS NULL OR remove_version > ?) AND NOT removed;

-- name: close domain
UPDATE dl_domains SET remove_version = ? WHERE table_id = ? AND domain = ? AND remove_version IS NULL;
