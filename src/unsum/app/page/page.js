// The page's one loop: whatever is changed asks for a new round, and the newest answer is shown.
import { History } from "/history.js";
import { percent } from "/interval.js";
import { Photos, create } from "/photos.js";
import { showBound, showResult } from "/result.js";

const element = (id) => document.getElementById(id);
const PAUSE = 120; // ms without a further change before a round is asked for
const PAGE = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export function ask(address, options = {}) {
  return fetch(address, { ...options, headers: { ...options.headers, "X-Unsum-Page": PAGE } });
}

let photos, history, defenses, timer, asking, began, words;

async function begin() {
  const setting = await (await ask("/api/setting")).json();
  defenses = new Map(setting.defenses.map((defense) => [defense.name, defense]));
  words = { badges: setting.badges, assumed: setting.assumed };
  element("model").textContent = setting.model;
  element("most").textContent = setting.limits.photos;
  element("credits").textContent = `Photos: ${setting.credits.map((row) => `${row.title}: ${row.author}, ${row.license}`).join("; ")}.`;
  for (const name of defenses.keys()) element("defense").append(create("option", { value: name, textContent: name }));
  history = new History(element("history"));
  photos = new Photos(setting, change);
  element("same").addEventListener("input", change);
  element("strength").addEventListener("input", change);
  element("defense").addEventListener("change", chooseDefense);
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  // Until here a click would have been lost, so the page came with its controls switched off.
  for (const part of element("controls").elements) if (part.matches("fieldset")) part.disabled = false;
  setInterval(showTime, 100);
  change();
}

function chooseDefense() {
  const defense = defenses.get(element("defense").value);
  const strengths = defense?.strengths ?? [];
  element("defense-summary").textContent = defense ? `${defense.name}: ${defense.summary}.` : "The plain gradient of one step.";
  element("strength-box").hidden = strengths.length === 0;
  element("strength").max = Math.max(0, strengths.length - 1);
  element("strength").value = Math.floor(strengths.length / 2);
  element("strength-meaning").textContent = defense?.meaning ?? "";
  change();
}

// What the controls say now, as the server wants to hear it; `key` is everything but the strength.
function order() {
  const chosen = photos.chosen();
  const same = Number(element("same").value);
  const name = element("defense").value;
  const stop = Number(element("strength").value);
  const wanted = { photos: chosen, same_label: same > 1 ? same : 0, defense: name ? { name, stop } : null };
  return { wanted, name, stop, key: JSON.stringify([chosen, wanted.same_label, name]) };
}

function change() {
  const count = photos.chosen().length;
  element("same").max = Math.max(1, count);
  element("same").disabled = count < 2;
  const same = Number(element("same").value);
  element("same-text").textContent = same > 1 ? `${same} of ${count}` : "none";
  element("same").setAttribute("aria-valuetext", element("same-text").textContent);
  const { name, stop, key } = order();
  const strengths = defenses.get(name)?.strengths ?? [];
  if (strengths.length > 0) {
    element("strength-text").textContent = strengths[stop];
    element("strength-promise").textContent = defenses.get(name).promises[stop] ?? "";
    element("strength").setAttribute("aria-valuetext", String(strengths[stop]));
    history.show(key, stop, strengths);
  }
  asking?.abort();
  clearTimeout(timer);
  // What still stands there answers another question.
  for (const id of ["verdict", "outcome"]) element(id).classList.add("stale");
  if (count === 0) {
    idle("Choose at least one photo.");
    return;
  }
  busy("Computing");
  timer = setTimeout(play, PAUSE);
}

async function play() {
  const mine = (asking = new AbortController());
  const { wanted, name, stop, key } = order();
  began = performance.now();
  let last, quiet;
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await ask("/api/round", { method: "POST", headers, body: JSON.stringify(wanted), signal: mine.signal });
    if (!response.ok) {
      problem((await response.json()).error);
      return;
    }
    for await (const answer of lines(response)) {
      if (mine.signal.aborted) return;
      if (answer.kind === "stage") quiet = answer.quiet;
      if (answer.kind === "stage" || (answer.kind === "search" && !quiet && !last?.final)) busy(answer.sentence);
      if (answer.kind === "error") problem(answer.sentence);
      if (answer.kind === "result") {
        element("problem").hidden = true;
        showResult(answer, words, (id) => photos.picture(id));
        last = answer;
      } else if (answer.kind === "bound") {
        last = { ...last, verdict: answer.verdict, ceiling: answer.ceiling, unbounded: answer.unbounded };
        showBound(last, words);
      } else continue;
      if (!last.final) continue;
      const narrowing = answer.kind === "result" || !answer.final;
      idle(`${words.badges[last.verdict.level]}, found in ${last.seconds.toFixed(1)} s. ${pairs(last, narrowing)}`);
      if (name) {
        history.add(key, stop, last.worst_leakage, last.mean_leakage, last.ceiling?.highest ?? null);
        history.show(key, stop, defenses.get(name).strengths);
      }
    }
  } catch (error) {
    if (!mine.signal.aborted) problem("The server does not answer; is unsum still running?");
  }
}

// The page is free while the ceiling narrows: whatever is changed takes its place.
function pairs({ ceiling, unbounded }, narrowing) {
  if (unbounded) return "";
  if (ceiling === null) return "The ceiling is being computed …";
  const drawn = ceiling.pairs > 0 ? ` from ${ceiling.pairs} pairs of worlds` : "";
  return `Ceiling ${percent(ceiling.highest)}${drawn}${narrowing ? ", narrowing …" : "."}`;
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

let stage = "";

function busy(sentence) {
  stage = sentence;
  began ??= performance.now();
  document.querySelector("main").setAttribute("aria-busy", "true");
  showTime();
}

function showTime() {
  if (stage) element("progress-text").textContent = `${stage} … ${((performance.now() - began) / 1000).toFixed(1)} s`;
}

function idle(sentence) {
  stage = "";
  began = null;
  document.querySelector("main").setAttribute("aria-busy", "false");
  element("progress-text").textContent = sentence;
}

function problem(sentence) {
  idle("Stopped.");
  element("problem").textContent = sentence;
  element("problem").hidden = false;
}

begin().catch(() => problem("The page could not be loaded; is unsum still running?"));
