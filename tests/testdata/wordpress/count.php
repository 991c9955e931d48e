<?php
// Writes each check of a password to the file passwords.log beside the site.
function site_note( $name ) {
	$line = json_encode(
		array(
			'client' => trim( explode( ',', $_SERVER['HTTP_X_FORWARDED_FOR'] ?? '' )[0] ),
			'name'   => $name,
			'remote' => $_SERVER['REMOTE_ADDR'] ?? '',
			'uri'    => $_SERVER['REQUEST_URI'] ?? '',
		)
	);
	file_put_contents( dirname( __DIR__, 3 ) . '/passwords.log', $line . "\n", FILE_APPEND | LOCK_EX );
}
add_filter(
	'authenticate',
	function ( $user, $name, $password ) {
		if ( '' !== (string) $name && '' !== (string) $password ) {
			site_note( $name );
		}
		return $user;
	},
	1,
	3
);
// HTTP Basic, which does not pass that filter.
add_action(
	'application_password_failed_authentication',
	function () {
		if ( ! doing_filter( 'authenticate' ) ) {
			site_note( $_SERVER['PHP_AUTH_USER'] );
		}
	}
);
