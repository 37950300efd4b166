-- Files that vacuums delete: recorded before the first one goes, so that no commit adds one of them again.

-- name: files that vacuums delete or have deleted
-- path is decoded and below the table's root; started and ended are the versions of VACUUM START and VACUUM
-- END, ended is null while the vacuum runs and after it was killed
CREATE TABLE dl_vacuumed (
  table_id {bigint} NOT NULL,
  path_hash {bigint} NOT NULL,
  path {ctext} NOT NULL,
  started {bigint} NOT NULL,
  ended {bigint}
);

-- name: find vacuumed files by path
-- only: sqlite, postgres
CREATE INDEX dl_vacuumed_path ON dl_vacuumed (table_id, path_hash);
