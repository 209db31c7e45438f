// Lines over the steps of runs: how they are counted, extended, coloured and labelled.
"use strict";
(() => {
  const normscope = (window.normscope = window.normscope || {});
  const DASHES = [undefined, [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [9, 3, 2, 3, 2, 3], [4, 2], [1, 5]];
  const finite = (x) => (typeof x === "number" ? x : null);

  // Colours of the style sheet, as they are now.
  normscope.palette = () => {
    const holder = document.body.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    holder.style.position = "absolute";
    const colours = Array.from({ length: 8 }, (_, i) => {
      const sample = holder.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
      sample.setAttribute("class", `line run${i}`);
      return getComputedStyle(sample).stroke;
    });
    holder.remove();
    return colours;
  };
  const faded = (colour, alpha) => colour.replace(/^rgb\((.*)\)$/, (_, rest) => `rgb(${rest.replaceAll(",", " ")} / ${alpha})`);

  // Lines across a log scale; where it spans less than a decade, at round numbers of equal distance.
  const logSplits = (low, high) => {
    const found = normscope.splits(low, high);
    if (found.length > 2) return found;
    const [a, b] = [10 ** low, 10 ** high];
    const scale = 10 ** Math.floor(Math.log10((b - a) / 4));
    const step = scale * [1, 2, 5, 10].find((s) => s * scale >= (b - a) / 4);
    const ticks = [];
    for (let k = Math.ceil(a / step); k * step <= b && ticks.length < 12; k += 1) if (k > 0) ticks.push(Math.log10(k * step));
    return ticks.length > 1 ? ticks : found;
  };

  // A number as the page writes it: given as it is, or by its decimal logarithm.
  normscope.number = (x, log10) => {
    if (x === null || x === undefined) return "";
    if (x === "nan") return "not a number";
    if (log10) return normscope.text(x);
    if (typeof x === "string") return x;
    if (x === 0) return "0";
    return x < 0 ? `-${normscope.text(Math.log10(-x))}` : normscope.text(Math.log10(x));
  };

  const tick = (x) => {
    const size = Math.abs(x);
    return x !== 0 && (size < 1e-3 || size >= 1e5) ? normscope.number(x) : String(Number(x.toPrecision(6)));
  };

  const lastOf = (line) => {
    for (let i = line.length - 1; i >= 0; i -= 1) if (line[i] !== null) return line[i];
    return -Infinity;
  };

  const countOf = (line) => line.reduce((sum, v) => sum + (v !== null), 0);

  // Add a point to a block of lines; false if it does not come after the others.
  const push = (block, step, metrics) => {
    const names = Object.keys(block.lines);
    if (!names.some((name) => name in metrics)) return true;
    const count = block.x.length;
    if (count && step < block.x[count - 1]) return false;
    const at = count && step === block.x[count - 1] ? count - 1 : count;
    block.x[at] = step;
    names.forEach((name) => {
      const line = block.lines[name];
      if (at === count) line.push(null);
      if (name in metrics) line[at] = finite(metrics[name]) ?? line[at];
    });
    return true;
  };

  normscope.steps = { DASHES, faded, logSplits, tick, lastOf, countOf, push };
})();
