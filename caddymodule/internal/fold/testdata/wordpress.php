<?php
// Answers each line, a text in base64, with strip_tags of it and with the name that
// WordPress 6 looks up for it: sanitize_user of wp-includes/formatting.php, once in
// wp_authenticate and once in WP_User::get_data_by. Of accents, only some: a real
// WordPress has a table of them.
function strip_all_tags($text) {
    foreach (['script', 'style'] as $name) {
        // In one expression with a back reference there; apart, nested ones differ.
        $names[] = "<$name" . '[^>]*?>.*?</' . "$name>";
    }
    return trim(strip_tags(preg_replace('@' . implode('|', $names) . '@si', '', $text)));
}
function sanitize($name) {
    $name = strtr(strip_all_tags($name), ['á' => 'a', 'Á' => 'A', 'ï' => 'i', 'ö' => 'o', 'ß' => 's', 'Æ' => 'AE', 'ł' => 'l', '€' => 'E', '£' => '']);
    $name = preg_replace('/%[a-f0-9]{2}/i', '', $name);
    $name = preg_replace('/&.+?;/', '', $name);
    return preg_replace('/\s+/', ' ', trim($name));
}
while (($line = fgets(STDIN)) !== false) {
    $text = base64_decode($line);
    echo base64_encode(strip_tags($text)), ' ', base64_encode(sanitize(sanitize($text))), "\n";
}
