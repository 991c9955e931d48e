SELECT coalesce(max(version), 0) FROM {board} WHERE name >= $1 AND name < $2
