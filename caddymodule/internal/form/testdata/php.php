<?php
// Answers a request with how PHP reads it: $_GET, $_POST, and the body as JSON.
function plain($value) {
    if (is_array($value)) {
        $list = [];
        foreach ($value as $key => $inner) {
            $list[] = [base64_encode((string)$key), plain($inner)];
        }
        return ['list' => $list];
    }
    return is_string($value) || is_int($value) ? ['text' => base64_encode((string)$value)] : ['other' => true];
}
$body = (string)file_get_contents('php://input');
$json = json_decode($body, true);
echo json_encode([plain($_GET), plain($_POST), plain(is_array($json) ? $json : [])]);
