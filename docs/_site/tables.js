// A table that is too wide for the page is shown row by row, each cell behind the name of its column.
function fitTables() {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.innerText.trim());
    table.classList.remove("stacked");
    for (const code of table.querySelectorAll("td code"))  // a hyphen of a number is no place to break
      if (code.innerText.length <= 12) code.style.whiteSpace = "nowrap";
    if (!heads.length || table.scrollWidth <= table.closest("article").clientWidth + 1) continue;
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, i) => (cell.dataset.column = heads[i] || ""));
    table.classList.add("stacked");
  }
}
window.addEventListener("load", fitTables);
window.addEventListener("resize", fitTables);
