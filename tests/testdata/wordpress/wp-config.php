<?php
// The config of the WordPress of the tests. Each test runs it on a port of its own.
define( 'DB_NAME', 'site' );
define( 'DB_USER', 'site' );
define( 'DB_PASSWORD', 'site' );
define( 'DB_HOST', 'localhost:' . dirname( __DIR__ ) . '/db.sock' );
define( 'DB_CHARSET', 'utf8mb4' );
define( 'DB_COLLATE', '' );
$table_prefix = 'wp_';
$network      = $_SERVER['NETWORK'] ?? '';
if ( '' === $network || defined( 'NEW_NETWORK' ) ) {
	define( 'WP_HOME', 'https://' . ( $_SERVER['HTTP_HOST'] ?? 'localhost' ) );
	define( 'WP_SITEURL', WP_HOME );
} else {
	define( 'MULTISITE', true );
	define( 'SUBDOMAIN_INSTALL', 'names' === $network );
	define( 'DOMAIN_CURRENT_SITE', 'localhost' );
	define( 'PATH_CURRENT_SITE', '/' );
	define( 'SITE_ID_CURRENT_SITE', 1 );
	define( 'BLOG_ID_CURRENT_SITE', 1 );
}
if ( '' !== $network ) {
	$table_prefix         = $network . '_';
	$_SERVER['HTTP_HOST'] = preg_replace( '/:\d+$/', '', $_SERVER['HTTP_HOST'] ?? 'localhost' );
}
define( 'COOKIEHASH', 'site' );
foreach ( array( 'AUTH', 'SECURE_AUTH', 'LOGGED_IN', 'NONCE' ) as $name ) {
	define( $name . '_KEY', 'a key of the tests for ' . $name );
	define( $name . '_SALT', 'a salt of the tests for ' . $name );
}
if ( 'apache2handler' !== PHP_SAPI ) {
	$_SERVER['HTTPS'] = 'on'; // Apache must say it itself
}
define( 'WP_HTTP_BLOCK_EXTERNAL', true );
define( 'WP_ACCESSIBLE_HOSTS', 'localhost' );
define( 'AUTOMATIC_UPDATER_DISABLED', true );
define( 'WP_DEBUG', false );
if ( ! defined( 'ABSPATH' ) ) {
	define( 'ABSPATH', __DIR__ . '/' );
}
require_once ABSPATH . 'wp-settings.php';
