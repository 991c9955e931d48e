<?php
// Installs the WordPress in the folder that is the first argument, as its own
// installer does, with people and posts.
define( 'WP_INSTALLING', true );
require $argv[1] . '/wp-load.php';
require_once ABSPATH . 'wp-admin/includes/upgrade.php';

function wp_new_blog_notification() {} // it would send mail

wp_install( 'The shop', 'admin', 'admin@example.com', true, '', 'right' );
foreach ( array( 'author', 'colleague' ) as $name ) {
	$person = wp_insert_user(
		array(
			'user_login' => $name,
			'user_pass'  => 'right',
			'user_email' => $name . '@example.com',
			'role'       => 'editor',
		)
	);
	if ( is_wp_error( $person ) ) {
		exit( $person->get_error_message() );
	}
	WP_Application_Passwords::create_new_application_password( $person, array( 'name' => 'phone' ) );
}
// The editor's tour would be in the way of everybody.
foreach ( get_users() as $person ) {
	update_user_meta(
		$person->ID,
		'wp_persisted_preferences',
		array(
			'core/edit-post' => array( 'welcomeGuide' => false ),
			'_modified'      => '2026-01-01T00:00:00.000Z',
		)
	);
}
$text = '<!-- wp:paragraph --><p>' . str_repeat( 'We sell kettles and mend them. ', 60 ) . '</p><!-- /wp:paragraph -->';
for ( $n = 1; $n <= 30; $n++ ) {
	wp_insert_post(
		array(
			'post_title'   => 'Kettle ' . $n,
			'post_name'    => 'kettle-' . $n,
			'post_content' => $text,
			'post_status'  => 'publish',
			'post_author'  => 1,
		)
	);
}
wp_insert_post(
	array(
		'post_title'    => 'For members',
		'post_name'     => 'members',
		'post_content'  => $text,
		'post_status'   => 'publish',
		'post_author'   => 1,
		'post_password' => 'right',
	)
);
wp_insert_post(
	array(
		'post_type'   => 'page',
		'post_title'  => 'My account',
		'post_name'   => 'my-account',
		'post_status' => 'publish',
		'post_author' => 1,
	)
);
update_option( 'show_avatars', 0 ); // they are on another host
update_option( 'permalink_structure', '/%postname%/' );
flush_rewrite_rules();
