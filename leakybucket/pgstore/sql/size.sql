-- Reads how many pages the table has; NULL if there is no table.
SELECT pg_relation_size(to_regclass($1::text)) / current_setting('block_size')::bigint
