-- Whoever writes posts does so alone, since their versions must grow. The lock ends with the
-- transaction.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
