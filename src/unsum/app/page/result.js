// One answer of the server, shown: the verdict, and every photo beside what came back. Data enters as text alone.
import { create } from "/photos.js";

const element = (id) => document.getElementById(id);
export const BADGES = { severe: "Severe leakage", partial: "Partial leakage", labels: "Label leakage", low: "Low leakage", open: "Not decidable" };
const CAUTION = "This is what the attacks tried recovered from one simulated round. A stronger or better informed attack may recover more: little leakage here is no proof of safety.";
const UNDECIDED = "That is no proof of safety: photos that no attack found may leak all the same.";

export function showResult(result, picture) {
  showVerdict(result);
  element("attack-text").textContent = sentence(result);
  element("pictures").replaceChildren(...result.samples.map((sample) => figure(sample, picture(sample.id))));
  element("verdict").hidden = element("outcome").hidden = false;
}

function showVerdict({ verdict, samples, final }) {
  element("verdict").className = `verdict ${verdict.level}`;
  element("outcome").className = "";
  element("badge").textContent = (final ? "" : "First look: ") + BADGES[verdict.level];
  element("headline").textContent = verdict.headline;
  element("details").replaceChildren(...verdict.details.map((text) => create("li", { textContent: text })));
  element("caution").hidden = verdict.level === "severe";
  element("caution").textContent = verdict.level === "open" ? UNDECIDED : CAUTION;
  const percent = verdict.share === null ? null : Math.round(100 * verdict.share); // null: nobody can tell, which is no 0 %
  element("share").textContent = percent === null ? "?" : `${percent} %`;
  element("share-bar").setAttribute("width", percent ?? 0);
  const leak = percent === null ? "may leak: nobody can tell." : "leak 20 % or more.";
  element("share-text").textContent = `of the ${count(samples.length, "private photo")} ${leak}`;
}

function sentence({ final, certificate, method, granted, found: samples, seconds }) {
  const certain = certificate ? "it certifies its answer as exact" : "it does not vouch for its answer";
  const how = final ? `Attack: ${method}; ${certain}` : "Found by the ratio method; the whole attack is still running";
  return `${how}. After ${number(seconds, 1)} s it found ${samples}. ${granted.length ? "Granted to the attacker:" : ""} ${granted.join(" ")}`;
}

function figure(sample, original) {
  const facts = create("dl", {}, ...fact("True label", sample.label), ...fact("Found label", found(sample)));
  if (sample.found_label !== null) {
    if (sample.psnr !== null) facts.append(...fact("PSNR", `${number(sample.psnr, 1)} dB`));
    facts.append(...fact("Feature error", error(sample.feature_error)));
  }
  return create(
    "figure",
    {},
    create("div", { className: "pair" }, trained(sample, original), recovered(sample)),
    create("figcaption", {}, create("h3", { textContent: sample.title }), facts),
  );
}

// A client that mixes its photos trains on blends: these are what can come back.
function trained(sample, original) {
  if (sample.blend) return half("Trained on", sample.blend, `Blend that the client trained on: ${sample.title} and another`);
  return half("Original", original, `Original: ${sample.title}`);
}

function recovered(sample) {
  const absent = sample.found_label === null ? "not found" : "no picture";
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
