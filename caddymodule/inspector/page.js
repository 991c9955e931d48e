// Keys, notes and names are written by strangers. They become text nodes and nothing
// else: this page has no innerHTML, and its policy forbids it.
const find = (query, within = document) => within.querySelector(query);
const writable = find("main").dataset.writable === "true";
const token = find("meta[name=token]").content;
const rowsOfAPage = 25, mostChanges = 200;

// element makes an element. Children are elements or texts.
const element = (tag, properties = {}, ...children) => {
	const made = document.createElement(tag);
	for (const [name, value] of Object.entries(properties)) {
		if (name === "class") made.className = value;
		else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
		else if (value !== undefined && value !== false) made.setAttribute(name, value);
	}
	made.append(...children);
	return made;
};

// put sets a text, and touches the document only if it is another one.
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

const unseen = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]|(?! )\p{Zs}|^ | $/gu;
const codeOf = (letter) => "U+" + letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

// visible returns a text in which letters that are invisible, or that turn or break a
// line, are shown by their numbers.
const visible = (text) => text.replace(unseen, codeOf);

// foreign returns an element for a text of a stranger, apart from what stands around it.
const foreign = (text, name = "") => {
	const made = element("bdi", { class: name });
	let end = 0;
	for (const { 0: letter, index } of text.matchAll(unseen)) {
		made.append(text.slice(end, index), element("span", { class: "esc" }, codeOf(letter)));
		end = index + letter.length;
	}
	made.append(text.slice(end));
	if (text.length > 60) made.title = visible(text);
	return made;
};

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const number = (n) => n >= 100 ? whole.format(n) : fine.format(n);
const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const rate = (n) => n >= 10 ? number(n) : rough.format(n);
const level = (n) => n >= 100 ? whole.format(Math.floor(n)) : (Math.floor(10 * n) / 10).toFixed(1);
const counted = (n, noun) => `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;

// span returns a duration in its two largest units.
const span = (seconds) => {
	let rest = Math.ceil(seconds);
	if (!(rest > 0)) return "";
	if (rest > 1000 * 86400) return "over 1000 d";
	const parts = [];
	for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
		const n = Math.floor(rest / length);
		rest -= n * length;
		if (n > 0 || parts.length) parts.push(n > 0 ? `${n} ${unit}` : "");
		if (parts.length === 2) break;
	}
	return parts.filter(Boolean).join(" ");
};

// Clocks of browsers are wrong now and then, so times are those of Caddy.
let ahead = 0;
const now = () => Date.now() + ahead;
const left = (until) => (Date.parse(until) - now()) / 1e3;
const lasts = (until) => `for another ${span(left(until))}`;
const clock = (time) => {
	const at = new Date(time), today = new Date(now());
	const hours = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
	return at.toDateString() === today.toDateString() ? hours : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${hours}`;
};

// An Answer is an error that Caddy answers with.
class Answer extends Error {}

// ask makes a call of the admin API. It waits as long as Caddy does where the call goes
// through a store.
const ask = async (call, input = {}) => {
	const here = new URL(location.href);
	here.search = "?do=" + call;
	here.hash = here.username = here.password = "";
	const response = await fetch(here, {
		method: "POST", redirect: "manual", cache: "no-store",
		headers: { "Content-Type": "application/json", "X-Throttle-Token": token },
		body: JSON.stringify(input),
		signal: AbortSignal.timeout(call === "release" ? 75e3 : 15e3),
	});
	if (response.type === "opaqueredirect" || response.status === 401) throw new Error("You are logged out: load the page again.");
	const date = Date.parse(response.headers.get("Date"));
	if (date && Math.abs(date - now()) > 2e3) ahead = date - Date.now();
	let answer;
	try {
		answer = await response.json();
	} catch {
		throw new Error(`Caddy answers with status ${response.status}.`);
	}
	if (!response.ok) throw Object.assign(new Answer(answer.error ?? `Caddy answers with status ${response.status}.`), { replaces: response.status === 409 });
	return answer;
};

const say = (text) => put(find("#said"), text);

// rows shows items in the body of a table, and keeps the rows that it has: whoever is on
// a button with the keyboard stays there.
const rows = (table, items, id, make, update) => {
	const body = find("tbody", table);
	const old = new Map(Array.from(body.rows, (row) => [row.dataset.id, row]));
	items.forEach((item, i) => {
		const name = id(item);
		let row = old.get(name);
		old.delete(name);
		if (!row) {
			row = make(item);
			row.dataset.id = name;
		}
		if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] ?? null);
		update?.(row, item);
	});
	for (const row of old.values()) row.remove();
	table.hidden = items.length === 0;
};

const cell = (label, name, ...children) => element("td", { role: "cell", class: name, "data-label": label || false }, ...children);
const button = (text, about, press) => element("button", { type: "button", "aria-label": about ? `${text.replace("…", "")} ${visible(about)}` : false, onclick: press }, text);

// --- asking before a change ---

const dialog = find("#ask"), form = find("#ask-form");
let change, replaces; // the latter after Caddy has said that it would replace another

