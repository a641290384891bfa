"use strict";
// What every page shares: numbers, the state in the address, tables that sort. Text from results only ever goes through textContent.
(function () {
  const B = (window.BILEVELBENCH = window.BILEVELBENCH || {});
  document.documentElement.classList.add("js");

  // Two significant digits with thousands separators or a power of ten, as in the tables.
  B.number = function (value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size < 100 && Number.isInteger(value)) return value.toFixed(0);
    if (size >= 1e-2 && size < 1e7) {
      const rounded = Number(value.toExponential(1));
      const decimals = Math.max(0, 1 - Math.floor(Math.log10(Math.abs(rounded))));
      return rounded.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
    }
    return value.toExponential(1).replace("e+", "e");
  };

  // 10⁻³: a power of ten as it is written by hand.
  B.power = function (exponent) {
    return "10" + String(exponent).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  };

  B.element = function (name, attributes, text) {
    const node = document.createElement(name);
    for (const key of Object.keys(attributes || {})) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  B.svg = function (name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key of Object.keys(attributes || {})) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // The state of a page is `#key=value&key=value`; an anchor has no "=" and is left alone.
  B.readState = function () {
    const text = location.hash.slice(1);
    return new URLSearchParams(text.includes("=") ? text : "");
  };
  B.writeState = function (state) {
    const text = state.toString();
    if (text === location.hash.slice(1) || (text === "" && !location.hash.includes("="))) return;
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  };

  function value(row, column) {
    const cell = row.cells[column];
    const given = cell.dataset.v;
    const text = given === undefined ? cell.textContent.trim() : given;
    if (text === "inf" || text === "Infinity") return Infinity;
    const number = Number(text.replace(/,/g, "").replace(/%$/, ""));
    return text !== "" && Number.isFinite(number) ? number : text;
  }

  function compare(a, b) {
    const numbers = [typeof a === "number", typeof b === "number"];
    if (numbers[0] && numbers[1]) return a === b ? 0 : a < b ? -1 : 1;
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1; // numbers before words such as "never"
    return a < b ? -1 : a > b ? 1 : 0;
  }

  // Rows by a column; `data-v` of a cell is its value where that is not its text. Rows that are in order stay untouched.
  B.sortTable = function (table, column, direction) {
    const body = table.tBodies[0];
    const sign = direction === "descending" ? -1 : 1;
    const rows = Array.from(body.rows).map((row, n) => [value(row, column), n, row]);
    rows.sort((a, b) => sign * compare(a[0], b[0]) || a[1] - b[1]);
    if (rows.some((entry, n) => entry[1] !== n)) {
      const fragment = document.createDocumentFragment();
      for (const entry of rows) fragment.appendChild(entry[2]);
      body.appendChild(fragment);
    }
    Array.from(table.tHead.rows[0].cells).forEach((head, n) => {
      if (head.querySelector("button")) head.setAttribute("aria-sort", n === column ? direction : "none");
    });
  };

  B.sortOf = function (table) {
    const heads = Array.from(table.tHead.rows[0].cells);
    const column = heads.findIndex((head) => /ending$/.test(head.getAttribute("aria-sort") || ""));
    return column < 0 ? null : { column: column, direction: heads[column].getAttribute("aria-sort") };
  };

  function sortable(table) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      if (head.hasAttribute("data-nosort")) return;
      const button = B.element("button", { type: "button" });
      button.append(...head.childNodes); // with the places where a name may break
      head.appendChild(button);
      if (!head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const best = head.dataset.best || "ascending"; // the first click puts the best on top
        const direction = head.getAttribute("aria-sort") !== best ? best : best === "ascending" ? "descending" : "ascending";
        B.sortTable(table, column, direction);
        const state = B.readState();
        state.set("sort", [table.id, column, direction === "ascending" ? "a" : "d"].join("."));
        B.writeState(state);
      });
    });
  }

  function sortFromState() {
    const parts = (B.readState().get("sort") || "").split(".");
    const table = parts.length === 3 ? document.getElementById(parts[0]) : null;
    if (!table || !table.matches("table.sortable")) return;
    const head = table.tHead.rows[0].cells[Number(parts[1])];
    if (head && head.querySelector("button")) B.sortTable(table, Number(parts[1]), parts[2] === "d" ? "descending" : "ascending");
  }

  // A button that copies a command, or selects it where there is no clipboard, as in a page that was opened as a file.
  function copyable(code) {
    const button = B.element("button", { type: "button", "aria-label": "copy: " + code.textContent.trim().split("\n")[0] }, "copy");
    code.after(" ", button);
    button.addEventListener("click", () => {
      getSelection().selectAllChildren(code);
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).catch(() => {});
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.querySelectorAll("code.again, pre.again").forEach(copyable);
    sortFromState();
  });
  window.addEventListener("hashchange", sortFromState);
})();
