// Charts in log scale, drawn with uPlot: over the places of a network, or over anything else that is counted.
//
// Data: {title, places, kinds, lines: [{style, label, kind, log10, gaps}], baseline?, x?}. `places` names each point;
// `x` gives increasing numbers for them, by default their place. A page fed live keeps what `normscope.chart` returns
// and calls its `update` with new data: as many lines as before, any number of points.
"use strict";
(() => {
  const normscope = (window.normscope = window.normscope || {});
  const DASHES = {
    without_normalizers: [7, 4],
    printed: [2, 4],
  };
  const WIDE = new Set(["global", "variance_floor", "lower", "variance-mean"]);
  const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

  // A number given by its decimal logarithm, as the page writes it everywhere.
  normscope.text = (log10) => {
    if (log10 === null || log10 === undefined) return "not measured";
    if (log10 === "inf" || log10 === Infinity) return "no bound";
    if (log10 === "-inf" || log10 === -Infinity) return "0";
    if (log10 >= -3 && log10 < 4) {
      const plain = Number((10 ** log10).toPrecision(4));
      if (plain < 1e4) return String(plain);
    }
    let exponent = Math.floor(log10);
    let mantissa = (10 ** (log10 - exponent)).toFixed(3);
    if (mantissa.startsWith("10")) [mantissa, exponent] = ["1.000", exponent + 1];
    return `${mantissa}×10${superscript(exponent)}`;
  };

  // Lines across: whole powers of ten, some steps apart, or 1, 2 and 5 of each where there are few.
  const splits = (low, high) => {
    const span = high - low;
    if (span < 3) {
      const found = [];
      for (let k = Math.floor(low); k <= high; k += 1) found.push(k, k + Math.log10(2), k + Math.log10(5));
      return found.filter((s) => s >= low && s <= high);
    }
    const raw = span / 8;
    const scale = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(1, scale * [1, 2, 5, 10].find((s) => s * scale >= raw));
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  };
  const power = (log10) => {
    const rounded = Math.round(log10);
    if (Math.abs(log10 - rounded) > 1e-6 || (rounded >= -2 && rounded <= 3)) return normscope.text(log10);
    return `10${superscript(rounded)}`;
  };

  const finite = (x) => (typeof x === "number" ? x : null);
  const places = (data) => data.x ?? data.places.map((_, i) => i);
  const columns = (data) => [places(data), ...data.lines.map((line) => line.log10.map(finite))];
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const short = (name) => (name.length > 16 ? `…${name.slice(-15)}` : name);
  // Names of places lie flat where there is room for all of them, and slant where there is not.
  const slanted = (data, width) => !data.x && width < 90 * data.places.length;
  const letters = (data) => Math.max(0, ...data.places.map((name) => short(name).length));
  const below = (data, width) => (slanted(data, width) ? 30 + 5.2 * letters(data) : 34);
  // Half of the last name, where it lies flat, reaches beyond the last place.
  const beyond = (data, width) => (data.x || slanted(data, width) ? 10 : 10 + 3.5 * short(data.places[data.places.length - 1] ?? "").length);

  // Colours are those of the legend, so that the style sheet alone decides them, in light and in dark.
  const colour = (figure, style) => {
    const sample = figure.querySelector(`.legend .line.${CSS.escape(style)}`);
    return sample ? getComputedStyle(sample).stroke : "#888";
  };

  const quietOf = (figure) => getComputedStyle(figure.querySelector("figcaption")).color;
  const ruleOf = (figure) => getComputedStyle(figure).borderTopColor;

  function options(figure, given, size, hooks) {
    const data = given();
    const page = getComputedStyle(document.documentElement);
    const few = data.places.length <= 80;
    return {
      ...size,
      padding: [null, beyond(data, size.width), null, null],
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { size: 8 } },
      scales: { x: { time: false }, y: { range: (_, low, high) => range(given(), low, high) } },
      axes: [
        {
          ...xAxis(figure), ...titled(data.xTitle),
          size: below(data, size.width), space: slanted(data, size.width) ? 26 : 50,
          rotate: slanted(data, size.width) ? 50 : 0,
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000],
          values: (_, values) => values.map((s) => (!Number.isInteger(s) ? "" : data.x ? s : short(data.places[s] ?? ""))),
        },
        {
          ...yAxis(figure), ...titled(data.yTitle),
          splits: (_, axis, low, high) => splits(low, high),
          values: (_, values) => values.map(power),
        },
      ],
      series: [
        {},
        ...data.lines.map((line) => ({
          label: line.label,
          stroke: () => colour(figure, line.style),
          width: WIDE.has(line.style) ? 2.5 : 1.8,
          dash: line.style.endsWith("-lower") ? [6, 4] : DASHES[line.style],
          spanGaps: Boolean(line.gaps),
          points: { show: few, size: 5 },
        })),
      ],
      hooks: { draw: [(plot) => draw(plot, given(), page.color)], ...hooks },
    };
  }

  // Never closer than one decade, and always with the baseline inside.
  function range(data, low, high) {
    let [a, b] = [low ?? 0, high ?? 1];
    if (data.baseline !== undefined) [a, b] = [Math.min(a, data.baseline), Math.max(b, data.baseline)];
    const missing = Math.max(0, 1 - (b - a)) / 2;
    const room = 0.05 * (b - a + 2 * missing);
    return [a - missing - room, b + missing + room];
  }

  // The baseline across, and a diamond below each normalizer.
  function draw(plot, data, ink) {
    const { ctx, bbox } = plot;
    ctx.save();
    if (data.baseline !== undefined) {
      const y = Math.round(plot.valToPos(data.baseline, "y", true));
      ctx.strokeStyle = ink;
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    } else {
      const mark = document.querySelector(".mark");
      ctx.fillStyle = mark ? getComputedStyle(mark).color : "#888";
      const r = 3.5 * devicePixelRatio;
      const y = bbox.top + bbox.height;
      data.kinds.forEach((kind, i) => {
        if (kind !== "normalizer") return;
        const x = plot.valToPos(plot.data[0][i], "x", true);
        if (x < bbox.left || x > bbox.left + bbox.width) return;
        ctx.beginPath();
        ctx.moveTo(x, y - r);
        ctx.lineTo(x + r, y);
        ctx.lineTo(x, y + r);
        ctx.lineTo(x - r, y);
        ctx.fill();
      });
    }
    ctx.restore();
  }

  const titled = (label) => ({ label, labelSize: 20, labelFont: "12px system-ui, sans-serif", labelGap: 2 });
  const xAxis = (figure) => ({ stroke: quietOf(figure), grid: { show: false }, ticks: { stroke: ruleOf(figure), width: 1 } });
  const yAxis = (figure) => ({ stroke: quietOf(figure), grid: { stroke: ruleOf(figure), width: 1 }, ticks: { show: false }, size: 62 });

  // A row of the box beside the pointer.
  const tipRow = (tip, colour, label, number, kind) => {
    const row = tip.appendChild(element("div"));
    row.appendChild(element("i")).style.color = colour;
    row.append(element("span", "", label), element("strong", "", number), element("small", "", kind));
  };
  // Show the box on the side of the pointer where there is room, or across a narrow chart.
  const showTip = (tip, plot, box, narrow) => {
    tip.hidden = false;
    const left = plot.over.offsetLeft + plot.cursor.left;
    const right = left > box.clientWidth / 2;
    tip.style.top = "8px";
    tip.style.left = right ? "" : `${left + 14}px`;
    tip.style.right = right ? `${box.clientWidth - left + 14}px` : "";
    if (box.clientWidth < narrow) tip.style.left = tip.style.right = "4px";
  };
  const pointed = ({ cursor }) => (cursor.left < 0 ? null : cursor.idx ?? null);
  // Let the keyboard into a chart. Returns the text that is read out where the keyboard moves.
  const readable = (figure, box, label) => {
    const spoken = figure.appendChild(element("p", "spoken"));
    spoken.setAttribute("aria-live", "polite");
    box.tabIndex = 0;
    box.setAttribute("role", "application");
    box.setAttribute("aria-label", label);
    return spoken;
  };
  // The JSON in an element, unpacked if it is packed.
  const unpacked = async (holder) => {
    if (!holder.dataset.encoding) return JSON.parse(holder.textContent);
    const bytes = Uint8Array.from(atob(holder.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };

  // For charts over the steps of a run.
  Object.assign(normscope, { element, splits, power, titled, xAxis, yAxis, tipRow, showTip, pointed, readable, unpacked });

  // Draw data into a figure that holds .legend, .plot and a still picture. Returns {update, redraw, plot}.
  normscope.chart = (figure, given) => {
    let data = given;
    const box = figure.querySelector(".plot");
    const tip = box.appendChild(element("div", "tip"));
    const reset = box.appendChild(element("button", "reset", "Whole width"));
    const spoken = readable(figure, box, `${given.title}. Left and right arrow keys move along the network.`);
    reset.type = "button";
    tip.hidden = reset.hidden = true;
    let plot = null;
    const hidden = new Set();
    const size = () => ({
      width: box.clientWidth, height: (box.clientWidth < 560 ? 240 : 320) + below(data, box.clientWidth) - 34,
    });

    const show = (plot) => {
      const i = pointed(plot);
      tip.hidden = i === null;
      if (i === null) return;
      tip.replaceChildren(element("b", "", `${data.places[i]}`));
      data.lines.forEach((line, k) => {
        if (!hidden.has(k)) tipRow(tip, colour(figure, line.style), line.label, normscope.text(line.log10[i]), line.kind);
      });
      showTip(tip, plot, box, 560);
    };
    const ends = () => {
      const xs = places(data);
      return [xs[0] ?? 0, xs[xs.length - 1] ?? 1];
    };
    const zoomed = (plot) => {
      const { min, max } = plot.scales.x;
      const [first, last] = ends();
      reset.hidden = min <= first && max >= last;
    };

    const make = () => {
      if (plot) plot.destroy();
      plot = new uPlot(options(figure, () => data, size(), { setCursor: [show], setScale: [zoomed] }), columns(data), box);
      figure.classList.add("drawn");
      hidden.forEach((k) => plot.setSeries(k + 1, { show: false }));
    };
    const whole = () => {
      const [min, max] = ends();
      plot.setScale("x", { min, max });
    };
    reset.addEventListener("click", whole);

    figure.querySelectorAll(".legend .key[data-line]").forEach((key) => {
      const button = element("button", key.className);
      button.type = "button";
      button.title = key.title;
      button.append(...key.childNodes);
      button.setAttribute("aria-pressed", "true");
      const k = Number(key.dataset.line);
      button.addEventListener("click", () => {
        const on = hidden.delete(k) || !hidden.add(k);
        button.setAttribute("aria-pressed", String(on));
        plot.setSeries(k + 1, { show: on });
      });
      key.replaceWith(button);
    });

    let at = -1;
    box.addEventListener("keydown", (event) => {
      const last = data.places.length - 1;
      const moves = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last };
      if (event.key === "Escape") {
        at = -1;
        whole();
        plot.setCursor({ left: -10, top: -10 });
      } else if (event.key in moves) {
        at = moves[event.key];
        const { min, max } = plot.scales.x;
        const x = places(data)[at];
        if (x < min || x > max) whole();
        plot.setCursor({ left: plot.valToPos(x, "x"), top: 10 });
        const said = data.lines.map((line) => `${line.label} ${normscope.text(line.log10[at])} ${line.kind}`);
        spoken.textContent = `${data.places[at]}: ${said.join("; ")}`;
      } else return;
      event.preventDefault();
    });

    make();
    new ResizeObserver(() => plot && plot.setSize(size())).observe(box);
    return {
      update(next) {
        const zoomedIn = !reset.hidden;
        data = next;
        plot.setData(columns(next), !zoomedIn);
        if (zoomedIn) plot.redraw(true);
      },
      redraw: make,
      get plot() {
        return plot;
      },
    };
  };
})();