// propose asks for what a change needs, and makes it.
const propose = ({ title, text, fields = [], does, danger, send, values = {} }) => {
	change = send;
	replaces = false;
	find("#ask-title").replaceChildren(...[title].flat());
	find("#ask-text").replaceChildren(...[text].flat());
	for (const label of form.querySelectorAll("[data-field]")) {
		const name = label.dataset.field, field = form.elements[name];
		label.hidden = !fields.includes(name);
		field.disabled = label.hidden;
		field.required = !label.hidden && (name === "network" || name === "limit");
		field.value = values[name] ?? "";
	}
	find("#ask-error").hidden = true;
	put(find("#do"), does);
	find("#do").classList.toggle("danger", Boolean(danger));
	find("#do").disabled = false;
	dialog.showModal();
	const first = form.querySelector("[data-field]:not([hidden]) input");
	(first ?? find("#do")).focus();
	first?.select();
};

find("#cancel").addEventListener("click", () => dialog.close());
form.addEventListener("submit", async (event) => {
	event.preventDefault();
	const values = {};
	for (const field of form.elements) if (field.name && !field.disabled && field.value.trim()) values[field.name] = field.value.trim();
	find("#do").disabled = true;
	try {
		if (!form.elements.for.disabled) values.for = lengthOf(values);
		delete values.until;
		say(await change(replaces ? { ...values, replace: true } : values));
		dialog.close();
		await Promise.all(Object.values(tasks).filter((task) => !task.shown || task.shown()).map(run));
	} catch (error) {
		put(find("#ask-error"), error.message);
		find("#ask-error").hidden = false;
		if (replaces = error.replaces) put(find("#do"), "Replace it");
	} finally {
		find("#do").disabled = false;
	}
});

// lengthOf returns for how long a change holds that ends then, by the fields of the form.
const lengthOf = ({ for: length, until }) => {
	if (until) {
		const end = new Date(now());
		end.setHours(...until.split(":"), 0, 0);
		if (end <= now()) end.setDate(end.getDate() + 1);
		return `${Math.ceil((end - now()) / 1e3)}s`;
	}
	if (!length) throw new Error("Enter a duration, or a time of day.");
	return length;
};
form.elements.until.addEventListener("input", () => { form.elements.for.value = ""; });
form.elements.for.addEventListener("input", () => { form.elements.until.value = ""; });

// holds says until when a change holds, and where.
const holds = ({ until, sync }) => `until ${clock(until)}${where(sync)}`;
const where = ({ shared, kept, error }) => [
	error ? "on this Caddy; others follow when the store answers" : shared ? "within two seconds on every Caddy of the store" : "on this Caddy",
	!kept && "unless this Caddy restarts first",
].filter(Boolean).map((text) => `, ${text}`).join("");

const proposeBan = (network = "") => propose({
	title: "Ban a network",
	text: "Its requests are refused at every throttle directive. Exemptions take precedence over bans. An IPv6 address stands for its /64.",
	fields: ["network", "for", "until", "note"], values: { network, for: "2h" }, does: "Ban", danger: true,
	send: async (values) => {
		const ban = await ask("ban", values);
		return `${ban.network} is banned ${holds(ban)}.`;
	},
});

const proposeLimit = (zone, key) => propose({
	title: key ? "Change the limit of a key" : "Change the limit of a zone",
	text: key ? ["Zone ", foreign(zone), ", key ", foreign(key)] : ["All keys of the zone ", foreign(zone)],
	fields: ["limit", "for", "until", "note"], values: { limit: key ? "unlimited" : "x0.5", for: "2h" }, does: "Change",
	send: async (values) => {
		const limit = await ask("limit", { zone, key, ...values });
		return `${visible([zone, limit.network ?? key].filter(Boolean).join("/"))}: ${limit.limit} holds ${holds(limit)}.`;
	},
});

const proposeShadow = (zone) => propose({
	title: zone ? "Switch a zone to shadow" : "Stop refusing",
	text: zone ? ["The zone ", foreign(zone), " keeps deciding and counting, but refuses nobody."] : "All zones keep deciding and counting, but nobody is refused, and bans are ignored.",
	fields: ["for", "until", "note"], values: { for: "30m" }, does: zone ? "Switch" : "Stop refusing", danger: !zone,
	send: async (values) => {
		const shadow = await ask("shadow", { zone, ...values });
		return `${zone ? visible(zone) : "Everything"} is in shadow ${holds(shadow)}.`;
	},
});

const proposeRelease = (client, zone) => propose({
	title: zone ? "Reset a bucket" : "Let a client back in",
	text: zone ? ["The bucket of ", foreign(client), " in the zone ", foreign(zone), " is emptied, and its block ends."] : ["All buckets of ", foreign(client), " are emptied, and their blocks end. Bans stay."],
	does: zone ? "Reset" : "Release",
	send: async () => {
		const { count, banned, complete, problem } = await ask("release", { client, zone });
		const told = [count ? `Emptied ${counted(count, "bucket")}.` : "No bucket of this client was in use."];
		if (banned) told.push("It is still banned.");
		if (!complete) told.push(`The search was cut off: there may be more. ${problem ?? ""}`);
		return told.join(" ");
	},
});

const proposeEnd = (call, input, what) => propose({
	title: "End a change", text: ["It ends now: ", ...what], does: "End",
	send: async () => {
		const { ended, sync } = await ask(call, input);
		return ended ? `Ended${where(sync)}.` : "It had ended already.";
	},
});

find("#panic")?.addEventListener("click", () => proposeShadow(""));
find("#ban")?.addEventListener("click", () => proposeBan());

