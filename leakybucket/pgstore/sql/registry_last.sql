-- Reads the mark of the last write. Numbers from 2^52 on are not ours.
SELECT coalesce(max(number) FILTER (WHERE number < 4503599627370496), 0) FROM {registry} WHERE name = $1
