-- Forgets one bucket.
DELETE FROM {table} WHERE name = $1
