"use strict";
// A line chart as SVG: log or linear axes, bands, markers, a cursor that reads values by pointer or by arrow keys.
(function () {
  const B = window.BILEVELBENCH;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

  function marker(kind, x, y, r) {
    const at = (points) => B.svg("polygon", { class: "marker", points: points.map((p) => (x + r * p[0]).toFixed(1) + "," + (y + r * p[1]).toFixed(1)).join(" ") });
    if (kind === 1) return B.svg("rect", { class: "marker", x: x - r * 0.85, y: y - r * 0.85, width: r * 1.7, height: r * 1.7 });
    if (kind === 2) return at([[0, -1.2], [1.1, 0.8], [-1.1, 0.8]]);
    if (kind === 3) return at([[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]]);
    if (kind === 4) return at([[0, 1.2], [1.1, -0.8], [-1.1, -0.8]]);
    return B.svg("circle", { class: "marker", cx: x, cy: y, r: r });
  }

  B.swatch = function (look) {
    const svg = B.svg("svg", { viewBox: "0 0 34 12", "aria-hidden": "true", class: look.family });
    svg.appendChild(B.svg("line", { class: "line", x1: 1, x2: 33, y1: 6, y2: 6, "stroke-dasharray": DASHES[look.dash] }));
    svg.appendChild(marker(look.marker, 17, 6, 4));
    return svg;
  };

  function ticks(low, high, log, room) {
    const out = [];
    if (log) {
      const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9);
      const every = Math.max(1, Math.ceil((last - first + 1) / room));
      for (let k = first; k <= last; k += every) out.push([k, Math.pow(10, k)]);
      if (out.length >= 2) return out;
      for (const f of [1, 2, 5]) for (let k = Math.floor(low); k <= high; k++) {
        const at = k + Math.log10(f);
        if (at >= low && at <= high && !out.some((t) => Math.abs(t[0] - at) < 1e-9)) out.push([at, f * Math.pow(10, k)]);
      }
      return out.sort((a, b) => a[0] - b[0]);
    }
    const raw = (high - low) / room || 1;
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) out.push([v, Math.abs(v) < step * 1e-9 ? 0 : v]);
    return out;
  }

  function label(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-2)) {
      const parts = Number(value.toPrecision(2)).toExponential().split("e");
      return (parts[0] === "1" ? "" : parts[0] + "·") + B.power(Number(parts[1]));
    }
    return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  }

  B.readout = function (box, head, values) {
    box.textContent = "";
    if (!head) return;
    box.appendChild(B.element("span", { class: "key" }, head));
    values.slice().sort((a, b) => (a.y === null ? Infinity : a.y) - (b.y === null ? Infinity : b.y)).slice(0, 12).forEach((v) => {
      const entry = B.element("span", {});
      entry.appendChild(B.element("span", { class: "dot " + v.look.family, "aria-hidden": "true" }));
      entry.appendChild(document.createTextNode(v.name + " " + v.text));
      box.appendChild(entry);
    });
  };

  // options: series [{name, look, points: [[x, y, low?, high?]], steps}], xlog, ylog, xlabel, ylabel, ymin, ymax, height, alt, readout(x, values)
  B.chart = function (box, options) {
    box.textContent = "";
    const width = Math.max(box.clientWidth, 280), height = options.height || 380;
    const left = 58, right = 22, top = 10, bottom = 42;
    const fx = (v) => (options.xlog ? Math.log10(v) : v), fy = (v) => (options.ylog ? Math.log10(v) : v);
    const fits = (v, log) => v !== null && Number.isFinite(v) && (!log || v > 0);
    const series = options.series.map((s) => Object.assign({}, s, { points: s.points.filter((p) => fits(p[0], options.xlog) && fits(p[1], options.ylog)) })).filter((s) => s.points.length);
    if (!series.length) {
      box.appendChild(B.element("p", { class: "soft" }, options.empty || "There is nothing to draw: no chosen method has a finite value here."));
      if (options.readout) options.readout(null, []);
      return;
    }
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const s of series) for (const p of s.points) {
      x0 = Math.min(x0, fx(p[0])); x1 = Math.max(x1, fx(p[0])); y0 = Math.min(y0, fy(p[1])); y1 = Math.max(y1, fy(p[1]));
    }
    if (options.ymin !== undefined) y0 = options.ymin;
    if (options.ymax !== undefined) y1 = options.ymax;
    if (x1 - x0 < 1e-12) { x0 -= 0.5; x1 += 0.5; }
    if (y1 - y0 < 1e-12) { y0 -= 0.5; y1 += 0.5; }
    const pad = options.ymin === undefined ? (y1 - y0) * 0.03 : 0;
    y0 -= pad; y1 += pad;
    const px = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
    const py = (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
    const clamp = (v) => Math.min(Math.max(v, top), height - bottom);

    const svg = B.svg("svg", { viewBox: "0 0 " + width + " " + height, height: height, role: "img", tabindex: "0", "aria-label": options.alt });
    for (const t of ticks(y0, y1, options.ylog, 7)) {
      svg.appendChild(B.svg("line", { class: "grid", x1: left, x2: width - right, y1: py(t[0]), y2: py(t[0]) }));
      svg.appendChild(B.svg("text", { class: "tick", x: left - 6, y: py(t[0]) + 4, "text-anchor": "end" }, label(t[1])));
    }
    for (const t of ticks(x0, x1, options.xlog, width < 500 ? 4 : 8)) {
      svg.appendChild(B.svg("line", { class: "grid", x1: px(t[0]), x2: px(t[0]), y1: top, y2: height - bottom }));
      svg.appendChild(B.svg("text", { class: "tick", x: px(t[0]), y: height - bottom + 16, "text-anchor": "middle" }, label(t[1])));
    }
    svg.appendChild(B.svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    svg.appendChild(B.svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom }));
    svg.appendChild(B.svg("text", { class: "tick", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, options.xlabel));
    svg.appendChild(B.svg("text", { class: "tick", x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: "rotate(-90 12 " + (top + height - bottom) / 2 + ")" }, options.ylabel));

    for (const s of series) {
      const group = B.svg("g", { class: s.look.family });
      if (options.band) {
        const inside = s.points.filter((p) => p.length > 2 && fits(p[2], options.ylog));
        const high = inside.map((p) => [px(fx(p[0])), Number.isFinite(p[3]) ? clamp(py(fy(p[3]))) : top]);
        const low = inside.map((p) => [px(fx(p[0])), clamp(py(fy(p[2])))]).reverse();
        if (inside.length > 1) group.appendChild(B.svg("polygon", { class: "area", points: high.concat(low).map((p) => p[0].toFixed(1) + "," + p[1].toFixed(1)).join(" ") }));
      }
      let d = "";
      s.points.forEach((p, n) => {
        const x = px(fx(p[0])).toFixed(1), y = clamp(py(fy(p[1]))).toFixed(1);
        d += n === 0 ? "M" + x + " " + y : s.steps ? "H" + x + "V" + y : "L" + x + " " + y;
      });
      if (s.steps) d += "H" + (width - right);
      group.appendChild(B.svg("path", { class: "line", d: d, "stroke-dasharray": DASHES[s.look.dash] }));
      const every = Math.max(1, Math.floor(s.points.length / 6));
      for (let n = every - 1; n < s.points.length; n += every) group.appendChild(marker(s.look.marker, px(fx(s.points[n][0])), clamp(py(fy(s.points[n][1]))), 3.6));
      svg.appendChild(group);
    }
    const cursor = B.svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
    svg.appendChild(cursor);
    box.appendChild(svg);
    if (!options.readout) return;

    const xs = Array.from(new Set(series.flatMap((s) => s.points.map((p) => p[0])))).sort((a, b) => a - b);
    let place = -1;
    function show(n) {
      place = Math.min(Math.max(n, 0), xs.length - 1);
      const x = px(fx(xs[place]));
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.setAttribute("visibility", "visible");
      options.readout(xs[place], series.map((s) => {
        let y = null;
        for (const p of s.points) { if (p[0] > xs[place]) break; y = p[1]; }
        return { name: s.name, look: s.look, y: y };
      }));
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const u = x0 + (((event.clientX - box.left) * width) / box.width - left) / (width - left - right) * (x1 - x0);
      let best = 0;
      xs.forEach((v, n) => { if (Math.abs(fx(v) - u) < Math.abs(fx(xs[best]) - u)) best = n; });
      show(best);
    });
    svg.addEventListener("pointerleave", () => cursor.setAttribute("visibility", "hidden"));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
      if (!move) return;
      event.preventDefault();
      show(place < 0 ? (move > 0 ? 0 : xs.length - 1) : place + move);
    });
  };
})();
