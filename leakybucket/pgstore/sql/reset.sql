DELETE FROM {table} WHERE name = $1
