"use strict";
// The board: choose setting and parameters, rank among the methods of one kind of oracle, price a Hessian-vector product. The
// arithmetic is that of bilevelbench.report.analysis.ranking.board: mean ranks over the counted cells, ties averaged.
(function () {
  const B = window.BILEVELBENCH;
  const data = B.board;
  // Costs over the best one's at which the colour of a cell changes, as in bilevelbench.leaderboard.heat_map.
  const LEVELS = [1.05, 2, 5, 10, 30, 100];

  function median(values) {
    const sorted = Float64Array.from(values).sort(), n = sorted.length;
    return n === 0 ? Infinity : (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2;
  }

  function ranks(values) {
    const n = values.length, out = new Array(n);
    for (let i = 0; i < n; i++) {
      let below = 0, equal = 0;
      for (let j = 0; j < n; j++) { if (values[j] < values[i]) below++; else if (values[j] === values[i]) equal++; }
      out[i] = below + (equal + 1) / 2;
    }
    return out;
  }

  // The median cost at a price: -1 and null are infinite; a list is a, b, w1, a1, b1, ...: a + b w up to w1, and so on.
  function middle(entry, w) {
    if (entry === null || entry === -1) return Infinity;
    if (typeof entry === "number") return entry;
    let at = 0;
    while (at + 2 < entry.length && entry[at + 2] <= w) at += 3;
    return entry[at] + w * entry[at + 1];
  }

  // Ranks among `members`, numbers of methods. A cell that none of them reached, or all at no cost, is not counted.
  B.rank = function (board, w, members) {
    members = members || board.methods.map((_, m) => m);
    const n = members.length, sum = new Array(n).fill(0), ratios = members.map(() => []), problems = [];
    let counted = 0;
    for (const cell of board.cells) {
      const costs = members.map((m) => middle(cell.c[m], w));
      if (members.every((m) => cell.c[m] === -1) || costs.every((v) => v === 0)) continue;
      counted++;
      const places = ranks(costs);
      for (let i = 0; i < n; i++) sum[i] += places[i];
      const best = Math.min.apply(null, costs);
      if (best === Infinity) continue;
      problems.push(cell.p);
      for (let i = 0; i < n; i++) ratios[i].push(costs[i] === best ? 1 : costs[i] / best);
    }
    const mean = sum.map((s) => (counted ? s / counted : (n + 1) / 2));
    return { members: members, mean: mean, rank: ranks(mean), relative: ratios.map(median), ratios: ratios, problems: problems };
  };

  // By member and problem the median of the cost over the best one's; infinite where that is not reached.
  B.heat = function (board, found) {
    return found.ratios.map((list) => {
      const parts = board.problems.map(() => []);
      list.forEach((v, i) => parts[found.problems[i]].push(v));
      return parts.map(median);
    });
  };

  // What was computed at the nearest price; without a price it holds at all of them.
  function nearest(list, w) {
    return list.reduce((a, b) => (Math.abs(Math.log(b.w / w)) < Math.abs(Math.log(a.w / w)) ? b : a));
  }

  // What is the same stays untouched: the browser then need not lay out the table again.
  function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  function set(node, name, value) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }

  function times(v) {
    return !Number.isFinite(v) ? "not reached" : (v < 100 ? v.toFixed(1) : B.number(v)) + "×";
  }

  function priceText(w) {
    return "1 HVP = " + w + (w === 1 ? " gradient" : " gradients");
  }

  document.addEventListener("DOMContentLoaded", () => {
    const sections = Array.from(document.querySelectorAll(".board"));
    if (!sections.length) return;
    const controls = document.getElementById("controls"), slider = document.getElementById("weight"), shown = document.getElementById("weight-value");
    const said = document.getElementById("said");
    const buttons = (id) => Array.from(document.querySelectorAll("#" + id + " button"));
    controls.hidden = false;
    const first = sections[0].dataset;
    const view = {};
    // While the slider moves only ranks follow, and on a table of so many cells nothing: the rest is drawn when the slider rests.
    const RESTED = 150, FIRST = 4, LARGE = 600;
    let pending = 0;

    function read() {
      const state = B.readState();
      const section = sections.find((s) => s.dataset.mode === state.get("mode") && s.dataset.setting === state.get("setting")) ||
        sections.find((s) => s.dataset.setting === state.get("setting")) || sections.find((s) => s.dataset.mode === state.get("mode")) || sections[0];
      view.mode = section.dataset.mode;
      view.setting = section.dataset.setting;
      const w = Number(state.get("w") || 1);
      view.w = Number.isFinite(w) ? Math.min(Math.max(w, 0.5), 10) : 1;
      const oracle = state.get("oracle");
      view.oracles = oracle === null ? ["gradient", "HVP"] : oracle.split(".").filter((o) => o === "gradient" || o === "HVP");
    }

    function remember() {
      const state = B.readState();
      const put = (key, value, usual) => (value === usual ? state.delete(key) : state.set(key, value));
      put("mode", view.mode, first.mode);
      put("setting", view.setting, first.setting);
      put("w", String(view.w), "1");
      put("oracle", view.oracles.join("."), "gradient.HVP");
      B.writeState(state);
    }

    function show(slide) {
      document.querySelector(".slider").hidden = view.mode === "timed"; // seconds have no price
      const current = sections.find((s) => s.dataset.mode === view.mode && s.dataset.setting === view.setting);
      sections.forEach((s) => s.classList.toggle("current", s === current));
      buttons("settings").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.setting === view.setting)));
      buttons("modes").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === view.mode)));
      buttons("oracles").forEach((b) => b.setAttribute("aria-pressed", String(view.oracles.includes(b.dataset.oracle))));
      slider.value = view.w;
      shown.textContent = String(view.w);
      slider.setAttribute("aria-valuetext", priceText(view.w));
      rerank(current, slide);
    }

    function rerank(section, slide) {
      const board = data.boards[section.dataset.board], table = section.querySelector("table.ranking"), body = table.tBodies[0];
      clearTimeout(pending);
      if (slide && body.rows.length * table.tHead.rows[0].cells.length >= LARGE) { // to lay it out at every tick takes too long
        pending = setTimeout(() => rerank(section), RESTED);
        return;
      }
      const all = board.views.all, shown = all.members.filter((m) => view.oracles.includes(oracleOf(body, m)));
      const chosen = Object.values(board.views).find((v) => v.members.length === shown.length && v.members.every((m, i) => m === shown[i])) || all;
      const found = B.rank(board, view.w, shown.length ? chosen.members : all.members), span = Math.max(found.members.length - 1, 1);
      const at = nearest(chosen.intervals, view.w), place = new Map(found.members.map((m, i) => [m, i]));
      const before = new Map(Array.from(body.rows).map((row) => [row, slide ? row.getBoundingClientRect().top : 0]));
      for (const row of body.rows) {
        const i = place.get(Number(row.dataset.m));
        row.hidden = i === undefined || !shown.length;
        if (i !== undefined) writeRow(row, found, i, at, span);
      }
      const sort = B.sortOf(table) || { column: 0, direction: "ascending" };
      B.sortTable(table, sort.column, sort.direction);
      const part = chosen === all ? "" : " Ranks, intervals and costs are among these " + found.members.length + " methods" + (view.oracles[0] === "gradient" ? ", which need gradients only." : ", which use products (HVP).");
      section.querySelector(".nearest").textContent = part + (at.w === null || at.w === view.w ? "" : " Intervals and ties are those of 1 HVP = " + at.w + ", the nearest that was computed.");
      section.querySelector(".none-left").hidden = shown.length > 0;
      if (slide) glide(body, before);
      const first = found.members[found.rank.indexOf(Math.min.apply(null, found.rank))];
      const among = chosen === all ? "" : ", 1st of " + found.members.length + " " + (view.oracles[0] === "gradient" ? "gradient-only" : "with products");
      said.textContent = shown.length ? (view.mode === "timed" ? "By the clock" : priceText(view.w)) + ": first is " + titleOf(board.methods[first]) + among : "";
      const rest = () => { writeHeat(body, board, found); drawProfile(section, board, shown); };
      if (slide) pending = setTimeout(rest, RESTED); else rest();
    }

    function titleOf(method) {
      return (data.looks[method] && data.looks[method].title) || method;
    }

    function oracleOf(body, m) {
      const kinds = (body.kinds = body.kinds || new Map(Array.from(body.rows).map((row) => [Number(row.dataset.m), row.dataset.oracle])));
      return kinds.get(m);
    }

    function writeRow(row, found, i, at, span) {
      const rank = row.cells[0], low = at.low[i], high = at.high[i];
      const [cost, tied, mean] = [".relative", ".tied", ".mean"].map((name) => row.querySelector(name));
      rank.dataset.v = found.rank[i];
      write(rank.querySelector(".n"), String(found.rank[i]));
      write(rank.querySelector(".ci").lastChild, low + "–" + high);
      const bar = rank.querySelector(".bar");
      set(bar, "x", 1 + ((low - 1) / span) * 56);
      set(bar, "width", 2 + ((high - low) / span) * 56);
      set(rank.querySelector("circle"), "cx", 2 + ((found.rank[i] - 1) / span) * 56);
      write(tied, at.bands[i]);
      mean.dataset.v = found.mean[i];
      write(mean, found.mean[i].toFixed(1));
      cost.dataset.v = found.relative[i];
      set(cost, "title", Number.isFinite(found.relative[i]) ? String(found.relative[i]) : "");
      write(cost, times(found.relative[i]));
    }

    // The numbers below problems; their colours follow.
    function writeHeat(body, board, found) {
      const heat = B.heat(board, found), place = new Map(found.members.map((m, i) => [m, i]));
      for (const row of body.rows) {
        const mine = heat[place.get(Number(row.dataset.m))];
        if (mine) mine.forEach((v, p) => writeCell(row.cells[FIRST + p], v));
      }
    }

    function writeCell(cell, v) {
      const finite = Number.isFinite(v), level = finite ? LEVELS.filter((limit) => v > limit).length : "";
      if (cell.dataset.v === String(v)) return;
      cell.dataset.v = v;
      set(cell, "class", "h" + level);
      const link = cell.firstChild;
      if (finite) write(link, v < 10 ? v.toFixed(1) : B.number(v));
      else if (!link.firstElementChild) link.replaceChildren(B.element("span", { class: "visually-hidden" }, "not reached"));
    }

    // Rows slide from where they were.
    function glide(body, before) {
      for (const row of body.rows) {
        const shift = before.get(row) - row.getBoundingClientRect().top;
        if (!shift || row.hidden) continue;
        row.classList.remove("moving");
        row.style.transform = "translateY(" + shift + "px)";
        requestAnimationFrame(() => { row.classList.add("moving"); row.style.transform = ""; });
      }
    }

    function drawProfile(section, board, shown) {
      const box = section.querySelector(".profile"), lines = nearest(board.profile.lines, view.w), total = Math.max(board.profile.total, 1);
      const series = shown.map((m) => ({
        name: titleOf(board.methods[m]), look: data.looks[board.methods[m]], steps: true,
        points: (lines.n[m] || []).map((n, i) => [board.profile.tau[i], n / total]),
      }));
      let readout = box.nextElementSibling;
      if (!readout || !readout.classList.contains("readout")) { readout = B.element("p", { class: "readout", "aria-live": "polite" }); box.after(readout); }
      const keys = section.querySelector(".key-list");
      keys.textContent = "";
      for (const s of series) {
        const key = B.element("span", {});
        key.appendChild(B.swatch(s.look));
        key.appendChild(B.element("span", {}, s.name));
        keys.appendChild(key);
      }
      B.chart(box, {
        series: series, xlog: true, ylog: false, ymin: 0, ymax: 1, height: 300, xlabel: section.dataset.mode === "timed" ? "time / best time" : "cost / best cost, 1 HVP = " + lines.w, ylabel: "share solved",
        alt: "Performance profile of " + series.length + " methods; the numbers are in the table below", empty: "No method is shown.",
        readout: (x, values) => B.readout(readout, x === null ? "" : "within " + B.number(x) + "×:", values.map((v) => ({ name: v.name, look: v.look, text: v.y === null ? "0%" : Math.round(100 * v.y) + "%", y: -(v.y || 0) }))),
      });
    }

    slider.addEventListener("input", () => { view.w = Number(slider.value); show(true); });
    slider.addEventListener("change", remember);
    document.querySelectorAll(".marks button").forEach((b) => b.addEventListener("click", () => { view.w = Number(b.dataset.weight); show(true); remember(); }));
    buttons("settings").forEach((b) => b.addEventListener("click", () => {
      view.setting = b.dataset.setting;
      if (!sections.some((s) => s.dataset.mode === view.mode && s.dataset.setting === view.setting)) view.mode = sections.find((s) => s.dataset.setting === view.setting).dataset.mode;
      show(false); remember();
    }));
    buttons("modes").forEach((b) => b.addEventListener("click", () => {
      view.mode = b.dataset.mode;
      if (!sections.some((s) => s.dataset.mode === view.mode && s.dataset.setting === view.setting)) view.setting = sections.find((s) => s.dataset.mode === view.mode).dataset.setting;
      show(false); remember();
    }));
    buttons("oracles").forEach((b) => b.addEventListener("click", () => {
      const kind = b.dataset.oracle;
      view.oracles = ["gradient", "HVP"].filter((o) => (o === kind) !== view.oracles.includes(o));
      show(false); remember();
    }));
    sections.forEach((s) => s.querySelector("table.ranking").tBodies[0].addEventListener("click", (event) => {
      const link = event.target.closest("tr").querySelector("th a");
      if (!event.target.closest("a") && String(window.getSelection()) === "") link.click();
    }));
    window.addEventListener("hashchange", () => { read(); show(false); });
    let width = window.innerWidth;
    window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; show(false); } });
    read();
    show(false);
  });
})();