// --- status ---

const svg = (tag, properties = {}) => {
	const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
	for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
	return made;
};

const plotted = ["admitted", "shadow", "refused"], words = { admitted: "admitted", shadow: "would be refused", refused: "refused" };
const sumOf = (point) => point.admitted + point.shadow + point.refused;
const minutes = (time) => clock(time).slice(0, -3);
const plotLength = 600e3;
let rates = {};

// draw stacks what a zone admitted and refused. All zones have one scale.
const draw = (card) => {
	const length = plotLength, end = now();
	const points = (rates[card.dataset.zone] ?? []).map((p) => ({ ...p, at: Date.parse(p.at) })).filter((p) => p.at > end - length);
	const most = Math.max(0, ...Object.values(rates).flat().map(sumOf));
	const x = (at) => 1000 * Math.max(0, 1 - (end - at) / length), y = (sum) => 100 - 98 * sum / (most || 1);
	const step = points.length > 1 ? points[1].at - points[0].at : length / 60;
	let below = points.map(() => 0);
	for (const name of plotted) {
		const above = points.map((p, i) => below[i] + p[name]);
		const side = (sums) => points.flatMap((p, i) => [[p.at - step, sums[i]], [p.at, sums[i]]]).map(([at, sum]) => `${x(at).toFixed(1)} ${y(sum).toFixed(1)}`);
		find("path." + name, card).setAttribute("d", points.some((p) => p[name] > 0) ? `M${[...side(above), ...side(below).reverse()].join("L")}Z` : "");
		below = above;
	}
	card.points = points.map((p) => ({ ...p, x: x(p.at - step / 2) }));
	card.step = step;
	card.classList.toggle("idle", points.length === 0);
	[end - length, end - length / 2, end].forEach((at, i) => put(find(".axis", card).children[i], minutes(at)));
	find("input", card).min = 1 - Math.round(length / step);
	put(find(".most", card), `up to ${rate(Math.max(0, ...points.map(sumOf)))}/s`);
	put(find("#scale"), most ? `Scale: 0 to ${rate(most)} requests/s` : "");
	readPoint(card);
};
const drawAll = () => document.querySelectorAll(".zone").forEach(draw);

// readPoint says what the plot has where the slider is, which counts steps from the last point.
// Its range is that of the plot, and it moves to the nearest point.
const readPoint = (card) => {
	const slider = find("input", card), { points, step } = card, last = points.at(-1);
	if (!last) return;
	const away = (p) => Math.abs((p.at - last.at) / step - slider.value);
	const point = points.reduce((near, p) => away(p) < away(near) ? p : near);
	slider.value = Math.round((point.at - last.at) / step);
	const told = `${clock(point.at)}: ${plotted.filter((name) => name === "admitted" || point[name] > 0).map((name) => `${rate(point[name])} ${words[name]}`).join(", ")} a second`;
	put(find(".read", card), told);
	slider.setAttribute("aria-valuetext", told);
	for (const end of ["x1", "x2"]) find("line", card).setAttribute(end, point.x.toFixed(1));
};

const refreshRates = async () => {
	rates = (await ask("rates")).zones;
	drawAll();
};

const zoneCard = (zone) => {
	const picture = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" });
	picture.append(...plotted.map((name) => svg("path", { class: name })), svg("line", { y1: 0, y2: 100 }));
	const figure = (label, name) => element("div", {}, element("dt", {}, label), element("dd", { "data-of": name }));
	const slider = element("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": `Time in the plot of ${visible(zone)}`, oninput: () => readPoint(card) });
	const card = element("article", { class: "zone" },
		element("div", { class: "head" }, element("h4", {}, foreign(zone)), element("span", { class: "own" }), element("span", { class: "badge" })),
		element("div", { class: "plot" }, element("span", { class: "most" }), picture, element("p", { class: "axis" }, element("span"), element("span"), element("span")), slider, element("p", { class: "read" })),
		element("dl", {}, figure("Admitted/s", "admitted"), figure("Refused/s", "refused"), figure("Shadow/s", "shadow"),
			figure("Buckets", "buckets"), figure("Keys refused", "keys"), figure("Waiting", "waiting")),
		element("p", { class: "reasons", hidden: "" }), element("p", { class: "met soft" }), element("p", { class: "note", hidden: "" }), element("ul", { class: "advice", hidden: "" }));
	picture.addEventListener("pointermove", (event) => {
		const box = picture.getBoundingClientRect(), x = 1000 * (event.clientX - box.left) / box.width;
		slider.value = Math.round((x - (card.points.at(-1)?.x ?? x)) / 1000 * (1 - slider.min));
		readPoint(card);
	});
	if (writable) card.append(element("p", { class: "actions" }, button("Shadow…", zone, () => proposeShadow(zone)), button("Limit…", zone, () => proposeLimit(zone))));
	card.dataset.zone = zone;
	draw(card);
	return card;
};

// limitOf returns a limit as a Caddyfile has it.
const limitOf = ({ capacity, leak }) => {
	const [per, unit] = [[1, "s"], [60, "m"], [3600, "h"], [86400, "d"]].find(([per]) => leak * per >= 1) ?? [86400, "d"];
	return `${number(capacity)} ${number(leak * per)}/${unit}`;
};

