<!doctype html>
<title>An old site</title>
<p>executed: index.php</p>
