<?php
// Answers with the user of HTTP Basic, as PHP reads it.
echo base64_encode($_SERVER['PHP_AUTH_USER'] ?? '');
