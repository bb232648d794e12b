"use strict";
// The explorer of texts: search, filters, one page of hits, and the chosen text by its tokens.
// All that comes from the catalog or a model is set as textContent, never as markup.
(() => {
  const FIRST = 48; // a number n is packed as the character 48 + n
  const RELAXED = 16; // added to the origin of a relaxed token
  const PER_PAGE = 20;
  const LISTED = 90; // characters of a text in the list
  const FINISHES = { stop: "ended by itself", length: "cut at the limit", error: "failed" };
  const byId = (name) => document.getElementById(`texts-${name}`);
  const number = (value, digits = 0) => value.toLocaleString("en", {
    minimumFractionDigits: digits, maximumFractionDigits: digits,
  });

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // In small letters, each where the letter stood: "İ" makes two units, of which the first stays.
  function lowered(text) {
    const lower = text.toLowerCase();
    if (lower.length === text.length) return lower;
    return Array.from(text, (one) => one.toLowerCase().slice(0, one.length)).join("");
  }

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  function open({ sources, columns, lines }) {
    const indexed = (name) => (row) => columns[name].names[columns[name].places[row]];
    const kind = indexed("kind"), group = indexed("group"), rule = indexed("rule");
    const finish = indexed("finish");
    const nameOf = (row) => `${kind(row)} ${columns.id[row]}`;
    const perPass = (row) => (columns.passes[row] ? columns.tokens[row] / columns.passes[row] : 0);
    const texts = columns.text;
    const described = texts.map((text, row) => [
      columns.title[row], nameOf(row), group(row), text, columns.error[row],
    ].join("\n")).map(lowered);
    const orders = {
      fast: (a, b) => perPass(b) - perPass(a),
      slow: (a, b) => perPass(a) - perPass(b),
      cost: (a, b) => columns.cost[b] - columns.cost[a],
      long: (a, b) => columns.tokens[b] - columns.tokens[a],
    };
    let hits = [], first = 0, chosen = -1;

    function wanted() {
      const words = lowered(byId("query").value).match(/"[^"]+"|[^\s"]+/g) || [];
      return words.map((word) => word.replaceAll('"', ""));
    }

    function find() {
      const words = wanted(), whole = lowered(byId("query").value.trim());
      const of = { kind: byId("kind").value, group: byId("group").value, rule: byId("rule").value };
      const wave = byId("wave").value;
      const failed = byId("error").checked, relaxed = byId("relaxed").checked;
      hits = [];
      for (let row = 0; row < texts.length; row += 1) {
        if ((of.kind && kind(row) !== of.kind) || (of.group && group(row) !== of.group)
          || (of.rule && rule(row) !== of.rule) || (wave && columns.wave[row] !== Number(wave))
          || (failed && !columns.error[row]) || (relaxed && !columns.relaxed[row])) continue;
        if (words.every((word) => described[row].includes(word))) hits.push(row);
      }
      const order = orders[byId("order").value];
      if (order) hits.sort(order);
      else if (whole) hits = [...hits.filter((row) => isCalled(row, whole)),
        ...hits.filter((row) => !isCalled(row, whole))];
      first = 0;
      choose(hits.length ? hits[0] : -1);
      list();
    }

    function isCalled(row, name) {
      return [columns.id[row], nameOf(row), columns.title[row]].some(
        (one) => lowered(one) === name,
      );
    }

    function list() {
      const shown = hits.slice(first, first + PER_PAGE);
      byId("list").replaceChildren(...shown.map(entry));
      byId("list").start = first + 1;
      byId("found").textContent = hits.length === texts.length
        ? textsOf(texts.length) : `${number(hits.length)} of ${textsOf(texts.length)}`;
      byId("page").textContent = hits.length
        ? `${number(first + 1)} to ${number(first + shown.length)}` : "none";
      byId("back").disabled = first === 0;
      byId("next").disabled = first + PER_PAGE >= hits.length;
    }

    function textsOf(count) {
      return `${number(count)} text${count === 1 ? "" : "s"}`;
    }

    function entry(row) {
      const button = element("button");
      button.type = "button";
      button.dataset.row = row;
      button.append(element("b", "", columns.title[row] || nameOf(row)));
      button.lastChild.dir = "auto";
      const facts = [nameOf(row), columns.error[row] ? "failed" : `${number(perPass(row), 2)} per pass`];
      button.append(element("span", "", facts.slice(columns.title[row] ? 0 : 1).join(", ")));
      const start = [...texts[row].trim().slice(0, 2 * LISTED)].slice(0, LISTED).join("");
      button.append(element("span", "start", columns.error[row] || start));
      button.lastChild.dir = "auto";
      if (row === chosen) button.setAttribute("aria-current", "true");
      const item = element("li");
      item.append(button);
      return item;
    }

    function choose(row) {
      chosen = row;
      byId("chosen").hidden = row < 0;
      byId("none").hidden = row >= 0;
      for (const button of byId("list").querySelectorAll("button")) {
        if (Number(button.dataset.row) === row) button.setAttribute("aria-current", "true");
        else button.removeAttribute("aria-current");
      }
      if (row < 0) return;
      byId("title").replaceChildren(columns.title[row] || nameOf(row));
      if (columns.title[row]) byId("title").append(" ", element("span", "", nameOf(row)));
      numbers(row);
      tokens(row);
      question(row);
      highlight();
    }

    function numbers(row) {
      const facts = [
        ["group", group(row) || "none"],
        ["wave", `${columns.wave[row]}, ${rule(row)}`],
        ["end", columns.error[row] || FINISHES[finish(row)] || finish(row)],
      ];
      if (!columns.error[row]) {
        facts.push(
          ["tokens", number(columns.tokens[row])],
          ["forward passes", number(columns.passes[row])],
          ["tokens per pass", number(perPass(row), 2)],
          ["relaxed tokens", number(columns.relaxed[row])],
          ["their cost", `${number(columns.cost[row], 2)} nats`],
        );
      }
      byId("numbers").replaceChildren(...facts.map(([name, value]) => {
        const pair = element("div");
        pair.append(element("dt", "", name), element("dd", "", value));
        return pair;
      }));
    }

    function tokens(row) {
      const lengths = columns.lengths[row], origins = columns.origins[row], text = texts[row];
      const shares = new Map();
      const spans = [];
      let at = 0;
      for (let place = 0; place < lengths.length; place += 1) {
        const isLast = place + 1 === lengths.length;
        const end = isLast ? text.length : at + lengths.charCodeAt(place) - FIRST;
        const origin = origins.charCodeAt(place) - FIRST;
        const said = spans.length ? text.slice(at, end) : text.slice(at, end).trimStart();
        const span = element("span", classOf(origin), said);
        span.title = wordsOf(origin);
        shares.set(origin, (shares.get(origin) || 0) + end - at);
        spans.push(span);
        at = end;
      }
      byId("body").replaceChildren(...(spans.length ? spans : [text.trim()]));
      const total = Math.max(1, text.length);
      const entries = [...shares].sort(([a], [b]) => a % RELAXED - b % RELAXED || a - b);
      byId("legend").replaceChildren(...entries.map(([origin, length]) => {
        const item = element("li");
        item.append(
          element("span", `sample ${classOf(origin)}`, "text"),
          `${wordsOf(origin)}, ${shareOf(length / total)}`,
        );
        return item;
      }));
    }

    // What was asked; of a page without prompts the places for it are not there.
    function question(row) {
      if (!byId("asked")) return;
      const asked = columns.asked[row];
      byId("asked").hidden = !asked;
      byId("unasked").hidden = Boolean(asked);
      byId("why").textContent = indexed("unasked")(row);
      byId("prompt").textContent = asked ? asked.map((line) => lines[line]).join("") : "";
    }

    function shareOf(share) {
      return share < 0.01 ? "under 1 %" : `${number(100 * share)} %`;
    }

    function classOf(origin) {
      return `t${origin % RELAXED}${origin >= RELAXED ? " relaxed" : ""}`;
    }

    function wordsOf(origin) {
      const source = sources[(origin % RELAXED) - 1];
      const from = source ? `draft: ${source[1]}` : "the model's own choice";
      return origin >= RELAXED ? `${from}, relaxed` : from;
    }

    // Marks what was searched for, where the browser can do so without touching the spans.
    function highlight() {
      if (typeof Highlight === "undefined") return;
      const body = byId("body"), said = lowered(body.textContent);
      const walker = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
      const nodes = [], starts = [];
      for (let start = 0; walker.nextNode(); start += walker.currentNode.length) {
        nodes.push(walker.currentNode);
        starts.push(start);
      }
      const pointAt = (offset) => {
        const node = starts.findLastIndex((start) => start <= offset);
        return [nodes[node], Math.min(offset - starts[node], nodes[node].length)];
      };
      const ranges = [];
      for (const word of wanted()) {
        for (let at = said.indexOf(word); at >= 0; at = said.indexOf(word, at + word.length)) {
          const range = document.createRange();
          range.setStart(...pointAt(at));
          range.setEnd(...pointAt(at + word.length));
          ranges.push(range);
        }
      }
      CSS.highlights.set("texts-found", new Highlight(...ranges));
    }

    function turn(to) {
      first = to;
      list();
    }

    function fill(name, values) {
      byId(name).append(...values.map((value) => {
        const option = element("option", "", value);
        option.value = value;
        return option;
      }));
    }

    // Groups of the chosen kind only; one that was chosen before stays so if it is among them.
    function offerGroups() {
      const of = byId("kind").value, list = byId("group"), before = list.value;
      const { names, places } = columns.group;
      const there = new Set(places.filter((_, row) => !of || kind(row) === of));
      list.length = 1; // "all"
      fill("group", names.filter((_, place) => there.has(place)));
      list.value = [...list.options].some((one) => one.value === before) ? before : "";
    }

    fill("kind", columns.kind.names);
    offerGroups();
    fill("rule", columns.rule.names);
    fill("wave", [...new Set(columns.wave)].sort((a, b) => a - b));
    const form = byId("app").querySelector("form");
    let timer = 0;
    form.addEventListener("input", (event) => {
      clearTimeout(timer);
      if (event.target === byId("kind")) offerGroups();
      if (event.target === byId("query")) timer = setTimeout(find, 120);
      else find();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { offerGroups(); find(); }, 0));
    byId("back").addEventListener("click", () => turn(first - PER_PAGE));
    byId("next").addEventListener("click", () => turn(first + PER_PAGE));
    byId("list").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      choose(Number(button.dataset.row));
      byId("chosen").scrollIntoView({ block: "nearest" });
    });
    byId("list").addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const item = event.target.closest("li");
      if (!step || !item) return;
      event.preventDefault();
      const button = item[step]?.querySelector("button");
      if (!button) return;
      button.focus();
      choose(Number(button.dataset.row));
    });
    byId("app").hidden = false;
    find();
    const coloured = hits.slice(0, PER_PAGE).find((row) => /[^0]/.test(columns.origins[row]));
    if (coloured !== undefined) choose(coloured); // rather than a text that nobody drafted for
  }

  function note(words) { // in the place of the note for who has no JavaScript
    byId("problem").textContent = words;
    byId("problem").hidden = words === "";
  }

  if (typeof DecompressionStream === "undefined") {
    note("This browser cannot unpack the texts; any of the last years can (Chrome 80, "
      + "Safari 16.4, Firefox 113 or later). All else on this page is here.");
  } else {
    note("Unpacking the texts.");
    unpack(byId("data").textContent).then(open).then(() => note("")).catch((error) => {
      note(`The texts cannot be unpacked (${error.message}); run make report again.`);
    });
  }
})();
