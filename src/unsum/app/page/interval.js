// From found to ceiling, as the macro `interval` of the reports draws it: markup from the server would need innerHTML, which
// this page forbids itself. The classes are those of chart.css.
export const WHOLE = 100, EDGE = 2;

export function draw(kind, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// A share in words, as the reports write it (`unsum.showing.wording.percent`); null is not known.
const LEVEL = 0.2, FINEST = 4;
export function percent(share) {
  if (share === null) return "–";
  let digits = share > 5e-4 && share < 0.01 ? 1 : 0;
  while (share < LEVEL && digits < FINEST && Number(share.toFixed(digits + 2)) >= LEVEL) digits += 1;
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

export function interval(found, ceiling) {
  const at = (share) => EDGE + WHOLE * share;
  const drawing = draw("svg", { class: "interval", viewBox: "0 0 104 12", role: "img" });
  drawing.setAttribute("aria-label", `found ${percent(found)}, ceiling ${percent(ceiling)}`);
  drawing.append(draw("line", { class: "all", x1: at(0), y1: 6, x2: at(1), y2: 6 }));
  if (ceiling !== null) {
    drawing.append(draw("line", { class: "gap", x1: at(found ?? 0), y1: 6, x2: at(ceiling), y2: 6 }));
  }
  if (found !== null) drawing.append(draw("rect", { class: "found", x: at(0), y: 3, width: WHOLE * found, height: 6 }));
  if (ceiling !== null) drawing.append(draw("line", { class: "cap", x1: at(ceiling), y1: 0, x2: at(ceiling), y2: 12 }));
  return drawing;
}
