<?php
// Like WordPress: 302 and a cookie after the right password, the form again after a wrong one.
header('Content-Type: text/plain; charset=utf-8');
if ($_SERVER['REQUEST_METHOD'] === 'POST' && ($_POST['pwd'] ?? '') === 'right') {
	header('Location: /wp-admin/', true, 302);
	header('Set-Cookie: wordpress_logged_in_0f=owner%7C1; path=/; HttpOnly');
}
echo "executed: wp-login.php\n";
foreach (['SCRIPT_NAME', 'PATH_INFO', 'REQUEST_URI'] as $name) {
	echo $name, ': ', $_SERVER[$name] ?? '', "\n";
}
