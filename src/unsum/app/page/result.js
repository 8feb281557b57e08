// One answer of the server, shown: the verdict, and every photo beside what came back. Data enters as text alone.
import { interval, percent } from "/interval.js";
import { create } from "/photos.js";

const element = (id) => document.getElementById(id);
const CAUTION = "Found is what these attacks recovered from one simulated round; another attack may read up to the ceiling.";
const UNDECIDED = "That is no proof of safety: photos that no attack found may leak all the same.";

export function showResult(result, words, picture) {
  element("attack-text").textContent = sentence(result);
  element("pictures").replaceChildren(...result.samples.map((sample) => figure(sample, picture(sample.id))));
  showBound(result, words);
  element("verdict").hidden = element("outcome").hidden = false;
}

// The verdict and the intervals again: both change as the ceiling narrows, the pictures do not.
export function showBound(result, words) {
  showVerdict(result, words);
  showCeiling(result);
}

function showVerdict({ verdict, samples, final }, { badges, assumed }) {
  element("verdict").className = `verdict ${verdict.level}`;
  element("outcome").className = "";
  element("badge").textContent = (final ? "" : "First look: ") + badges[verdict.level];
  element("headline").textContent = verdict.headline;
  element("details").replaceChildren(...verdict.details.map((text) => create("li", { textContent: text.replaceAll(" %", "\u00a0%") })));
  element("caution").hidden = verdict.level === "severe";
  element("caution").textContent = { open: UNDECIDED, protected: assumed }[verdict.level] ?? CAUTION;
  element("alarm").hidden = !verdict.alarm;
  element("alarm").textContent = verdict.alarm;
  element("state").textContent = verdict.state;
  const percent = verdict.share === null ? null : Math.round(100 * verdict.share); // null: nobody can tell, which is no 0 %
  element("share").textContent = percent === null ? "?" : `${percent} %`;
  element("share-bar").setAttribute("width", percent ?? 0);
  const leak = percent === null ? "may leak: nobody can tell." : "leak 20 % or more.";
  element("share-text").textContent = `of the ${count(samples.length, "private photo")} ${leak}`;
}

function showCeiling({ ceiling, unbounded, samples }) {
  const found = samples.map((sample) => sample.found).filter((share) => share !== null);
  const most = found.length > 0 ? Math.max(...found) : null;
  element("found").textContent = percent(most);
  element("ceiling").textContent = percent(ceiling?.highest ?? null);
  element("ends").replaceChildren(interval(most, ceiling?.highest ?? null));
  const why = unbounded || (ceiling === null ? "The ceiling is being computed." : "");
  element("ceiling-text").hidden = !why;
  element("ceiling-text").textContent = why;
  [...element("pictures").children].forEach((figure, i) => {
    const limit = ceiling?.samples[i] ?? null;
    figure.querySelector(".ceiling").textContent = percent(limit);
    figure.querySelector(".bar").replaceChildren(interval(samples[i].found, limit));
  });
}

function sentence({ final, certificate, method, granted, found: samples, seconds }) {
  const certain = certificate ? "it certifies its answer as exact" : "it does not vouch for its answer";
  const how = final ? `Attack: ${method}; ${certain}` : "Found by the ratio method; the whole attack is still running";
  return `${how}. After ${number(seconds, 1)} s it found ${samples}. ${granted.length ? "Granted to the attacker:" : ""} ${granted.join(" ")}`;
}

function figure(sample, original) {
  const facts = create("dl", {}, ...fact("True label", sample.label), ...fact("Found label", found(sample)));
  if (sample.came_back) {
    if (sample.psnr !== null) facts.append(...fact("PSNR", `${number(sample.psnr, 1)} dB`));
    facts.append(...fact("Feature error", error(sample.feature_error)));
  }
  facts.append(...fact("Photo found", percent(sample.found)), create("dt", { textContent: "Its ceiling" }), create("dd", { className: "ceiling" }));
  return create(
    "figure",
    {},
    create("div", { className: "pair" }, trained(sample, original), recovered(sample)),
    create("figcaption", {}, create("h3", { textContent: sample.title }), facts, create("div", { className: "bar" })),
  );
}

// A client that mixes its photos trains on blends: these are what can come back.
function trained(sample, original) {
  if (sample.blend) return half("Trained on", sample.blend, `Blend that the client trained on: ${sample.title} and another`);
  return half("Original", original, `Original: ${sample.title}`);
}

function recovered(sample) {
  const absent = !sample.came_back ? "not found" : "no picture";
  return half("Recovered", sample.picture, `Recovered from the update: ${sample.title}`, "recovered", absent);
}

function half(heading, source, alt, className = "", absent = "removed") {
  const picture = source ? create("img", { src: source, alt, className }) : create("div", { className: "absent", textContent: absent });
  return create("div", {}, create("span", { textContent: heading }), picture);
}

function found(sample) {
  if (sample.found_label === null) return "not found";
  const mark = sample.label_correct ? "correct" : "wrong";
  return create("span", {}, `${sample.found_label} `, create("span", { className: `mark ${mark}`, textContent: `${sample.label_correct ? "✓" : "✗"} ${mark}` }));
}

const fact = (name, value) => [create("dt", { textContent: name }), create("dd", {}, value)];
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const number = (value, digits) => (value === null ? "–" : value.toFixed(digits));
const error = (value) => (value === null ? "–" : value > 0 && value < 0.01 ? value.toExponential(1) : value.toFixed(2));
