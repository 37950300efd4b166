-- What a publisher needs to know of the commit before its own.

-- name: the digest of the newest commit's bytes; null where they are not kept
ALTER TABLE dl_heads ADD COLUMN head_sha256 {text};
