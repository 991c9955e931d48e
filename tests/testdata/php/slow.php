<?php
// Keeps its worker busy for ?ms=, and says for how long it really was.
$began = microtime(true);
usleep(1000 * (int) ($_GET['ms'] ?? 0));
echo 'worked: ', microtime(true) - $began, "\n";
