{
	const find = (query) => document.querySelector(query);
	const timer = find("b"), bar = find("progress"), said = find("[role=status]"), later = find("p noscript");
	const units = timer.dataset.units.split("|").map((forms) => forms.split(","));
	const plural = new Intl.PluralRules(document.documentElement.lang);
	const whole = timer.dataset.left * 1e3, due = Date.now() + whole;

	const tick = () => {
		const left = Math.max(0, due - Date.now());
		if (!left && (!later || document.visibilityState === "visible" && navigator.onLine)) {
			clearInterval(clock);
			document.removeEventListener("visibilitychange", tick);
			find("#wait").hidden = bar.hidden = true;
			said.textContent = said.dataset.then;
			if (later) location.reload();
			return;
		}
		let n = Math.ceil(left / 1e3), unit = 0;
		while (n > 120 && unit < 2) n = Math.ceil(n / 60), unit++;
		const forms = units[unit];
		const text = n + (forms[["one", "few"].indexOf(plural.select(n))] || forms[forms.length - 1]);
		if (timer.textContent !== text) timer.textContent = text;
		bar.value = 1 - left / whole;
	};

	if (later) said.textContent = later.textContent;
	bar.hidden = false;
	const clock = setInterval(tick, 500);
	document.addEventListener("visibilitychange", tick);
	tick();
}
