// Charts of runs over their steps. A chart asks its page for lines, takes new points as they come, and draws the
// largest lines in colour and the others faintly.
"use strict";
(() => {
  const normscope = (window.normscope = window.normscope || {});
  const { element, titled } = normscope;
  const { DASHES, faded, logSplits, tick, lastOf, countOf, push } = normscope.steps;
  const MOST_FAINT = 400;
  const FOUND = 12;
  const DENSE = 600;

  // What stands along the axis of values: the title that is above the chart, where there is room for it.
  const axisTitle = (title, room) => {
    const context = element("canvas").getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const text = title.charAt(0).toLowerCase() + title.slice(1);
    return context.measureText(text).width <= room ? text : "value";
  };

  // page: {runs, names, few, group(key), extent(), window(), zoom(window), load(key, window), since(run, ...)}. Returns the chart.
  normscope.stepChart = (figure, page) => {
    const { key } = figure.dataset;
    const box = figure.querySelector(".plot");
    const legend = figure.querySelector(".legend");
    const search = figure.querySelector("input[type=search]");
    const logButton = figure.querySelector("button.log");
    const tip = element("div", "tip");
    const note = element("p", "warn");
    figure.querySelector("figcaption").before(note);
    tip.hidden = note.hidden = true;
    let whole = null; // all steps
    let detail = null; // the steps looked at, where all steps are thinned
    let loading = false;
    let loaded = -Infinity;
    let stale = true;
    let plot = null;
    let order = []; // what the plot draws: [{run, name, line, rank}], faint ones first
    let drawn = ""; // what the series of the plot are
    let unshown = 0;
    let below = 0; // numbers that a log scale cannot show
    const hidden = new Set();
    const group = () => page.group(key);
    let log = group().scale === "log";
    const several = () => page.runs > 1;
    const source = () => detail ?? whole;
    const size = () => ({ width: box.clientWidth, height: box.clientWidth < 420 ? 220 : 280 });

    // Names drawn in colour: those searched for, or the largest at the end.
    const chosen = () => {
      const lines = group().lines;
      const wanted = search ? search.value.trim().toLowerCase() : "";
      if (wanted) return lines.filter((l) => l.label.toLowerCase().includes(wanted)).slice(0, FOUND).map((l) => l.name);
      if (lines.length <= page.few) return lines.map((l) => l.name);
      const most = several() ? page.few / 2 : page.few;
      const largest = whole.runs.map((block) => {
        const sizes = Object.entries(block.lines).map(([name, line]) => [name, lastOf(line)]);
        return sizes.sort((a, b) => b[1] - a[1]).map(([name]) => name);
      });
      const found = new Set(); // in turn from each run: their layers may have other names
      for (let i = 0; found.size < most && largest.some((names) => i < names.length); i += 1) {
        largest.forEach((names) => i < names.length && found.size < most && found.add(names[i]));
      }
      return [...found];
    };

    const arrange = () => {
      const ranks = new Map(chosen().map((name, i) => [name, i]));
      const all = [];
      whole.runs.forEach((block, run) => group().lines.forEach((line) => {
        if (line.name in block.lines) all.push({ run, name: line.name, line, rank: ranks.get(line.name) ?? -1 });
      }));
      const faint = all.filter((s) => s.rank < 0);
      unshown = Math.max(0, faint.length - MOST_FAINT);
      const front = all.filter((s) => s.rank >= 0).sort((a, b) => b.rank - a.rank || b.run - a.run);
      order = [...faint.slice(0, MOST_FAINT), ...front];
    };

    const logarithm = (v) => {
      if (v > 0) return Math.log10(v);
      below += v !== null;
      return null;
    };

    // The columns uPlot draws: one array of steps, and for each line one as long.
    const columns = () => {
      const blocks = source().runs;
      below = 0;
      const take = (line) => (log && !group().log10 ? line.map(logarithm) : line);
      const wanted = blocks.map((_, run) => order.filter((s) => s.run === run));
      const used = blocks.map((_, run) => run).filter((run) => wanted[run].length && blocks[run].x.length);
      const empty = (run, name) => blocks[run].lines[name] ?? blocks[run].x.map(() => null);
      const tables = used.map((run) => [blocks[run].x, ...wanted[run].map((s) => take(empty(run, s.name)))]);
      if (!tables.length) return [[], ...order.map(() => [])];
      const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
      const place = new Map();
      let at = 1;
      used.forEach((run) => wanted[run].forEach((s) => { place.set(s, at); at += 1; }));
      return [joined[0], ...order.map((s) => (place.has(s) ? joined[place.get(s)] : joined[0].map(() => null)))];
    };

    // A line of many points is drawn thin beside others: its noise would hide them.
    const dense = (s) => order.length > 1 && countOf(whole.runs[s.run].lines[s.name]) > DENSE;

    const yRange = (_, low, high) => {
      if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
      const least = log ? 0.3 : Math.max(Math.abs(high) * 0.02, 1e-12);
      const missing = Math.max(0, least - (high - low)) / 2;
      const room = 0.05 * (high - low + 2 * missing);
      return [low - missing - room, high + missing + room];
    };
    const xRange = (_, low, high) => {
      const window = page.window();
      if (window) return window;
      const [first, last] = page.extent();
      const [a, b] = [Math.min(low ?? first, first), Math.max(high ?? last, last)];
      return a === b ? [a - 1, b + 1] : [a, b];
    };

    const options = () => {
      const colours = normscope.palette();
      const plainAxis = { values: (_, values) => values.map(tick) };
      const logAxis = { splits: (_, axis, low, high) => logSplits(low, high), values: (_, values) => values.map(normscope.power) };
      const few = (s) => countOf(source().runs[s.run].lines[s.name] ?? []) <= 40;
      return {
        ...size(),
        legend: { show: false },
        cursor: {
          drag: { x: true, y: false, setScale: false },
          points: { show: false },
          bind: { dblclick: () => () => page.zoom(null) },
        },
        scales: { x: { time: false, range: xRange }, y: { range: yRange } },
        axes: [
          { ...normscope.xAxis(figure), ...titled("training step"), size: 32, space: 60,
            values: (_, values) => values.map((v) => (Number.isInteger(v) ? v.toLocaleString("en") : "")) },
          { ...normscope.yAxis(figure), ...titled(axisTitle(group().title, size().height - 60)), ...(log ? logAxis : plainAxis) },
        ],
        series: [{}, ...order.map((s) => {
          const base = colours[(several() ? s.run : Math.max(s.rank, 0)) % 8];
          const back = several() ? base : colours[5];
          const noisy = dense(s);
          return {
            stroke: s.rank < 0 ? faded(back, 0.28) : noisy ? faded(base, 0.4) : base,
            width: s.rank < 0 || noisy ? 1 : 2,
            dash: s.rank > 0 && several() && !noisy ? DASHES[s.rank % DASHES.length] : undefined,
            spanGaps: true,
            show: !hidden.has(s.name),
            points: { show: s.rank >= 0 && few(s), size: 5 },
          };
        })],
        hooks: { setCursor: [showTip], setSelect: [selected] },
      };
    };

    const selected = (plot) => {
      if (plot.select.width < 4) return;
      const left = plot.posToVal(plot.select.left, "x");
      const right = plot.posToVal(plot.select.left + plot.select.width, "x");
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      page.zoom([left, right]);
    };

    // The number of a line at a place, or the last one before it: runs and metrics have steps of their own.
    const valueAt = (s, step) => {
      const block = source().runs[s.run];
      let low = 0;
      let high = block.x.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (block.x[middle] <= step) low = middle + 1;
        else high = middle;
      }
      const line = block.lines[s.name];
      for (let i = low - 1; i >= 0 && line; i -= 1) if (line[i] !== null) return { value: line[i], step: block.x[i] };
      return null;
    };
    const shown = () => order.filter((s) => s.rank >= 0 && !hidden.has(s.name)).reverse();
    const label = (s) => (several() ? `${page.names[s.run]}: ${s.line.label}` : s.line.label);

    function showTip(plot) {
      const at = normscope.pointed(plot);
      tip.hidden = at === null;
      if (at === null) return;
      const step = plot.data[0][at];
      const exact = source().runs.every((block) => block.exact);
      tip.replaceChildren(element("b", "", `${exact ? "" : "near "}step ${step.toLocaleString("en")}`));
      const rows = shown().slice(0, FOUND);
      const words = new Set(group().lines.map((l) => l.words));
      rows.forEach((s) => {
        const found = valueAt(s, step);
        if (!found) return;
        const kind = found.step === step ? s.line.kind : `${s.line.kind}, step ${found.step.toLocaleString("en")}`;
        const number = normscope.number(found.value, group().log10);
        normscope.tipRow(tip, plot.series[order.indexOf(s) + 1].stroke(), label(s), number, kind);
        if (words.size > 1 && rows.length <= 6) tip.appendChild(element("p", "", s.line.words));
      });
      if (words.size === 1) tip.appendChild(element("p", "", [...words][0]));
      if (!exact) tip.appendChild(element("p", "", "thinned: the least and the most of each stretch of steps; look closer for every point"));
      normscope.showTip(tip, plot, box, 420);
      if (box.clientWidth < 420) tip.style.top = `${plot.over.offsetTop + plot.over.clientHeight + 4}px`;
    }

    const sample = (dash, colour, thin) => {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 28 8");
      svg.setAttribute("aria-hidden", "true");
      const path = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      path.setAttribute("class", "line");
      path.setAttribute("d", "M1 4H27");
      if (dash) path.setAttribute("stroke-dasharray", dash.join(" "));
      if (colour) svg.style.color = colour;
      if (thin) svg.style.opacity = 0.5;
      return svg;
    };
    const showLegend = () => {
      const colours = normscope.palette();
      const front = new Map(order.filter((s) => s.rank >= 0).map((s) => [s.name, s]));
      legend.replaceChildren(...[...front.values()].sort((a, b) => a.rank - b.rank).map((s) => {
        const button = element("button", "key");
        button.type = "button";
        button.title = s.line.words;
        button.setAttribute("aria-pressed", String(!hidden.has(s.name)));
        const thin = order.some((other) => other.name === s.name && dense(other));
        const dash = several() && !thin ? DASHES[s.rank % DASHES.length] : undefined;
        button.append(sample(dash, several() ? undefined : colours[s.rank % 8], thin));
        button.append(element("span", "", s.line.label), element("small", "", s.line.kind));
        button.addEventListener("click", () => {
          const on = hidden.delete(s.name) || !hidden.add(s.name);
          button.setAttribute("aria-pressed", String(on));
          order.forEach((other, i) => other.name === s.name && plot.setSeries(i + 1, { show: on }));
        });
        const item = element("li");
        item.append(button);
        return item;
      }));
      const rest = group().lines.length - front.size;
      if (rest > 0) {
        const others = `${rest} ${rest === 1 ? "other" : "others"}, faint${unshown ? `, ${unshown} of their lines not drawn` : ""}`;
        legend.append(element("li", "more", search && search.value.trim() ? others : `the largest now; ${others}`));
      }
    };

    const make = () => {
      if (plot) plot.destroy();
      box.textContent = "";
      plot = new uPlot(options(), columns(), box);
      box.append(tip);
      tip.hidden = true;
      drawn = order.map((s) => `${s.run} ${s.name} ${s.rank}`).join("\n");
      figure.classList.add("drawn");
    };
    // Draw what is there now; a plot is made anew only if it has other lines.
    const draw = (anew) => {
      if (!whole) return;
      if (anew || !plot) {
        arrange();
        showLegend();
        make();
      } else plot.setData(columns());
      note.hidden = below === 0;
      note.textContent = `${below.toLocaleString("en")} ${below === 1 ? "number is" : "numbers are"} not above 0 and not shown in log scale`;
    };

    const load = async () => {
      if (loading) return;
      loading = true;
      try {
        const window = page.window();
        const closer = whole && !stale && window && whole.runs.some((block) => !block.exact);
        const found = await page.load(key, closer ? window : null);
        if (!found) return;
        if (closer) {
          if (page.window() === window) detail = found;
        } else {
          whole = found;
          stale = false;
        }
        loaded = performance.now();
        chart.catchUp(false);
        draw(!plot || order.length === 0 || !closer);
        if (!closer && window && whole.runs.some((block) => !block.exact)) setTimeout(load, 0);
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // out of reach: the next point or look asks again
      } finally {
        loading = false;
      }
    };

    const chart = {
      figure,
      load,
      get plot() { return plot; },
      get points() { return whole ? Math.max(0, ...whole.runs.map((block) => block.x.length)) : 0; },
      get stale() { return stale; },
      // Take the points that came since; `show` draws them.
      catchUp(show = true) {
        if (!whole) return load();
        let changed = false;
        whole.runs.forEach((block, run) => {
          const came = page.since(run, block.generation, block.count);
          if (came === null) stale = true;
          (came ?? []).forEach(([step, metrics]) => {
            if (!push(block, step, metrics)) stale = true;
            block.count += 1;
            changed = true;
          });
          if (block.x.length > 2 * whole.limit) stale = true;
        });
        if (show && stale && performance.now() - loaded > 2000) return load();
        if (show && changed) {
          const window = page.window();
          const grows = detail && window && detail.runs.some((block, run) => whole.runs[run].x.at(-1) <= window[1]);
          if (grows && performance.now() - loaded > 2000) load();
          draw(false);
        }
        return undefined;
      },
      // Look at the steps of the page's window: with what is there at once, with more when it has come.
      look() {
        detail = null;
        if (!plot) return;
        plot.setData(columns());
        if (page.window() && whole.runs.some((block) => !block.exact)) load();
      },
      forget() {
        stale = true;
        loaded = -Infinity;
        detail = null;
      },
      redraw() {
        draw(true);
      },
      select(text) {
        search.value = text;
        draw(true);
      },
      setLog(on) {
        log = on;
        logButton.setAttribute("aria-pressed", String(on));
        draw(true);
      },
    };

    if (search) search.addEventListener("input", () => draw(true));
    logButton.addEventListener("click", () => chart.setLog(!log));
    const spoken = normscope.readable(
      figure, box, `${group().title}. Left and right arrow keys move along the steps, plus and minus zoom, Escape shows all steps.`,
    );
    let at = null; // the step the keyboard is at: places change when detail comes
    box.addEventListener("keydown", (event) => {
      if (!plot || !plot.data[0].length) return;
      const steps = plot.data[0];
      const { min, max } = plot.scales.x;
      const first = Math.max(0, steps.findIndex((s) => s >= min));
      const last = steps.findLastIndex((s) => s <= max);
      const here = at === null ? first - 1 : steps.findLastIndex((s) => s <= at);
      const moves = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: first, End: last };
      if (event.key === "Escape") {
        at = null;
        page.zoom(null);
        plot.setCursor({ left: -10, top: -10 });
      } else if (event.key === "+" || event.key === "-") {
        const [begin, end] = page.extent();
        const middle = at ?? (min + max) / 2;
        const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
        page.zoom(2 * half >= end - begin ? null : [middle - half, middle + half]);
      } else if (event.key in moves) {
        at = steps[Math.min(last, Math.max(first, moves[event.key]))];
        plot.setCursor({ left: plot.valToPos(at, "x"), top: 10 });
        const said = shown().map((s) => [s, valueAt(s, at)]).filter(([, found]) => found);
        const words = said.map(([s, found]) => `${label(s)} ${normscope.number(found.value, group().log10)} ${s.line.kind}`);
        spoken.textContent = `step ${at}: ${words.join("; ")}`;
      } else return;
      event.preventDefault();
    });
    new ResizeObserver(() => plot && box.clientWidth && plot.setSize(size())).observe(box);
    return chart;
  };
})();
