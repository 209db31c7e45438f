// Tables that can be sorted and filtered. Without this script they are complete, in the order of the network.
"use strict";
(() => {
  const normscope = (window.normscope = window.normscope || {});
  const number = (text) => (text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number.parseFloat(text));

  // What a cell is sorted by: the number behind it, a number written in it, or its text. Nothing comes last.
  function key(cell) {
    const data = cell.querySelector("data");
    if (data) return number(data.value);
    const text = cell.textContent.trim().replace(/,/g, "");
    if (text === "" || text === "-" || text === "–") return null;
    const value = Number(text);
    return Number.isNaN(value) ? text.toLowerCase() : value;
  }

  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === typeof b) return typeof a === "number" ? sign * (a < b ? -1 : a > b ? 1 : 0) : sign * a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  }

  // On a phone each row is a card, and each cell says what it is: the style sheet writes data-label before it.
  normscope.labelled = (table) => {
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, i) => {
        if (cell.tagName === "TD") cell.dataset.label = headings[i] ?? "";
        if (cell.textContent.trim() === "") cell.classList.add("nothing");
      });
    }
    table.classList.add("cards");
  };

  // Each heading becomes a button: first press sorts numbers downwards and words upwards, the next turns it round.
  normscope.sortable = (table) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        const down = before === "none" ? heading.classList.contains("n") : before === "ascending";
        headings.forEach((other) => other.setAttribute("aria-sort", "none"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row, i) => [key(row.cells[column]), i, row]);
        rows.sort((x, y) => compare(x[0], y[0], down ? -1 : 1) || x[1] - y[1]);
        body.append(...rows.map((row) => row[2]));
      });
    });
  };

  // A form with a text and a choice hides the rows that do not fit, and says how many do.
  normscope.filter = (form) => {
    const table = document.getElementById(form.dataset.for);
    const rows = [...table.tBodies[0].rows];
    const said = form.querySelector("output");
    const apply = () => {
      const wanted = form.elements.text.value.trim().toLowerCase();
      const role = form.elements.role.value;
      let shown = 0;
      rows.forEach((row) => {
        const fits = role === "" || row.classList.contains(role);
        row.hidden = !(fits && `${row.cells[1].textContent} ${row.cells[2].textContent}`.toLowerCase().includes(wanted));
        shown += !row.hidden;
      });
      said.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("change", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  };
})();