const admitted = (rates) => rates.admitted + rates.delayed + rates.shadow_delayed;

// met says what a zone has met since the config was loaded.
const met = (facts) => {
	const of = [`Asked about ${whole.format(facts.asked)} of ${counted(facts.requests, "request")} since the config was loaded`];
	if (facts.exempt) of.push(`${whole.format(facts.exempt)} exempt`);
	if (facts.without_key) of.push(`${whole.format(facts.without_key)} without a key`);
	of.push(`${counted(facts.keys, "key")} from ${counted(facts.networks, "network")}`);
	if (facts.responses) {
		const statuses = Object.entries(facts.responses).map(([status, n]) => `${status} x ${whole.format(n)}`);
		of.push(`kept ${whole.format(facts.charged)} of ${whole.format(facts.charged + facts.refunded)}${statuses.length ? ` (${statuses.join(", ")})` : ""}`);
	} else if (facts.charged + facts.refunded) of.push(`${whole.format(facts.charged)} charged and ${whole.format(facts.refunded)} refunded`);
	if (facts.devices !== undefined) of.push(`gave ${counted(facts.devices, "device cookie")}`);
	return `${of.join(", ")}.`;
};

const showZone = (card, z) => {
	const badge = find(".badge", card);
	put(badge, z.mode);
	badge.classList.toggle("shadow", z.mode === "shadow");
	put(find(".own", card), limitOf(z));
	find("[data-of=shadow]", card).parentNode.hidden = !z.total.shadow_refused;
	find("[data-of=waiting]", card).parentNode.hidden = !z.max_waiting;
	const current = z.per_second;
	const show = (name, value, alarm) => {
		const figure = find(`[data-of=${name}]`, card);
		put(figure, value);
		figure.className = alarm ? name : "";
	};
	show("admitted", rate(admitted(current)));
	show("refused", rate(current.refused), current.refused > 0);
	show("shadow", rate(current.shadow_refused), current.shadow_refused > 0);
	show("keys", whole.format(z.refused_keys));
	show("buckets", whole.format(z.buckets));
	show("waiting", `${whole.format(z.waiting)} of ${whole.format(z.max_waiting ?? 0)}`);
	put(find(".met", card), met(z.since_loaded));
	const notes = [];
	if (z.shadow_until) notes.push(`In shadow ${lasts(z.shadow_until)}.`);
	if (z.mode !== "enforcing") notes.push("Shadow counts as if all zones of the same throttle were enforced.");
	if (z.limit) notes.push(`Limit of all keys: ${z.limit}.`);
	put(find(".note", card), notes.join(" "));
	find(".note", card).hidden = notes.length === 0;
	const reasons = Object.entries(z.refusals ?? {}).sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${whole.format(n)} ${reason.replaceAll("_", " ")}`);
	put(find(".reasons", card), `Refused since Caddy began: ${reasons.join(", ")}.`);
	find(".reasons", card).hidden = reasons.length === 0;
};

// changesText says how this Caddy and the store agree on changes at run time.
const changesText = ({ pending, error }) => {
	const told = [];
	if (error) told.push(`Changes do not reach other Caddys now: ${visible(error)}.`);
	if (pending) told.push(`Not in the store yet: ${counted(pending, "change")}.`);
	return told;
};

const showStore = (store, changes) => {
	const told = [`Store: ${store.name}, ${store.down ? "down" : store.failing ? "failing" : "up"}.`];
	const most = store.max_buckets ? ` of at most ${whole.format(store.max_buckets)}` : "";
	told.push(`Memory: ${counted(store.buckets, "bucket")}${most}, ${whole.format(store.evictions)} dropped before they were empty.`);
	if (store.snapshot_failing) told.push(`The snapshot cannot be written, see Caddy's log: a restart would lose the charges of the last ${span(store.snapshot_age)}.`);
	if (changes) told.push(...changesText(changes));
	put(find("#store"), told.join(" "));
	find("#down").hidden = !store.down;
	const since = store.down_since ? ` since ${clock(store.down_since)}` : "", why = store.error ? ` Reason: ${visible(store.error)}.` : "";
	put(find("#down"), store.down ? `The store ${store.name} is down${since}. Zones follow their on_store_error.${why}` : "");
};

// showList shows warnings in a list, with their details but the zone.
const showList = (list, warnings) => {
	const id = JSON.stringify(warnings);
	if (list.dataset.shown === id) return;
	list.dataset.shown = id;
	list.replaceChildren(...warnings.map(({ at, text, details = {} }) => element("li", {},
		element("span", { class: "soft" }, clock(at)), " ", foreign(text), ...Object.entries(details).filter(([name]) => name !== "zone").flatMap(([name, value]) => [" ", element("span", { class: "soft" }, `${name}: `), foreign(String(value))]))));
};

// showWarnings shows the warnings about a zone in its card, and the others above.
const showWarnings = (warnings) => {
	const cards = new Map(Array.from(document.querySelectorAll(".zone"), (card) => [card.dataset.zone, card]));
	for (const [zone, card] of cards) {
		const own = warnings.filter((w) => w.details?.zone === zone), list = find(".advice", card);
		list.hidden = own.length === 0;
		showList(list, own);
	}
	const others = warnings.filter((w) => !cards.has(w.details?.zone)), box = find("#warnings");
	box.hidden = others.length === 0;
	put(find("summary", box), counted(others.length, "warning"));
	showList(find("ul", box), others);
};

