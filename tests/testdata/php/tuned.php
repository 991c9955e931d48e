<!doctype html>
<title>A page in shadow</title>
<link rel="icon" href="data:,">
<p>executed: tuned.php</p>
<script>
addEventListener("load", () => {
	const [page] = performance.getEntriesByType("navigation");
	const zones = page.serverTiming.filter((mark) => mark.name === "throttle").map((mark) => mark.description);
	if (zones.length) navigator.sendBeacon("/throttle-seen", zones.join());
	document.title = "marks: " + zones.join();
});
</script>
