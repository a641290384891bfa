"use strict";
// The board: choose setting and parameters, filter by oracle, price a Hessian-vector product. The arithmetic is that of
// bilevelbench.report.statistics.board: medians over trials, mean ranks over (problem, accuracy), ties averaged.
(function () {
  const B = window.BILEVELBENCH;
  const data = B.board;

  function median(values) {
    const sorted = values.slice().sort((a, b) => a - b), n = sorted.length;
    return n === 0 ? Infinity : (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2;
  }

  function ranks(values) {
    return values.map((v) => {
      let below = 0, equal = 0;
      for (const u of values) { if (u < v) below++; else if (u === v) equal++; }
      return below + (equal + 1) / 2;
    });
  }

  // Cost of method m in a cell, trial by trial; -1 in the data is a trial that it was not run on.
  function costs(cell, m, w, absent) {
    const second = cell.s[m], out = [];
    cell.f[m].forEach((first, i) => {
      if (first === -1) { if (absent !== undefined) out.push(absent); }
      else out.push(first === null ? Infinity : first + w * (second === 0 ? 0 : second[i]));
    });
    return out;
  }

  // The median of a method without products is the same at every price: it is worked out at the first.
  function middleOf(cell, m, w) {
    if (cell.s[m] !== 0) return median(costs(cell, m, w));
    cell.fixed = cell.fixed || new Map();
    if (!cell.fixed.has(m)) cell.fixed.set(m, median(costs(cell, m, w)));
    return cell.fixed.get(m);
  }

  B.rank = function (board, w) {
    const n = board.methods.length, sum = new Array(n).fill(0), ratios = board.methods.map(() => []);
    for (const cell of board.cells) {
      const middle = board.methods.map((_, m) => middleOf(cell, m, w));
      ranks(middle).forEach((r, m) => { sum[m] += r; });
      const best = Math.min.apply(null, middle);
      if (best < Infinity) middle.forEach((v, m) => ratios[m].push(v === best ? 1 : v === Infinity ? Infinity : v / best));
    }
    const mean = sum.map((s) => s / board.cells.length);
    return { mean: mean, rank: ranks(mean), relative: ratios.map((r) => median(r)) };
  };

  function profile(board, w) {
    const solved = board.methods.map(() => []);
    let total = 0;
    for (const cell of board.cells) {
      const all = board.methods.map((_, m) => costs(cell, m, w, Infinity));
      for (let i = 0; i < all[0].length; i++) {
        total++;
        const best = Math.min.apply(null, all.map((c) => c[i]));
        if (best < Infinity) all.forEach((c, m) => { if (c[i] < Infinity) solved[m].push(c[i] === best ? 1 : c[i] / best); });
      }
    }
    return solved.map((list) => {
      const points = [[1, 0]];
      list.sort((a, b) => a - b).forEach((tau, n) => {
        if (tau === points[points.length - 1][0]) points[points.length - 1][1] = (n + 1) / total;
        else points.push([tau, (n + 1) / total]);
      });
      return points;
    });
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

  document.addEventListener("DOMContentLoaded", () => {
    const sections = Array.from(document.querySelectorAll(".board"));
    if (!sections.length) return;
    const controls = document.getElementById("controls"), slider = document.getElementById("weight"), shown = document.getElementById("weight-value");
    const said = document.getElementById("said");
    const buttons = (id) => Array.from(document.querySelectorAll("#" + id + " button"));
    controls.hidden = false;
    const first = sections[0].dataset;
    const view = {};

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
      const current = sections.find((s) => s.dataset.mode === view.mode && s.dataset.setting === view.setting);
      sections.forEach((s) => s.classList.toggle("current", s === current));
      buttons("settings").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.setting === view.setting)));
      buttons("modes").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === view.mode)));
      buttons("oracles").forEach((b) => b.setAttribute("aria-pressed", String(view.oracles.includes(b.dataset.oracle))));
      slider.value = view.w;
      shown.textContent = String(view.w);
      slider.setAttribute("aria-valuetext", "1 HVP = " + view.w + " gradients");
      rerank(current, slide);
    }

    function rerank(section, slide) {
      const board = data.boards[section.dataset.board], table = section.querySelector("table.ranking"), body = table.tBodies[0];
      const found = B.rank(board, view.w), n = board.methods.length, span = Math.max(n - 1, 1);
      const nearest = board.intervals.reduce((a, b) => (Math.abs(Math.log(b.w / view.w)) < Math.abs(Math.log(a.w / view.w)) ? b : a));
      const before = new Map(Array.from(body.rows).map((row) => [row, slide ? row.getBoundingClientRect().top : 0]));
      for (const row of body.rows) {
        const m = Number(row.dataset.m), low = nearest.low[m], high = nearest.high[m];
        const rank = row.cells[0], cost = row.cells[2];
        rank.dataset.v = found.rank[m];
        write(rank.querySelector(".n"), String(found.rank[m]));
        write(rank.querySelector(".ci").lastChild, low + "–" + high);
        const bar = rank.querySelector(".bar");
        set(bar, "x", 1 + ((low - 1) / span) * 56);
        set(bar, "width", 2 + ((high - low) / span) * 56);
        set(rank.querySelector("circle"), "cx", 2 + ((found.rank[m] - 1) / span) * 56);
        cost.dataset.v = found.relative[m];
        cost.title = Number.isFinite(found.relative[m]) ? String(found.relative[m]) : "";
        write(cost, times(found.relative[m]));
        row.hidden = !view.oracles.includes(row.dataset.oracle);
      }
      const sort = B.sortOf(table) || { column: 0, direction: "ascending" };
      B.sortTable(table, sort.column, sort.direction);
      let band = 0, last = null;
      const ordered = Array.from(body.rows).sort((a, b) => Number(a.cells[0].dataset.v) - Number(b.cells[0].dataset.v));
      for (const row of ordered) {
        const group = nearest.group[Number(row.dataset.m)];
        if (last !== null && group !== last) band = 1 - band;
        last = group;
        row.classList.toggle("band-0", band === 0);
        row.classList.toggle("band-1", band === 1);
      }
      section.querySelector(".nearest").textContent = nearest.w === view.w ? "" : " Intervals and bands are those of 1 HVP = " + nearest.w + ", the nearest that was computed.";
      section.querySelector(".none-left").hidden = Array.from(body.rows).some((row) => !row.hidden);
      if (slide) glide(body, before);
      said.textContent = ordered.length ? "1 HVP = " + view.w + " gradients: first is " + board.methods[Number(ordered[0].dataset.m)] : "";
      drawProfile(section, board, slide ? RESTED : 0);
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

    // While the slider moves only the table follows: thousands of steps of the profile are drawn when it rests.
    const RESTED = 150;
    let pending = 0;
    function drawProfile(section, board, wait) {
      clearTimeout(pending);
      pending = setTimeout(() => {
        const box = section.querySelector(".profile");
        const lines = profile(board, view.w);
        const series = board.methods.map((name, m) => ({ name: name, look: data.looks[name], points: lines[m], steps: true })).filter((s) => view.oracles.includes(data.oracles[s.name]));
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
          series: series, xlog: true, ylog: false, ymin: 0, ymax: 1, height: 300, xlabel: "cost / best cost", ylabel: "share solved",
          alt: "Performance profile of " + series.length + " methods; the numbers are in the table below", empty: "No method is shown.",
          readout: (x, values) => B.readout(readout, x === null ? "" : "within " + B.number(x) + "×:", values.map((v) => ({ name: v.name, look: v.look, text: v.y === null ? "0%" : Math.round(100 * v.y) + "%", y: -(v.y || 0) }))),
        });
      }, wait);
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