const choose = (select, names, first) => {
	if (select.dataset.names === names.join(" ")) return;
	const was = select.value;
	select.dataset.names = names.join(" ");
	select.replaceChildren(...first, ...names.map((name) => element("option", { value: name }, visible(name))));
	if (names.includes(was)) select.value = was;
};

// showInFlight shows how many requests each in_flight has. Slots are those of each key.
const showInFlight = (limits) => rows(find("#in-flight-table"), limits, (f) => f.name,
	(f) => element("tr", { role: "row" }, cell("", "key", foreign(f.name, "long")), cell("requests", "n"), cell("slots", "n"), cell("waiting", "n"), cell("refused a second", "n")),
	(row, f) => {
		const shadow = f.mode === "shadow";
		const texts = [whole.format(f.running), whole.format(f.slots), f.queue ? `${whole.format(f.waiting)} of ${whole.format(f.queue)}` : "none may",
			rate(shadow ? f.per_second.shadow_refused : f.per_second.refused) + (shadow ? " (shadow)" : "")];
		texts.forEach((text, i) => put(row.cells[i + 1], text));
	});

let chosen;
const showZones = ({ zones, in_flight: limits, store, changes, overrides, warnings = [] }) => {
	const groups = Array.from(find("#zones").children), cards = new Map(Array.from(document.querySelectorAll(".zone"), (card) => [card.dataset.zone, card]));
	const places = groups.map(() => 0);
	for (const z of zones) {
		const card = cards.get(z.zone) ?? zoneCard(z.zone);
		cards.delete(z.zone);
		let group = z.per_second.refused > 0 ? 0 : 1;
		// A card that somebody uses stays where it is.
		if (card.isConnected && card.matches(":hover, :focus-within")) group = groups.findIndex((g) => g.contains(card));
		const box = groups[group].lastElementChild, place = places[group]++;
		if (box.children[place] !== card && !card.contains(document.activeElement)) box.insertBefore(card, box.children[place] ?? null);
		showZone(card, z);
	}
	for (const card of cards.values()) card.remove();
	for (const group of groups) group.hidden = group.lastElementChild.childElementCount === 0;
	find("#legend").hidden = zones.length === 0;
	find("#zoneless").hidden = zones.length > 0;
	showInFlight(limits);
	showStore(store, changes);
	showWarnings(warnings);
	const names = zones.map((z) => z.zone);
	for (const select of document.querySelectorAll(".any-zone")) choose(select, names, [element("option", { value: "" }, "all")]);
	choose(find(".one-zone"), names, []);
	showChanges(overrides);
	if (!chosen && names.length) {
		// What is refused most is looked at first.
		chosen = zones.reduce((most, z) => z.total.refused + z.total.shadow_refused > most.total.refused + most.total.shadow_refused ? z : most);
		find(".one-zone").value = chosen.zone;
		run(tasks.buckets);
	}
	if (names.length === 0) put(find("#buckets-empty"), "No zone, no buckets.");
};

const showChanges = (overrides) => {
	const all = overrides.map((o) => ({
		...o, what: o.limit ? `${o.kind} ${o.limit}` : o.kind, call: "un" + o.kind,
		of: o.zone ? [o.zone, o.network ?? o.key].filter(Boolean).join("/") : o.network ?? "",
		input: o.kind === "ban" ? { network: o.network } : { zone: o.zone, key: o.key },
	}));
	const table = find("#changes-table");
	const shown = all.slice(0, mostChanges);
	find("#changes-more").hidden = shown.length === all.length;
	put(find("#changes-more"), `The first ${mostChanges} of ${whole.format(all.length)}; the command caddy throttle bans lists all.`);
	rows(table, shown, (c) => JSON.stringify([c.what, c.of, c.since]), (c) => {
		const of = c.of ? foreign(c.of, "long") : "all zones and bans";
		const row = element("tr", { role: "row" }, cell("", "text", c.what), cell("", "key", of), cell("left", "text"), cell("hits", "n"), cell("by", "text", foreign(c.by ?? "")), cell("", "text wide", foreign(c.note ?? "")), cell("", "do"));
		if (writable) row.lastChild.append(button("End…", `${c.what} of ${c.of || "all zones and bans"}`, () => proposeEnd(c.call, c.input, [c.what, " of ", c.of ? foreign(c.of) : "everything"])));
		return row;
	}, (row, c) => {
		row.cells[2].dataset.until = c.until;
		put(row.cells[3], c.kind === "ban" ? whole.format(c.hits ?? 0) : "");
	});
	put(find("#changes-empty"), "Nothing was changed at run time.");
	find("#changes-empty").hidden = all.length > 0;
	const everything = all.find((o) => o.kind === "shadow" && !o.zone);
	const notice = find("#everything");
	notice.hidden = !everything;
	if (everything) notice.dataset.until = everything.until;
	tick();
};

const refreshZones = async () => showZones(await ask("zones"));

// --- who sends most ---

