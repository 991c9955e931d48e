<?php
// Answers as WordPress does: a login that fails with the form again and 200, one
// that succeeds with 302.
header('Content-Type: text/plain; charset=utf-8');
if (($_POST['pwd'] ?? '') === 'right') {
	header('Location: /wp-admin/', true, 302);
}
echo "executed: wp-login.php\n";
foreach (['SCRIPT_NAME', 'PATH_INFO', 'REQUEST_URI'] as $name) {
	echo $name, ': ', $_SERVER[$name] ?? '', "\n";
}
