-- Postgres makes digests itself.

-- name: stretch
-- Both tables are asked for the ids, so that they are merged in order; no index but that of the ids may be used.
SELECT count(*), md5(coalesce(string_agg(text, chr(30) ORDER BY file_id), ''))
FROM (
  SELECT f.file_id, f.path || chr(31) || f.dv_id || chr(31) || f.size || chr(31) || f.modification_time || chr(31)
         || j.partition_values || chr(31) || coalesce(j.stats, '') AS text
  FROM dl_files f JOIN dl_file_json j ON j.file_id = f.file_id
  WHERE f.file_id > ? AND f.file_id < ? AND j.file_id > ? AND j.file_id < ?
    AND f.add_version <= ? AND coalesce(f.remove_version, 9223372036854775807) > ?
) files;
