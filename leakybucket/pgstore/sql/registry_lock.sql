-- Whoever writes texts does so alone, since the numbers of writes grow. The lock ends with the
-- transaction.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
