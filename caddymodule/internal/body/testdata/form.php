<?php
// Answers a form with how PHP reads it: the fields as nested pairs.
function plain($value) {
    if (!is_array($value)) {
        return ['text' => base64_encode($value)];
    }
    $list = [];
    foreach ($value as $key => $inner) {
        $list[] = [base64_encode((string)$key), plain($inner)];
    }
    return ['list' => $list];
}
echo json_encode(plain($_POST));
