<?php
// Keeps a worker busy for as many milliseconds as it is asked to, and says for
// how many seconds it really was.
header('Content-Type: text/plain; charset=utf-8');
usleep(1000 * (int) ($_GET['for'] ?? 0));
printf("executed: slow.php\nworked: %.6f\n", microtime(true) - $_SERVER['REQUEST_TIME_FLOAT']);
