<?php
// A log-in, as far as its address tells.
header('Content-Type: text/plain; charset=utf-8');
echo "executed: wp-login.php\n";
foreach (['SCRIPT_NAME', 'PATH_INFO', 'REQUEST_URI'] as $name) {
	echo $name, ': ', $_SERVER[$name] ?? '', "\n";
}
