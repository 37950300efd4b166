-- Locations with symbolic links resolved, so that a new table is checked against a few others, not against all.

-- name: the location with links resolved
-- as it was when the table was registered
ALTER TABLE dl_tables ADD COLUMN real_location {ctext};

-- name: fill it
-- SQL cannot resolve links: tables registered earlier keep the location they were given
UPDATE dl_tables SET real_location = location;

-- name: one table for each location
-- only: sqlite, postgres
CREATE UNIQUE INDEX dl_tables_real_location ON dl_tables (real_location);
