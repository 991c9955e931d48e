<?php
// Answers each line, a locale and a text in base64, with the name that WordPress looks up
// for the text: its own sanitize_user, once in wp_authenticate and once in
// WP_User::get_data_by.
$locale = 'en_US';
function get_locale() { global $locale; return $locale; }
function apply_filters($hook, $value) { return $value; }
function mbstring_binary_safe_encoding($reset = false) {}
function reset_mbstring_encoding() {}
function get_option($name) { return 'UTF-8'; }
function _wp_can_use_pcre_u() { return true; }
require '/usr/share/wordpress/wp-includes/formatting.php';
while (($line = fgets(STDIN)) !== false) {
    [$locale, $texts] = explode(' ', trim($line), 2);
    $names = [];
    foreach (explode(' ', $texts) as $text) {
        $names[] = base64_encode(sanitize_user(sanitize_user(base64_decode($text))));
    }
    echo implode(' ', $names), "\n";
}
