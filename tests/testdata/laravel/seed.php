<?php
// Makes the database of the application, with the user 7.
$database = new PDO('sqlite:' . $argv[1]);
$database->exec('CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT, password TEXT, remember_token TEXT)');
$database->prepare('INSERT INTO users VALUES (7, ?, ?, NULL)')
    ->execute(['alice@example.com', password_hash('right', PASSWORD_BCRYPT, ['cost' => 4])]);
