-- Whoever writes texts does so alone, so that each write knows the one before it. The lock ends
-- with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0))
