"use strict";
// Curves of one problem: choose methods and axes; the state is in the address.
(function () {
  const B = window.BILEVELBENCH;
  const data = B.curves;
  const NAMES = { grad_phi: "norm of the hypergradient, |∇φ|", phi: "φ above the best that was seen", g_y: "norm of the lower gradient, |∇g|" };
  const shown = (measure) => NAMES[measure] || measure.replace(/_/g, " ");
  const AXES = { cost: "oracle calls (samples)", first: "gradient calls", weighted: "weighted calls (samples)", step: "steps", seconds: "seconds" };

  function positions(trial, axis, w) {
    // `cost` and `second` count samples, as the board does, and `cost` holds a second-order one once already
    return axis === "weighted" ? trial.x.cost.map((c, i) => c + (w - 1) * trial.x.second[i]) : trial.x[axis];
  }

  // A method under the name of its paper, with the board if that is not the first one: it may have curves of several.
  function titleOf(method) {
    return method.look.title + (method.board === data.methods[0].board ? "" : " (" + method.board + ")");
  }

  function quantile(sorted, q) {
    const at = q * (sorted.length - 1), i = Math.floor(at), j = Math.ceil(at);
    if (i === j) return sorted[i];
    return sorted[j] === Infinity ? Infinity : sorted[i] + (at - i) * (sorted[j] - sorted[i]);
  }

  // Median and quartiles on the union of positions: the last value at or before each; after its end a failed trial is infinite.
  B.summarise = function (trials, axis, measure, w) {
    const curves = trials.filter((t) => axis !== "seconds" || t.timed).map((t) => {
      const y = t.y[measure] || [];
      const points = positions(t, axis, w).map((x, i) => [x, y[i]]).filter((p) => p[0] !== null && p[1] !== null && p[1] !== undefined);
      return { points: points, failed: t.failed, at: 0 };
    }).filter((c) => c.points.length);
    const xs = Array.from(new Set(curves.flatMap((c) => c.points.map((p) => p[0])))).sort((a, b) => a - b);
    const out = [];
    for (const x of xs) {
      const seen = [];
      for (const c of curves) {
        while (c.at < c.points.length && c.points[c.at][0] <= x) c.at++;
        if (c.at === 0) continue;
        const over = c.failed && c.at === c.points.length && c.points[c.at - 1][0] < x;
        seen.push(over ? Infinity : c.points[c.at - 1][1]);
      }
      seen.sort((a, b) => a - b);
      if (seen.length) out.push([x, quantile(seen, 0.5), quantile(seen, 0.25), quantile(seen, 0.75)]);
    }
    return out;
  };

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.getElementById("chart");
    if (!box || !data) return;
    const get = (id) => document.getElementById(id);
    const controls = get("curve-controls"), xAxis = get("x-axis"), yAxis = get("y-axis"), w = get("w"), list = get("method-list");
    if (!data.methods.length || !data.measures.length) {
      box.appendChild(B.element("p", { class: "soft" }, "There is no curve to show: no trial has a finite value."));
      return;
    }
    controls.hidden = false;
    get("methods").hidden = false;
    data.measures.forEach((m) => yAxis.appendChild(B.element("option", { value: m }, shown(m))));
    if (!data.methods.some((m) => m.trials.some((t) => t.timed))) {
      const option = xAxis.querySelector('[value="seconds"]');
      option.disabled = true;
      option.textContent = "seconds (no timed trials)";
    }
    const chosen = JSON.parse(box.dataset.chosen);
    const boards = Array.from(new Set(data.methods.map((m) => m.board)));
    const groups = new Map(boards.map((board) => {
      const group = B.element("div", { role: "group", "aria-label": board });
      if (boards.length > 1) group.appendChild(B.element("p", { class: "soft" }, board));
      list.appendChild(group);
      return [board, group.appendChild(B.element("div", { class: "columns" }))];
    }));
    const boxes = data.methods.map((method, n) => {
      const label = B.element("label", {}), input = B.element("input", { type: "checkbox", value: String(n) });
      label.appendChild(input);
      label.appendChild(B.swatch(method.look));
      label.appendChild(B.element("span", {}, method.look.title));
      groups.get(method.board).appendChild(label);
      return input;
    });

    function read() {
      const state = B.readState();
      const pick = (select, value) => { if (value && Array.from(select.options).some((o) => o.value === value && !o.disabled)) select.value = value; };
      pick(xAxis, state.get("x") || "cost");
      pick(yAxis, state.get("y") || data.measures[0]);
      get("x-log").checked = state.get("xlog") !== "0";
      get("y-log").checked = state.get("ylog") !== "0";
      get("band").checked = state.get("band") !== "0";
      const price = Number(state.get("w") || 1);
      w.value = price >= 0.5 && price <= 10 ? price : 1;
      const names = state.has("m") ? state.getAll("m") : chosen;
      boxes.forEach((input, n) => { input.checked = names.includes(data.methods[n].name); });
    }

    function write() {
      const state = B.readState();
      const put = (key, value, usual) => (value === usual ? state.delete(key) : state.set(key, value));
      put("x", xAxis.value, "cost");
      put("y", yAxis.value, data.measures[0]);
      put("xlog", get("x-log").checked ? "1" : "0", "1");
      put("ylog", get("y-log").checked ? "1" : "0", "1");
      put("band", get("band").checked ? "1" : "0", "1");
      put("w", xAxis.value === "weighted" ? String(Number(w.value)) : "1", "1");
      const names = data.methods.filter((_, n) => boxes[n].checked).map((m) => m.name);
      state.delete("m");
      const usual = data.methods.map((m) => m.name).filter((name) => chosen.includes(name));
      if (names.join("\n") !== usual.join("\n")) (names.length ? names : [""]).forEach((name) => state.append("m", name));
      B.writeState(state);
    }

    function draw() {
      get("w-label").hidden = xAxis.value !== "weighted";
      const price = Math.min(Math.max(Number(w.value) || 1, 0.5), 10);
      const series = data.methods.filter((_, n) => boxes[n].checked).map((m) => ({ name: titleOf(m), look: m.look, points: B.summarise(m.trials, xAxis.value, yAxis.value, price) }));
      const yName = shown(yAxis.value), readout = get("readout");
      B.chart(box, {
        series: series, xlog: get("x-log").checked, ylog: get("y-log").checked, band: get("band").checked, xlabel: AXES[xAxis.value], ylabel: yName,
        alt: yName + " against " + AXES[xAxis.value] + " on " + box.dataset.name + ", " + series.length + " methods; the numbers are in the table below",
        empty: series.length ? undefined : "Choose at least one method.",
        readout: (x, values) => B.readout(readout, x === null ? "" : AXES[xAxis.value] + " " + B.number(x) + ":", values.map((v) => ({ name: v.name, look: v.look, y: v.y, text: v.y === null ? "not begun" : B.number(v.y) }))),
      });
    }

    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.addEventListener("input", (event) => {
      if (event.target === get("link")) return;
      draw(); write();
    });
    list.addEventListener("input", () => { draw(); write(); });
    get("all").addEventListener("click", () => { boxes.forEach((b) => { b.checked = true; }); draw(); write(); });
    get("none").addEventListener("click", () => { boxes.forEach((b) => { b.checked = false; }); draw(); write(); });
    get("copy").addEventListener("click", () => {
      const link = get("link");
      write();
      link.hidden = false;
      link.value = location.href;
      link.select();
      if (navigator.clipboard) navigator.clipboard.writeText(link.value).catch(() => {}); // the link is selected, to be copied by hand
    });
    window.addEventListener("hashchange", () => { read(); draw(); });
    let width = window.innerWidth;
    window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
    read();
    draw();
  });
})();