const refreshTop = async () => {
	const fields = find("#top-form").elements, empty = find("#top-empty"), table = find("#top-table");
	let answer;
	try {
		answer = await ask("top", { by: fields.by.value, zone: fields.zone.value });
	} catch (error) {
		if (!(error instanceof Answer)) throw error;
		table.hidden = true;
		empty.hidden = false;
		put(empty, error.message);
		return;
	}
	const keys = new Map();
	let seconds = 0;
	for (const zone of answer.zones) {
		seconds = Math.max(seconds, zone.seconds);
		for (const { key, network, requests, refused } of [...zone.busiest, ...zone.most_refused]) {
			const id = JSON.stringify([zone.zone, zone.mode, key]);
			keys.set(id, { id, zone: zone.zone, dry: zone.mode === "shadow", key, network, requests, refused });
		}
	}
	const all = [...keys.values()].sort((a, b) => b.refused - a.refused || b.requests - a.requests || (a.id < b.id ? -1 : 1)).slice(0, 20);
	const byKey = fields.by.value === "";
	rows(table, all, (k) => k.id, (k) => {
		const row = element("tr", { role: "row" }, cell("", "key", foreign(k.network ?? k.key, "long")), cell("", "text", foreign(k.zone), ...(k.dry ? [" (shadow)"] : [])), cell("requests", "n"), cell("refused", "n"), cell("", "do"));
		if (byKey || !k.key.includes("/")) row.lastChild.append(button("Why", k.key, () => lookAt(k.network ?? k.key)));
		if (writable && !byKey) row.lastChild.append(button("Ban…", k.key, () => proposeBan(k.key)));
		return row;
	}, (row, k) => {
		put(row.cells[2], whole.format(k.requests));
		put(row.cells[3], whole.format(k.refused));
		row.cells[3].classList.toggle("blocked", k.refused > 0 && !k.dry);
	});
	empty.hidden = all.length > 0;
	put(empty, `No requests in the last ${whole.format(seconds)} seconds.`);
};
find("#top-form").addEventListener("change", () => {
	find("tbody", find("#top-table")).replaceChildren();
	run(tasks.top);
});
find("#top-form").addEventListener("submit", (event) => event.preventDefault());

// --- buckets, as rows that drain ---

// ruleOf says what is not the zone's own limit.
const ruleOf = (b) => b.by === "zone" && b.rule === "limited" ? "" : b.rule + ({ override: " by override", run_time: " at run time" }[b.by] ?? "");
const bucketRow = (b, sortable) => {
	const track = element("div", { class: "track", "aria-hidden": "true" }, element("div"));
	const row = element("tr", { role: "row" },
		cell("", "key", foreign(b.network ?? b.key, "long")), ...(sortable ? [] : [cell("", "text", foreign(b.zone), ...(b.shadow ? [" (shadow)"] : []))]),
		cell("", "wide", element("div", { class: "level" }, element("span"), track)),
		cell("empty in", "n"), cell("blocked", "n"), ...(sortable ? [cell("last used", "n")] : []), cell("", "text", ruleOf(b), ...(b.from ? [" ", foreign(b.from, "soft")] : [])), cell("", "do"));
	row.lastChild.append(...(sortable ? [button("Why", b.key, () => lookAt(b.network ?? b.key, b.zone))] : []));
	if (writable) row.lastChild.append(button("Reset…", b.key, () => proposeRelease(b.key, b.zone)), button("Limit…", b.key, () => proposeLimit(b.zone, b.key)));
	return row;
};

// drain shows a bucket as it is now, if nobody has poured into it since.
const drain = (row) => {
	const b = row.bucket, passed = (performance.now() - row.at) / 1e3;
	const units = b.leak > 0 ? Math.max(0, b.level - b.leak * passed) : b.level, blocked = (b.blocked ?? 0) - passed;
	const cells = Array.from(row.cells).slice(row.classList.contains("found") ? 2 : 1);
	const fraction = b.capacity > 0 ? units / b.capacity : 0;
	put(find("span", cells[0]), b.capacity > 0 ? `${level(units)} of ${number(b.capacity)}, ${Math.floor(100 * fraction + 1e-9)}%` : "no limit");
	const bar = find(".track div", cells[0]);
	bar.style.transform = `scaleX(${Math.min(1, fraction)})`;
	bar.className = fraction >= 0.95 ? "full" : fraction >= 0.5 ? "half" : "";
	put(cells[1], b.leak > 0 ? span(units / b.leak) : "");
	put(cells[2], span(blocked));
	cells[2].classList.toggle("blocked", blocked > 0);
	if (b.last_used !== undefined && !row.classList.contains("found")) put(cells[3], `${span(b.last_used + passed) || "0 s"} ago`);
};
const showBucket = (row, b) => {
	row.bucket = b;
	row.at = performance.now();
	drain(row);
};

let sort = "level", shownFrom = 0, listed = { buckets: [], matched: 0, complete: true };
const bucketsForm = find("#buckets-form"), bucketsTable = find("#buckets-table");

