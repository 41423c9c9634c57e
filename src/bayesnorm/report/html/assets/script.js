"use strict";
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const said = document.getElementById("said");
  const hiddenRuns = new Set();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, className, ...children) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };

  const show = (value, kind) => {
    if (value === null || value === undefined) return "\u2013";
    if (kind === "percent") return `${(100 * value).toFixed(2)}\u00a0%`;
    if (kind === "count") return value.toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  };

  // The theme: the system's until the reader chooses.
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const named = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("bayesnorm-theme", value);
      return localStorage.getItem("bayesnorm-theme");
    } catch { return null; } // a page from a file may have no storage
  };
  if (["light", "dark"].includes(remembered())) document.documentElement.dataset.theme = remembered();
  button.hidden = false;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remembered(document.documentElement.dataset.theme);
    named();
  });
  dark.addEventListener("change", named);
  named();

  // The legend: a run is hidden in all charts.
  for (const entry of all("[data-legend]")) {
    const run = Number(entry.dataset.legend);
    const toggle = make("button", "", ...entry.childNodes);
    toggle.type = "button";
    toggle.title = "Show or hide this run in all charts";
    toggle.setAttribute("aria-pressed", "true");
    toggle.addEventListener("click", () => {
      const off = !hiddenRuns.has(run);
      if (off) hiddenRuns.add(run); else hiddenRuns.delete(run);
      toggle.setAttribute("aria-pressed", String(!off));
      for (const element of all(`[data-run="${run}"]`)) element.classList.toggle("off", off);
    });
    entry.append(toggle);
  }

  // Tables that can be sorted: numbers by value, words by letter, what is missing last.
  const keyOf = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (text === "inf") return Infinity;
    const number = parseFloat(text.replaceAll(",", ""));
    return text === "\u2013" || text === "" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return a === b ? 0 : sign * (a < b ? -1 : 1);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const press = make("button", "", ...head.childNodes);
      press.type = "button";
      head.append(press);
      press.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
        rows.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
        table.classList.remove("metrics");
        body.append(...rows.map((pair) => pair[1]));
      });
    });
  }

  // Switches whose names agree before the slash are one choice.
  for (const input of all('.switch > input[name*="/"]')) {
    input.addEventListener("change", () => {
      const group = input.name.split("/")[0] + "/";
      for (const other of all(`.switch > input[name^="${group}"]`)) {
        if (other.value === input.value) other.checked = true;
      }
    });
  }

  // A plot that can be read: a tip beside the cursor, and the same words for screen readers.
  const readable = (plot, label, help) => {
    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-roledescription", "chart");
    plot.setAttribute("aria-label", `${label} ${help}`);
  };
  const placeTip = (plot, tip, x, y) => {
    const start = plot.getBoundingClientRect().left;
    const room = document.documentElement.clientWidth - start - 8;
    const left = x + 14 + tip.offsetWidth > room ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${Math.max(8 - start, Math.min(left, room - tip.offsetWidth))}px`;
    tip.style.top = `${y}px`;
  };

  const swatchOf = (run) => document.querySelector(`[data-legend="${run}"] .swatch`).cloneNode(true);

  const lineChart = (plot) => {
    const chart = numbers.charts[plot.dataset.chart];
    const svg = plot.querySelector("svg");
    const [left, top, right, bottom] = chart.frame;
    if (!chart.slots.length || !chart.lines.length) return;
    const place = (axis, value) => axis.log
      ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
      : (value - axis.low) / (axis.high - axis.low);
    const across = (value) => left + place(chart.x, value) * (right - left);
    const cursor = document.createElementNS(svg.namespaceURI, "path");
    cursor.setAttribute("class", "cursor");
    const tip = make("div", "tip");
    let slot = -1;

    const nearest = (list, x) => {
      let low = 0, high = list.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (list[middle] < x) low = middle + 1; else high = middle;
      }
      return low > 0 && x - list[low - 1] < list[low] - x ? low - 1 : low;
    };
    const values = (x) => chart.lines.flatMap((line) => {
      if (hiddenRuns.has(line.run)) return [];
      const xs = chart.xs[line.x];
      const index = nearest(xs, x);
      const value = line.y[index];
      if (value === null || value === undefined || Math.abs(xs[index] - x) > chart.reach * 1.0001) return [];
      const count = line.counts ? ` (n\u00a0=\u00a0${line.counts[index].toLocaleString("en")})` : "";
      return [{ run: line.run, note: line.note || "", text: show(value, chart.y.kind) + count }];
    });
    // Several curves of a run share a row, and their notes the title.
    const several = new Set(chart.lines.map((line) => line.run)).size < chart.lines.length;
    const notes = [...new Set(chart.lines.map((line) => line.note))];
    const rowsOf = (found) => {
      if (!several) {
        return found.map((entry) =>
          ({ run: entry.run, name: numbers.runs[entry.run] + (entry.note ? `, ${entry.note}` : ""), texts: [entry.text] }));
      }
      return [...new Set(found.map((entry) => entry.run))].map((run) => ({
        run,
        name: numbers.runs[run],
        texts: notes.map((note) => found.find((entry) => entry.run === run && entry.note === note)?.text ?? "\u2013"),
      }));
    };
    const leave = () => { cursor.remove(); tip.remove(); slot = -1; };
    const stand = (index, speak) => {
      slot = index;
      const x = chart.slots[index];
      const found = rowsOf(values(x));
      const title = `${chart.at} ${show(x, chart.x.kind)}`;
      tip.replaceChildren(make("b", "", title), ...found.map((row) =>
        make("div", "", swatchOf(row.run), make("span", "name", row.name), make("span", "value", row.texts.join(" \u00b7 ")))));
      if (several) tip.append(make("div", "notes", notes.join(" \u00b7 ")));
      if (!found.length) tip.append(make("div", "", "no value here"));
      cursor.setAttribute("d", `M${across(x)},${top}V${bottom}`);
      svg.append(cursor);
      plot.append(tip);
      const scale = svg.clientWidth / svg.viewBox.baseVal.width;
      placeTip(plot, tip, across(x) * scale, (top + 6) * scale);
      if (speak) said.textContent = [title, ...found.map((row) =>
        `${row.name}: ${row.texts.map((text, i) => (several ? `${text} ${notes[i]}` : text)).join(", ")}`)].join("; ");
    };
    const under = (event) => {
      const box = svg.getBoundingClientRect();
      const units = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const share = (units - left) / (right - left);
      return nearest(chart.slots, chart.x.low + share * (chart.x.high - chart.x.low));
    };
    plot.addEventListener("pointermove", (event) => stand(under(event), false));
    plot.addEventListener("pointerdown", (event) => stand(under(event), false));
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    readable(plot, svg.getAttribute("aria-label"), "Left and right arrow keys read the values.");
    plot.addEventListener("keydown", (event) => {
      const last = chart.slots.length - 1;
      const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") leave();
      if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const from = slot >= 0 ? slot : step > 0 ? -1 : last + 1;
      stand(Math.max(0, Math.min(last, from + step)), true);
    });
  };

  const heatMap = (plot) => {
    const { rows } = numbers.charts[plot.dataset.heat];
    const lines = [...plot.querySelector("tbody").rows];
    const tip = make("div", "tip");
    const spot = make("div", "spot");
    let row = -1, cell = 0;
    const leave = () => { tip.remove(); spot.remove(); lines[row]?.classList.remove("here"); row = -1; };
    const stand = (r, c, speak) => {
      lines[row]?.classList.remove("here");
      [row, cell] = [r, c];
      const { name, values, channels } = rows[row];
      lines[row].classList.add("here");
      const what = channels[cell] < 0 ? "mean" : `channel ${channels[cell]}, ${cell + 1} of ${values.length}`;
      tip.replaceChildren(make("b", "", name),
        make("div", "", make("span", "name", what), make("span", "value", show(values[cell], "number"))));
      plot.append(spot, tip);
      const strip = lines[row].querySelector("svg").getBoundingClientRect();
      const frame = plot.getBoundingClientRect();
      const width = strip.width / values.length;
      const x = strip.left - frame.left + cell * width;
      Object.assign(spot.style, { left: `${x - 1}px`, top: `${strip.top - frame.top - 2}px`,
        width: `${Math.max(4, width + 2)}px`, height: `${strip.height + 4}px` });
      placeTip(plot, tip, x + width / 2, strip.bottom - frame.top + 6);
      if (speak) said.textContent = `${name}; ${what}: ${show(values[cell], "number")}`;
    };
    lines.forEach((line, r) => {
      const strip = line.querySelector("svg");
      const under = (event) => {
        const box = strip.getBoundingClientRect();
        const count = rows[r].values.length;
        stand(r, Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count))), false);
      };
      strip.addEventListener("pointermove", under);
      strip.addEventListener("pointerdown", under);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    readable(plot, plot.querySelector("caption").textContent + ".", "Arrow keys read layers and channels.");
    plot.addEventListener("keydown", (event) => {
      const [down, aside] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [];
      if (event.key === "Escape") leave();
      if (down === undefined) return;
      event.preventDefault();
      if (row < 0) { stand(0, 0, true); return; }
      const r = Math.max(0, Math.min(rows.length - 1, row + down));
      stand(r, Math.max(0, Math.min(rows[r].values.length - 1, cell + aside)), true);
    });
  };

  all("[data-chart]").forEach(lineChart);
  all("[data-heat]").forEach(heatMap);

  // Where the reader is.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const part of all("main > section")) watcher.observe(part);
})();
