-- What `mirror resolve` checks a commit by that was not published.

-- name: what an unpublished commit was made from
-- JSON of the rows and files that its result depends on; null for a blind append, and once it is published
ALTER TABLE dl_outbox ADD COLUMN reads {text};