const showBuckets = () => {
	const { buckets, matched, complete } = listed;
	shownFrom = Math.max(0, Math.min(shownFrom, rowsOfAPage * Math.floor((buckets.length - 1) / rowsOfAPage)));
	const page = buckets.slice(shownFrom, shownFrom + rowsOfAPage);
	rows(bucketsTable, page, (b) => JSON.stringify([b.zone, b.key, b.shadow, ruleOf(b)]), (b) => bucketRow(b, true), (row, b) => {
		row.bucket = b;
		row.at = listed.at;
		drain(row);
	});
	bucketsTable.hidden = false;
	const empty = find("#buckets-empty");
	empty.hidden = page.length > 0;
	put(empty, bucketsForm.elements.prefix.value || bucketsForm.elements.min_fraction.value !== "0" ? "No bucket matches." : "All buckets are empty.");
	const told = page.length ? [`${whole.format(shownFrom + 1)} to ${whole.format(shownFrom + page.length)} of ${whole.format(matched)}.`] : [];
	if (matched > buckets.length) told.push(`Only the first ${whole.format(buckets.length)} of this order can be paged through. For others, say how the key begins or how full it is, or sort by another column.`);
	if (!complete) told.push("The search was cut off: there may be more.");
	put(find("#buckets-said"), told.join(" "));
	find("#before").disabled = shownFrom === 0;
	find("#after").disabled = shownFrom + rowsOfAPage >= buckets.length;
};

let asked = 0;
const refreshBuckets = async () => {
	const fields = bucketsForm.elements;
	const mine = ++asked, began = performance.now();
	try {
		const answer = await ask("buckets", {
			zone: fields.zone.value, prefix: fields.prefix.value, shadow: fields.shadow.checked,
			min_fraction: Number(fields.min_fraction.value), sort, limit: 1000,
		});
		if (mine !== asked) return; // a later question has been asked meanwhile
		listed = { ...answer, at: performance.now() };
		// A scan costs the store something, so slow ones are rare.
		tasks.buckets.every = Math.max(5e3, 60 * (performance.now() - began));
		showBuckets();
	} catch (error) {
		if (mine !== asked) return;
		if (!(error instanceof Answer)) throw error;
		listed = { buckets: [], matched: 0, complete: true };
		showBuckets();
		put(find("#buckets-empty"), error.message);
	}
};

const relist = () => {
	shownFrom = 0;
	return run(tasks.buckets);
};
let typing;
bucketsForm.addEventListener("input", () => {
	clearTimeout(typing);
	typing = setTimeout(relist, 250);
});
bucketsForm.addEventListener("submit", (event) => {
	event.preventDefault();
	clearTimeout(typing);
	relist();
});
for (const head of bucketsTable.querySelectorAll("[data-sort]")) {
	head.addEventListener("click", () => {
		sort = head.dataset.sort;
		for (const other of bucketsTable.querySelectorAll("[data-sort]")) {
			const order = other.dataset.sort === "key" ? "ascending" : "descending";
			other.parentNode.setAttribute("aria-sort", other === head ? order : "none");
		}
		relist();
	});
}
const turn = (by) => () => {
	shownFrom += by;
	showBuckets();
};
find("#before").addEventListener("click", turn(-rowsOfAPage));
find("#after").addEventListener("click", turn(rowsOfAPage));

// --- why one client is out ---

const whyForm = find("#why-form");
let sought; // the client and the zone, or nothing

const unlistedMeans = {
	client_ip: "its requests are charged to the client's address", share: "its requests are charged to the bucket @share",
	skip: "its requests are not charged", refuse: "its requests are refused",
};

const look = async () => {
	const { client, zone } = sought;
	let answer;
	try {
		answer = await ask("why", { client, zone });
	} catch (error) {
		if (!(error instanceof Answer)) throw error;
		put(find("#why-said"), error.message);
		find("#why-actions").replaceChildren();
		find("#why-table").hidden = true;
		find("#why-answer").hidden = false;
		sought = undefined;
		return;
	}
	const { refused, refusal, refusals = [], ban, shadows = [], unlisted = [], buckets, complete, problem } = answer;
	if (!sought || sought.client !== client) return;
	const key = refusal ? refusal.key : client; // the client may be a support code
	const out = buckets.filter((b) => b.verdict.decision === "refused");
	const told = [];
	if (refusal) told.push(`${visible(refusal.network || refusal.key || "A request without a key")} was refused by ${refusal.zone} at ${clock(refusal.at)}: ${refusal.reason}.`);
	if (ban) told.push(`${ban.network} is banned ${lasts(ban.until)}.${ban.note ? ` Note: ${visible(ban.note)}.` : ""}`);
	for (const s of shadows) told.push(s.zone ? `${s.zone} is in shadow ${lasts(s.until)}: it refuses nothing.` : `Everything is in shadow ${lasts(s.until)}: nothing is refused, and bans are ignored.`);
	for (const u of unlisted) told.push(`No override of ${u.zone} lists this key: ${unlistedMeans[u.unlisted_key]}.`);
	for (const { zone, verdict } of out) told.push(`${zone} refuses it: ${verdict.reason}${verdict.for ? `, for another ${span(verdict.for)}` : ""}.`);
	for (const r of refusals.slice(0, 3)) told.push(`${r.zone} refused ${visible(r.network || r.key || "a request without a key")} to it at ${clock(r.at)}: ${r.reason}, ${r.code}.`);
	if (!refused) told.push(buckets.length ? "No zone refuses it now." : "It has no bucket, and no zone refuses it.");
	if (!complete) told.push(`The search was cut off: there may be more. ${problem ?? ""}`);
	put(find("#why-said"), told.join(" "));
	const actions = find("#why-actions");
	const id = JSON.stringify([key, zone]);
	if (actions.dataset.of !== id) {
		actions.dataset.of = id;
		actions.replaceChildren();
		if (writable && key) actions.append(button("Release…", key, () => proposeRelease(key, zone)));
		if (writable && /^[0-9a-f:./]+$/i.test(key)) actions.append(button("Ban…", key, () => proposeBan(key)));
	}
	rows(find("#why-table"), buckets, (b) => JSON.stringify([b.zone, b.key, b.shadow, ruleOf(b)]), (b) => {
		const row = bucketRow(b, false);
		row.classList.add("found");
		return row;
	}, showBucket);
	find("#why-answer").hidden = false;
};

