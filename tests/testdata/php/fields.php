<?php
// Answers with the passwords and users that PHP sees in a request, in the header X-Sees: a wild
// application reads the body itself, whatever the method and type are.
$body = (string)file_get_contents('php://input');
parse_str($body, $pairs);
$json = json_decode($body, true);
$type = strtolower($_SERVER['CONTENT_TYPE'] ?? '');
$tables = [$_GET, $_POST, $_FILES, is_array($json) ? $json : []];
if (str_starts_with($type, 'application/x-www-form-urlencoded') || $type === '') {
    $tables[] = $pairs;
}
$sees = ['passwords' => 0, 'users' => [], 'zone' => $_SERVER['HTTP_X_ZONE'] ?? '', 'key' => $_SERVER['HTTP_X_KEY'] ?? ''];
foreach ($tables as $table) {
    $user = is_array($table['user'] ?? null) ? $table['user'] : [];
    $sees['passwords'] += isset($table['pwd']) + isset($user['password']);
    if (isset($table['log'])) {
        $sees['users'][] = is_scalar($table['log']) ? base64_encode((string)$table['log']) : null;
    }
}
header('X-Sees: ' . json_encode($sees));
