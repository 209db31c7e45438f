// Everything on the page can be read without this; it adds sorting, filtering, drawn charts, the theme and saving.
"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  all(".js").forEach((element) => (element.hidden = false));
  all(".scroll table").forEach(normscope.labelled);
  all("table.sortable").forEach(normscope.sortable);
  all("form.filter").forEach(normscope.filter);
  const data = JSON.parse(document.getElementById("normscope-charts").textContent);
  const charts = all("figure.chart").map((figure) => normscope.chart(figure, data[figure.id]));
  normscope.charts = charts;

  normscope.theme(document.getElementById("theme"), () => charts.forEach((chart) => chart.redraw()));

  all("[data-fold]").forEach((button) => {
    button.addEventListener("click", () => {
      const open = button.dataset.fold === "open";
      button.closest("section").querySelectorAll(".tree details").forEach((d) => (d.open = open));
    });
  });

  normscope.results = () => normscope.unpacked(document.getElementById("normscope-data"));
  document.getElementById("download").addEventListener("click", async () => {
    const { results } = await normscope.results();
    const content = results.length === 1 ? results[0].result : Object.fromEntries(results.map((r) => [r.name, r.result]));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
    link.download = results.length === 1 ? "result.json" : "results.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // What is folded is printed too.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all(".tree details:not([open])");
    opened.forEach((d) => (d.open = true));
  });
  addEventListener("afterprint", () => opened.forEach((d) => (d.open = false)));
})();
