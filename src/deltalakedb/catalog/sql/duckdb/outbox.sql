-- DuckDB plans a statement for every execution: with {rows} it is run once for all its parameter sets.

-- name: published
UPDATE dl_outbox SET state = 'published', published_at = r.noted_at, error = NULL
FROM (VALUES {rows}) AS r (noted_at, table_id, version)
WHERE dl_outbox.table_id = r.table_id AND dl_outbox.version = r.version AND state <> 'published';

-- name: advance
-- the watermark only ever rises
UPDATE dl_mirror SET published_version = r.version, published_at = r.noted_at
FROM (VALUES {rows}) AS r (version, noted_at, table_id, least)
WHERE dl_mirror.table_id = r.table_id AND published_version < r.least;
