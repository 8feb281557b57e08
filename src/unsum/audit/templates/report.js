// Comforts on top of a page that is complete without them: pictures one over the other, a table that sorts, commands that copy.
"use strict";

function offerSlider() {
  const choice = document.querySelector(".choice");
  const grid = document.querySelector(".pictures");
  if (!choice || !grid) return;
  choice.hidden = false;
  choice.addEventListener("change", (event) => {
    grid.classList.toggle("overlaid", event.target.value === "overlaid");
  });
  for (const range of grid.querySelectorAll("input[type=range]")) {
    const pair = range.closest("figure").querySelector(".pair");
    const show = () => {
      pair.style.setProperty("--cut", range.value + "%");
      range.setAttribute("aria-valuetext", range.value + " % recovered, the rest original");
    };
    range.addEventListener("input", show);
    show();
  }
}

// Numbers by value, words by alphabet; what was not measured stays last whichever way the others run.
function order(first, second, direction) {
  const [a, b] = [first, second].map((cell) => cell.dataset.value ?? cell.textContent.trim());
  const [x, y] = [Number(a), Number(b)];
  const numbers = "value" in first.dataset;
  if (numbers && (Number.isNaN(x) || Number.isNaN(y))) return Number.isNaN(x) - Number.isNaN(y);
  return direction * (numbers ? x - y : a.localeCompare(b));
}

function makeSortable(table) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => order(a.cells[column], b.cells[column], direction)));
    });
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not allowed for a page from disk, in some browsers
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "hidden";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser does not copy");
  }
}

function offerCopy(code) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy the command: " + code.textContent);
  button.addEventListener("click", () => {
    const show = (word) => {
      button.textContent = word;
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    };
    copied(code.textContent).then(() => show("Copied"), () => show("Select it and copy"));
  });
  (code.closest("pre") ?? code).after(button);
}

offerSlider();
document.querySelectorAll("code.command").forEach(offerCopy);
document.querySelectorAll("table.sortable").forEach(makeSortable);