const lookAt = async (client, zone) => {
	whyForm.elements.client.value = client;
	sought = { client, zone };
	find("#why").scrollIntoView();
	await lookNow();
};
const lookNow = async () => {
	await run(tasks.why);
	find("#why-answer").focus({ preventScroll: true });
};
whyForm.addEventListener("submit", (event) => {
	event.preventDefault();
	sought = { client: whyForm.elements.client.value.trim() };
	lookNow();
});

// --- who changed what ---

const refreshJournal = async () => {
	const journal = await ask("journal");
	rows(find("#journal-table"), journal, (c) => JSON.stringify(c), (c) => element("tr", { role: "row" },
		cell("", "n when", clock(c.at)), cell("by", "text", ...(c.by ? [foreign(c.by), ` in the ${c.via}`] : [c.via])),
		cell("", "text", c.action, ...(c.limit ? [" ", foreign(c.limit)] : []), ...(c.until ? [` for ${span((Date.parse(c.until) - Date.parse(c.at)) / 1e3)}`] : [])),
		cell("of", "key", foreign(c.of, "long")), cell("", "text wide", foreign(c.note ?? ""))));
	put(find("#journal-empty"), "No changes yet.");
	find("#journal-empty").hidden = journal.length > 0;
};

// --- what runs by the clock ---

const tick = () => {
	for (const row of document.querySelectorAll("#buckets-table tbody tr, #why-table tbody tr")) drain(row);
	for (const cell of document.querySelectorAll("#changes-table [data-until]")) {
		const { until } = cell.dataset, rest = until && span(left(until));
		put(cell, rest ? `${rest}, until ${minutes(until)}` : "ended");
	}
	const notice = find("#everything");
	if (!notice.hidden) put(notice, `Nobody is refused ${lasts(notice.dataset.until)}: everything is in shadow.`);
};

let inSight = false;
new IntersectionObserver((entries) => { inSight = entries.at(-1).isIntersecting; }).observe(bucketsTable);
const inUse = (query) => find(query).matches(":hover, :focus-within");
// Tasks fetch the parts of the page. A part is shown if it is there and in sight.
const tasks = {
	zones: { every: 2e3, does: refreshZones },
	rates: { every: 30e3, does: refreshRates },
	journal: { every: 10e3, does: refreshJournal },
	top: { every: 5e3, does: refreshTop },
	// Rows must not move under a finger, and nobody needs those that are out of sight.
	buckets: { every: 5e3, does: refreshBuckets, waits: () => inUse("#buckets-table tbody") || dialog.open, shown: () => inSight && chosen },
	why: { every: 5e3, does: look, waits: () => dialog.open, shown: () => sought },
};

let paused = false;
const run = async (task) => {
	if (task.runs) {
		task.again = true;
		return;
	}
	task.runs = true;
	const began = performance.now();
	try {
		await task.does();
		task.seen = began; // what it shows is at least as old as that
		task.problem = "";
	} catch (error) {
		task.problem = error.name === "TypeError" || error.name === "TimeoutError" ? "Caddy does not answer. Trying again." : error.message;
	}
	task.runs = false;
	task.next = performance.now() + task.every;
	if (task.again) {
		task.again = false;
		await run(task);
	}
};

// showAge says how old the oldest part is that is shown. The page is live if none is later
// than three seconds.
const showAge = () => {
	const at = performance.now(), shown = Object.values(tasks).filter((task) => !task.shown || task.shown());
	const lost = shown.find((task) => task.problem)?.problem, oldest = Math.min(...shown.map((task) => task.seen ?? 0));
	const silent = at - (tasks.zones.seen ?? 0) > 6e3, late = lost || shown.some((task) => at - (task.seen ?? 0) > task.every + 3e3);
	put(find("#fresh"), [paused && "paused", paused || late ? oldest && `${span((at - oldest) / 1e3)} old` : "live"].filter(Boolean).join(", "));
	const notice = paused ? "" : lost || (silent ? "Caddy does not answer." : "");
	find("#lost").hidden = !notice;
	put(find("#lost"), notice);
};

setInterval(() => {
	tick();
	showAge();
	if (paused || document.visibilityState === "hidden") return;
	for (const task of Object.values(tasks)) {
		if (performance.now() >= (task.next ?? 0) && !task.runs && !task.waits?.() && (!task.shown || task.shown())) run(task);
	}
}, 250);

find("#pause").addEventListener("click", (event) => {
	paused = !paused;
	event.target.setAttribute("aria-pressed", paused);
});

put(find("#host"), location.host);
for (const user of document.querySelectorAll("#user")) user.replaceWith(foreign(user.textContent)); // none if the page is open
for (const table of document.querySelectorAll("#top-table, #changes-table, #journal-table")) table.hidden = true;
for (const task of [tasks.zones, tasks.rates, tasks.journal, tasks.top]) run(task);
