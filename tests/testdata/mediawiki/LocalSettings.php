// What only tests need. It stands before the lines of the recipe.
$wgServer = 'https://' . ( $_SERVER['HTTP_HOST'] ?? 'localhost' );
$wgCacheDirectory = __DIR__ . '/cache';
$wgMainCacheType = CACHE_DB;
$wgJobRunRate = 0;
$wgPasswordAttemptThrottle = []; // throttle is tested, not MediaWiki
$wgHooks['AuthManagerLoginAuthenticateAudit'][] = static function ( $response, $user, $name ) {
	file_put_contents( __DIR__ . '/passwords.log', json_encode( $name ) . "\n", FILE_APPEND | LOCK_EX );
};
