<?php
// Makes a network of the WordPress in the folder that is the first argument, as its own
// installer does: of sites in folders, or with names of their own if the second argument is
// names. Run again with a third argument, it adds the sites one and two.
define( 'WP_INSTALLING', true );
$_SERVER['NETWORK']     = $argv[2];
$_SERVER['REMOTE_ADDR'] = '127.0.0.1';
if ( ! isset( $argv[3] ) ) {
	define( 'NEW_NETWORK', true );
}
require $argv[1] . '/wp-load.php';
require_once ABSPATH . 'wp-admin/includes/upgrade.php';

function wp_new_blog_notification() {} // it would send mail

$names = 'names' === $argv[2];
if ( ! isset( $argv[3] ) ) {
	wp_install( 'The shop', 'admin', 'admin@example.com', true, '', 'right' );
	$wpdb->set_prefix( $table_prefix );
	foreach ( $wpdb->tables( 'ms_global' ) as $table => $name ) {
		$wpdb->$table = $name;
	}
	install_network();
	$made = populate_network( 1, 'localhost', 'admin@example.com', 'The shops', '/', $names );
	if ( is_wp_error( $made ) && 'no_wildcard_dns' !== $made->get_error_code() ) {
		exit( $made->get_error_message() );
	}
	exit;
}
WP_Application_Passwords::create_new_application_password( 1, array( 'name' => 'phone' ) );
foreach ( array( 'one', 'two' ) as $site ) {
	$made = $names ? wpmu_create_blog( "$site.localhost", '/', $site, 1 ) : wpmu_create_blog( 'localhost', "/$site/", $site, 1 );
	if ( is_wp_error( $made ) ) {
		exit( $made->get_error_message() );
	}
}
