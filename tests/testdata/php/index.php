<!doctype html>
<title>An old site</title>
<p>executed: index.php</p>
<?php for ($n = 1; $n <= 30; $n++) { ?>
<link rel="stylesheet" href="/assets/style.css?n=<?= $n ?>">
<script src="/assets/app.js?n=<?= $n ?>"></script>
<?php } for ($n = 1; $n <= 20; $n++) { ?>
<img src="/assets/pixel.svg?n=<?= $n ?>" alt="">
<?php } ?>
