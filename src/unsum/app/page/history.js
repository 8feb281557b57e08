// Leakage against strength, point by point as the slider moves: what was found, and the ceiling above it.
import { draw, percent } from "/interval.js";

const WIDTH = 300, HEIGHT = 100, LEFT = 34, RIGHT = 292, TOP = 8, BOTTOM = 90;

export class History {
  constructor(place) {
    this.place = place;
    this.seen = new Map(); // the rest of the setting → (stop → {worst, mean, ceiling}); null is not known
  }

  add(key, stop, worst, mean, ceiling) {
    if (!this.seen.has(key)) this.seen.set(key, new Map());
    this.seen.get(key).set(stop, { worst, mean, ceiling });
  }

  show(key, stop, strengths) {
    const points = [...(this.seen.get(key) ?? [])].sort((a, b) => a[0] - b[0]);
    const x = (place) => LEFT + ((RIGHT - LEFT) * place) / Math.max(1, strengths.length - 1);
    const y = (share) => BOTTOM - (BOTTOM - TOP) * share;
    const drawing = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(points, strengths) });
    for (const share of [0, 0.5, 1]) {
      drawing.append(draw("line", { class: "axis", x1: LEFT, x2: RIGHT, y1: y(share), y2: y(share) }));
      drawing.append(draw("text", { x: LEFT - 4, y: y(share) + 3, "text-anchor": "end" }, `${100 * share} %`));
    }
    drawing.append(draw("line", { class: "now", x1: x(stop), x2: x(stop), y1: TOP, y2: BOTTOM }));
    for (const which of ["mean", "worst"]) {
      const path = points.filter(([, point]) => point[which] !== null).map(([place, point]) => `${x(place)},${y(point[which])}`).join(" ");
      drawing.append(draw("polyline", { class: which, points: path }));
    }
    for (const [place, { worst, ceiling }] of points) {
      if (ceiling === null) continue;
      drawing.append(draw("line", { class: "gap", x1: x(place), x2: x(place), y1: y(worst ?? 0), y2: y(ceiling) }));
      drawing.append(draw("line", { class: "cap", x1: x(place) - 5, x2: x(place) + 5, y1: y(ceiling), y2: y(ceiling) }));
    }
    for (const [place, point] of points) {
      if (point.worst === null) continue; // nobody knows, which is no 0 %
      drawing.append(draw("rect", { class: "mean", x: x(place) - 3, y: y(point.mean) - 3, width: 6, height: 6 }));
      drawing.append(draw("circle", { class: "worst", cx: x(place), cy: y(point.worst), r: 3.5 }));
    }
    const title = document.createElement("p");
    title.className = "small muted";
    title.append("Leakage: ", legend("key-worst", "worst"), legend("key-mean", "mean"), legend("key-cap", "ceiling"));
    this.place.replaceChildren(title, drawing);
  }
}

function legend(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  return made;
}

function summary(points, strengths) {
  if (points.length === 0) return "Leakage against strength: nothing measured yet.";
  const parts = points.map(([place, { worst, mean, ceiling }]) => `at ${strengths[place]} worst ${percent(worst)}, mean ${percent(mean)}, ceiling ${percent(ceiling)}`);
  return `Leakage against strength: ${parts.join("; ")}.`;
}
