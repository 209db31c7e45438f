// The page of runs: it asks for the lines of charts when they come into view, listens to what is new, and keeps all
// charts on the same steps. A page that was exported has everything inside and asks nothing.
"use strict";
(async () => {
  const normscope = (window.normscope = window.normscope || {});
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const TICK = 400;
  const KEPT = 2000;

  const inside = (root) => normscope.unpacked(root.getElementById("normscope-watch"));
  const { live, data, few, state: first } = await inside(document);
  let state = first;
  let groups = new Map(state.groups.map((g) => [g.key, g]));
  let window_ = null;
  let paused = false;
  let pausedAt = [];
  let lost = false;
  const token = new URLSearchParams(location.search).get("token") ?? "";
  const address = (path, query) => `${path}?${new URLSearchParams({ token, ...query })}`;

  // What came since the page was made, run by run, numbered as the server counts.
  const begin = (position) => position.split("-").map((part) => {
    const [generation, count] = part.split(".").map(Number);
    return { generation, first: count, rows: [] };
  });
  const log = begin(state.position);
  const charts = new Map();
  const visible = new Set();
  const faded = new Set(); // charts out of sight, in the colours of another theme
  const said = document.getElementById("said");
  const wholeButton = document.getElementById("whole");
  const pauseButton = document.getElementById("pause");

  const say = () => {
    const parts = [];
    if (lost) parts.push("The server is out of reach; what is shown stays, and the page keeps asking.");
    if (paused) {
      const waiting = log.reduce((sum, run, i) => sum + Math.max(0, run.first + run.rows.length - pausedAt[i]), 0);
      pauseButton.textContent = waiting ? `Go on (${waiting.toLocaleString("en")} new)` : "Go on";
      parts.push("Paused.");
    }
    if (window_) parts.push(`Steps ${Math.round(window_[0]).toLocaleString("en")} to ${Math.round(window_[1]).toLocaleString("en")}.`);
    const text = parts.join(" ");
    if (said.textContent !== text) said.textContent = text;
  };
  const page = {
    few,
    runs: state.runs.length,
    names: state.runs.map((run) => run.name),
    group: (key) => groups.get(key),
    window: () => window_,
    // The first and the last step of all runs: charts that are not zoomed stand on the same steps too.
    extent() {
      const begun = state.runs.map((run) => run.status).filter((status) => status.points);
      if (!begun.length) return [0, 1];
      return [Math.min(...begun.map((s) => s.first)), Math.max(...begun.map((s) => s.step))];
    },
    zoom(next) {
      window_ = next;
      wholeButton.disabled = !next;
      visible.forEach((figure) => charts.get(figure)?.look());
      say();
    },
    async load(key, steps) {
      if (!live) return data[key];
      const query = steps ? { name: key, from: steps[0], to: steps[1] } : { name: key };
      const answer = await fetch(address("series", query));
      return answer.ok ? answer.json() : null;
    },
    // The points of a run after some count, or null if they are not all here.
    since(run, generation, count) {
      const { generation: now, first: from, rows } = log[run];
      if (generation !== now || count < from) return null;
      return rows.slice(count - from);
    },
  };

  // A chart is made when it first comes near the screen, and fed while it is there.
  const near = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) {
      visible.delete(target);
      return;
    }
    visible.add(target);
    if (!charts.has(target)) charts.set(target, normscope.stepChart(target, page));
    const chart = charts.get(target);
    if (faded.delete(chart)) chart.redraw();
    if (!chart.plot || chart.stale) chart.load();
    else {
      if (!paused) chart.catchUp();
      chart.look();
    }
  }), { rootMargin: "300px" });
  all("#charts details.numbers").forEach((details) => (details.open = false)); // the charts say it
  const adopt = (root) => {
    all(".js", root).forEach((element) => (element.hidden = false));
    all("figure.chart", root).forEach((figure) => near.observe(figure));
  };

  const tables = () => all("#charts details.numbers[open]").forEach((details) => {
    const group = groups.get(details.closest("figure").dataset.key);
    all("tr[data-name]", details).forEach((row) => state.runs.forEach((run, i) => {
      const text = normscope.number(run.last[row.dataset.name], group.log10);
      const cell = row.cells[i + 1];
      if (cell.textContent !== text) cell.textContent = text;
    }));
  });
  const age = (seconds) => {
    if (seconds === null) return "";
    if (seconds < 90) return `last point ${Math.round(seconds)} s ago`;
    if (seconds < 5400) return `last point ${Math.round(seconds / 60)} min ago`;
    return `last point ${(seconds / 3600).toFixed(1)} h ago`;
  };
  const spans = (place, parts) => place.replaceChildren(...parts.flatMap(([text, small]) => {
    const span = normscope.element("span", "", text);
    if (small) span.append(" ", normscope.element("small", "", small));
    return [span, " "];
  }));
  const showStatus = () => state.runs.forEach((run, i) => {
    const item = document.querySelector(`#runs li[data-run="${i}"]`);
    const { state: doing, step, points, rate, share, trouble } = run.status;
    const mark = item.querySelector(".state");
    mark.className = `state ${doing}`;
    mark.textContent = doing === "waiting" ? "waiting for the run to begin" : doing === "quiet" ? "quiet: stopped or paused" : doing;
    item.querySelector(".age").textContent = age(run.status.age);
    item.querySelector(".trouble").textContent = trouble;
    const parts = [[`step ${step.toLocaleString("en")}`], [`${points.toLocaleString("en")} points`]];
    if (rate !== null) parts.push([`${normscope.number(rate)} steps/s`, "measured"]);
    if (share !== null) parts.push([`monitor ${Number((100 * share).toPrecision(2))} % of the time`, "measured"]);
    spans(item.querySelector(".measures"), parts);
  });

  const tick = () => {
    if (!paused) {
      visible.forEach((figure) => charts.get(figure)?.catchUp());
      tables();
    }
    say();
  };
  let ticking = false;
  const soon = () => {
    if (ticking) return;
    ticking = true;
    setTimeout(() => {
      ticking = false;
      tick();
    }, TICK);
  };

  // Other charts, lines or facts: the server writes the page again, and what differs is taken from it.
  const refresh = async () => {
    const answer = await fetch(address("./", {}));
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    state = (await inside(next)).state;
    groups = new Map(state.groups.map((g) => [g.key, g]));
    document.getElementById("runs").replaceChildren(...next.getElementById("runs").childNodes);
    const old = new Map(all("#charts section.group").map((section) => [section.dataset.key, section]));
    const shown = all("section.group", next).map((section) => {
      const known = old.get(section.dataset.key);
      if (!known) {
        const fresh = document.adoptNode(section);
        adopt(fresh);
        return fresh;
      }
      const open = known.querySelector("details.numbers").open;
      const caption = document.adoptNode(section.querySelector("figcaption"));
      known.querySelector("figcaption").replaceWith(caption);
      caption.querySelector("details.numbers").open = open;
      charts.get(known.querySelector("figure"))?.forget();
      return known;
    });
    old.forEach((section, key) => {
      if (groups.has(key)) return;
      const figure = section.querySelector("figure");
      near.unobserve(figure);
      visible.delete(figure);
      charts.delete(figure);
    });
    document.getElementById("charts").replaceChildren(...shown, ...(shown.length ? [] : all("#nothing", next)));
    showStatus();
    if (!paused) visible.forEach((figure) => charts.get(figure)?.load());
  };
  let refreshing = Promise.resolve();

  const listen = () => {
    const events = new EventSource(address("events", { after: state.position }));
    const on = (name, act) => events.addEventListener(name, (event) => act(JSON.parse(event.data)));
    events.onopen = () => {
      lost = false;
      say();
    };
    events.onerror = () => {
      lost = true;
      say();
    };
    on("points", ({ run, generation, first: from, points }) => {
      const kept = log[run];
      const end = kept.first + kept.rows.length;
      if (generation !== kept.generation || from > end) {
        Object.assign(kept, { generation, first: from, rows: [] });
      }
      points.slice(Math.max(0, kept.first + kept.rows.length - from)).forEach((point) => {
        kept.rows.push(point);
        Object.assign(state.runs[run].last, point[1]);
      });
      const extra = kept.rows.length - KEPT;
      if (extra > 0) {
        kept.rows.splice(0, extra);
        kept.first += extra;
      }
      soon();
    });
    on("reset", ({ run, generation, count }) => {
      Object.assign(log[run], { generation, first: count, rows: [] });
      charts.forEach((chart) => chart.forget());
      soon();
    });
    on("shape", ({ shape }) => {
      if (shape === state.shape) return;
      refreshing = refreshing.then(refresh).catch(() => {});
    });
    on("status", ({ runs }) => {
      runs.forEach((status, i) => (state.runs[i].status = status));
      showStatus();
      soon();
    });
    normscope.events = events;
  };

  document.documentElement.classList.add("scripted");
  wholeButton.addEventListener("click", () => page.zoom(null));
  pauseButton?.addEventListener("click", () => {
    paused = !paused;
    pausedAt = log.map((run) => run.first + run.rows.length);
    pauseButton.setAttribute("aria-pressed", String(paused));
    if (!paused) pauseButton.textContent = "Pause";
    tick();
  });
  normscope.watch = {
    page,
    chart: (key) => [...charts].find(([figure]) => figure.dataset.key === key)?.[1],
    get state() { return state; },
  };
  normscope.theme(document.getElementById("theme"), () => charts.forEach((chart, figure) => {
    if (visible.has(figure)) chart.redraw();
    else faded.add(chart);
  }));
  adopt(document);
  if (live) {
    showStatus();
    listen();
  }
})();
