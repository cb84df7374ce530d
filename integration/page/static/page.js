// Asks /state every second, and shows what it said. Nothing here changes anything there.

import { $, element, put } from "./elements.js";
import { clock, count, many, parsed, span, time } from "./format.js";
import { forgetColours, history, historyInWords } from "./paint.js";
import { Splits } from "./splits.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 12_000;
const HISTORY_US = 60 * 60e6;
const GAP_US = 60e6;
const SAY_EVERY_MS = 10_000;
const LEADS = { "query failed": "The query has failed", "coordinator away": "Its coordinator does not answer", "no event time": "No usable event time",
  "wrong clock": "Wrong clock of", "silent split": "Silent split" };
const KINDS = { failed: "bad", stuck: "bad", gone: "bad", silent: "warn", waiting: "warn", standing: "warn", moving: "good" };

const splits = new Splits();
const histories = new Map(); // by run
let version = null;
let wanted = named();
let newest = null;
let lostSince = null;
let timer = null;
let asked = 0; // questions: two may be on their way, and only the answer to the last one is shown
let told = { at: 0, text: "" };
let before = null; // of the stream in view: what the last sentence for a screen reader went by

// The run that the address names; null where it names none that could be.
function named() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    return null;
  }
}

async function ask() {
  timer = null;
  if (document.hidden) return; // asked again when somebody looks
  asked += 1;
  const mine = asked;
  try {
    const question = new URLSearchParams();
    if (version !== null) question.set("since", version);
    if (wanted !== null) question.set("run", wanted);
    const answer = await fetch(`state?${question}`, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const text = await answer.text();
    if (mine !== asked) return;
    performance.mark("lowmark-begin");
    show(JSON.parse(text));
    performance.measure("lowmark-update", "lowmark-begin");
    if (performance.getEntriesByName("lowmark-update").length > 120) performance.clearMeasures("lowmark-update");
  } catch (failed) {
    if (mine !== asked) return;
    lose(failed);
  }
  again();
}

function again() {
  if (timer === null) timer = setTimeout(ask, EVERY_MS);
}

function lose(failed) {
  if (lostSince === null) {
    lostSince = new Date();
    say("The page's server does not answer.");
    console.warn("lowmark:", failed);
  }
  const of = newest === null ? "" : `; shown is what was known at ${clock(newest.now_us)} UTC`;
  connection("lost", `does not answer since ${lostSince.toISOString().slice(11, 19)} UTC${of}. Has the application ended?`);
  document.body.classList.add("stale");
}

function connection(state, text) {
  $("connection").dataset.state = state;
  put($("connection"), text);
}

function say(text) {
  const now = Date.now();
  if (text === told.text || now - told.at < SAY_EVERY_MS) return;
  told = { at: now, text };
  put($("said"), text);
}

// The run that took the place of the one that the address names, because its query was started again.
function begunAgain({ runs }) {
  const before = newest?.runs.find(({ id }) => id === wanted);
  if (before === undefined || before.query === null || runs.some(({ id }) => id === wanted)) return undefined;
  const same = runs.filter(({ name, query }) => name === before.name && query === before.query);
  return same.find((run) => !newest.runs.some(({ id, query }) => id === run.id && query === run.query)) ?? same[0];
}

function show(state) {
  const next = begunAgain(state);
  if (next !== undefined) {
    location.replace(`#${encodeURIComponent(next.id)}`); // asks for it at once
    return;
  }
  lostSince = null;
  newest = state;
  version = state.version;
  document.body.classList.toggle("stale", state.error !== null);
  for (const id of histories.keys()) if (!state.runs.some((run) => run.id === id)) histories.delete(id);
  const silent = state.silent.join("; ");
  if (state.error !== null) connection("lost", `not up to date: ${state.error}`);
  else if (silent) connection("lost", silent);
  else connection("live", `live, ${clock(state.now_us)} UTC`);
  put($("services"), `${many(state.services.length, "service")}, ${many(state.runs.length, "query", "queries")}`);
  splits.take(state);
  const run = state.runs.find(({ id }) => id === state.selected);
  if (run !== undefined && !seenUntil(run.id, state.now_us)) {
    if (state.whole) histories.set(run.id, state.rises.map(([at, low]) => ({ at, low, native: null, least: null, most: null })));
    else {
      histories.delete(run.id);
      version = null; // the next answer is whole, and has the last hour
    }
  }
  streams(state);
  queries(state);
  $("stream").hidden = run === undefined;
  $("nothing").hidden = run !== undefined;
  if (run === undefined) {
    put($("nothing"), state.services.length === 0
      ? silent ? "No lowmark service of this user gives a status; why is said above." : "No lowmark service of this user runs on this machine. A service lives in the driver of its Spark application, from LowWatermarkService(spark) to stop(); it appears here by itself."
      : "No query with a wrapped stream runs yet. It appears here when it begins, some seconds after its start().");
    document.title = "lowmark";
    return;
  }
  document.title = `${run.shown}: ${run.verdict}, lowmark`;
  stream(run, state);
  if (histories.has(run.id)) remember(run, state);
  announce(run);
}

// Whether this browser has looked at the run up to now: not while its tab was hidden, or another stream was in view. A line
// over that time would say that the low watermark stood. After a step of the clock the times of before mean nothing.
function seenUntil(run, now) {
  const points = histories.get(run);
  return points !== undefined && points.length > 0 && Math.abs(now - points.at(-1).at) < GAP_US;
}

function streams({ runs, selected }) {
  const make = () => element("li", {}, element("a", {}, element("span", { className: "verdict" }), element("b"), element("small")));
  fillList($("streams"), runs, make, (item, run) => {
    const link = item.firstChild;
    const [word, name, query] = link.children;
    link.href = `#${encodeURIComponent(run.id)}`;
    if (run.id === selected) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    judge(word, run);
    put(name, run.shown);
    put(query, run.query ?? "before its first batch");
  });
}

function judge(word, { verdict }) {
  put(word, verdict);
  word.dataset.kind = KINDS[verdict] ?? "plain";
}

// The time by the clock of the service, which no step of a wall clock moves; what the service tells goes by it.
function clockOf(run, { now_us: now }) {
  return parsed(run.run.now) ?? now;
}

function stream(run, state) {
  const now = clockOf(run, state);
  put($("stream-name"), run.shown);
  put($("stream-query"), run.query === null ? "" : `in query ${run.query}`);
  judge($("stream-verdict"), run);
  const lead = LEADS[run.cause];
  put($("holder-lead"), lead === undefined ? (run.holder === null ? "Held by no split" : "Held by") : lead);
  $("reason").dataset.kind = lead === undefined ? "" : "bad";
  put($("holder"), run.cause === "no event time" ? "" : (run.holder_shown ?? ""));
  const since = parsed(run.since);
  const stands = since === null ? 0 : Math.floor((now - since) / 1e6) * 1e6;
  put($("holder-since"), since === null ? "" : run.low_watermark_us === null ? `· no low watermark yet, for ${span(stands)}` : stands > 0 ? `· the low watermark has stood for ${span(stands)}` : "· the low watermark has just risen");
  put($("why"), sentence(run.why));
  put($("next"), run.next);
  const over = { ended: "This query has ended; shown is its last state.", failed: "The driver's log has the whole error.",
    gone: "Its service does not answer any more: the application has ended, hangs, or answers with an error. Shown is what was known last." };
  const clocks = run.clocks.filter(([, , , , , holds]) => !holds).map(([, shown, rows, since, last]) =>
    `The clock of split ${shown} is wrong: ${many(rows, "row")} from ${clock(parsed(since))} to ${clock(parsed(last))} UTC lie further ahead than the future guard allows.`);
  const set = run.set_by_hand.map((each) => `By hand: ${each}.`);
  const notes = [over[run.verdict], ...set, ...clocks].filter(Boolean);
  put($("beside"), notes.join(" "));
  $("beside").hidden = notes.length === 0;
  facts(run, state.now_us);
  splits.show(run, now);
  group(run);
  held(run);
  $("left-out-section").hidden = run.left_out.length === 0;
  const idle = run.states.idle ?? run.left_out.length;
  put($("left-out-heading"), `${many(idle, "idle split is", "idle splits are")} left out`);
  const told = run.left_out.map(([name, why]) => `${name}: ${why}`);
  if (idle > told.length) told.push(`and ${count(idle - told.length)} more`);
  fillList($("left-out"), told, () => element("li"), put);
  put($("explanation"), run.explanation);
}

function facts(run, now) {
  const { counts } = run;
  const [low, native] = [run.low_watermark_us, run.native_watermark_us];
  const list = [
    ["Low watermark (UTC)", low === null ? "none yet" : clock(low), low === null ? "" : `${time(low).slice(0, 10)}, ${span(Math.floor((now - low) / 1e6) * 1e6)} behind now`],
    ["Native Spark's (UTC)", native === null ? "none yet" : clock(native), native === null || low === null ? "" : `${time(native).slice(0, 10)}, ${span(Math.abs(native - low))} ${native < low ? "behind" : "ahead"}`],
    ["Native would drop", run.native_late_rows ? `≥ ${count(run.native_late_rows)}` : "none seen", run.native_late_rows ? "rows: a floor, the truth may be far above" : "rows, since the start", run.native_late_rows > 0 && "bad"],
    ["Dropped as late here", count(counts.dropped_rows), "rows", counts.dropped_rows > 0 && "bad"],
    ["Unread", count(run.run.backlog_rows), "rows, as far as known"],
    ["Rows", count(counts.rows), `in ${many(run.batches, "batch", "batches")}`],
    ["Ahead of the clock", count(counts.future_rows), run.clocks.length === 0 ? "rows that move nothing" : `rows that move nothing, of ${many(run.clocks.length, "split")}`, counts.future_rows > 0 && "bad"],
  ];
  fillList($("facts"), list, () => element("div", {}, element("dt"), element("dd"), element("dd")), (item, [what, value, more, kind]) => {
    item.dataset.kind = kind || "";
    [what, value, more].forEach((text, at) => put(item.children[at], text));
  });
}

function group(run) {
  const at = run.run.alignment;
  $("group-section").hidden = !at;
  if (!at) return;
  put($("group-heading"), `Alignment group ${at.group}`);
  const cap = { hold: "nobody goes on before all have spoken", free: "no limit", up_to: `up to ${time(at.cap_us)} UTC` }[at.cap] ?? "not known yet";
  const kept = at.kept_at === null ? "" : ` It is kept by the coordinator at ${at.kept_at}; lowmark explain --coordinator asks it.`;
  put($("group-words"), `Its minimum is ${at.minimum_us === null ? "not known" : `${time(at.minimum_us)} UTC`}, and members may be ${span(at.max_drift_us)} ahead of it. This stream may be read: ${cap}.${kept}`);
  const members = newest.runs.filter(({ run: each, address }) => address === run.address && each.alignment?.group === at.group && !each.ended);
  fillList($("group-rows"), members, () => row(5), ({ cells }, each) => {
    const { waiting, throttled, ahead_us: ahead, why } = each.run.alignment;
    const does = waiting ? "waits for the others" : throttled ? "reads on" : "is not throttled: Spark reads it by itself";
    const texts = [each.shown, each.query ?? "", time(each.low_watermark_us), ahead === null ? "" : span(ahead), why ? `${does}; ${why}` : does];
    texts.forEach((text, at_) => put(cells[at_], text));
  });
}

function held(run) {
  const spells = run.held.filter(([, since, until]) => since !== null && until !== null);
  const make = () => element("li", {}, element("span"), element("b"), element("span", { className: "quiet" }));
  fillList($("held"), spells.length ? spells : [null], make, (item, spell) => {
    const [name, since, until] = spell ?? ["nobody yet", null, null];
    put(item.children[0], spell === null ? "" : span(Math.max(0, parsed(until) - parsed(since))));
    put(item.children[1], name ?? "nobody");
    put(item.children[2], since === null ? "" : `from ${clock(parsed(since))} UTC`);
  });
}

function queries({ runs, services }) {
  $("queries-section").hidden = runs.length === 0;
  const applications = new Map(services.map(({ address, application, pid }) => [address, `${application}, process ${pid}`]));
  fillList($("queries"), runs, () => {
    const made = row(9);
    for (const at of [3, 4, 5, 6]) made.cells[at].className = "number";
    return made;
  }, ({ cells }, run) => {
    const texts = [run.shown, run.query ?? "", run.verdict, count(run.batches), count(run.counts.rows), count(run.counts.dropped_rows),
      count(run.run.backlog_rows), run.run.reported_at ? time(parsed(run.run.reported_at), false) : "none yet", applications.get(run.address) ?? "does not answer"];
    texts.forEach((text, at) => put(cells[at], text));
  });
}

// The low watermark of the last hour, which the driver keeps; splits and native Spark's since this browser looks.
function remember(run, { now_us: at }) {
  const points = histories.get(run.id);
  const [least, most] = splits.reach;
  points.push({ at, low: run.low_watermark_us, native: run.native_watermark_us, least, most });
  while (points[0].at < at - HISTORY_US) points.shift();
  drawHistory();
  put($("history-words"), historyInWords(points));
}

function drawHistory() {
  const points = histories.get(newest?.selected);
  if (points && !$("stream").hidden) history($("history"), points);
}

function announce(run) {
  const now = { id: run.id, holder: run.holder_shown, verdict: run.verdict };
  if (before !== null && before.id === now.id) {
    if (before.verdict !== now.verdict) say(`${run.shown} is ${now.verdict}.`);
    else if (before.holder !== now.holder) say(now.holder === null ? `${run.shown} is held by nobody.` : `${run.shown} is held by ${now.holder}.`);
  }
  before = now;
}

// As many children as there are things, each filled with its own; made once, never thrown away in between.
function fillList(list, things, make, fill) {
  while (list.children.length > things.length) list.lastChild.remove();
  while (list.children.length < things.length) list.append(make());
  things.forEach((thing, at) => fill(list.children[at], thing));
}

function row(cells) {
  return element("tr", {}, ...Array.from({ length: cells }, () => element("td")));
}

function sentence(text) {
  return text === "" ? text : text[0].toUpperCase() + text.slice(1);
}

window.addEventListener("hashchange", () => {
  wanted = named();
  if (timer !== null) clearTimeout(timer);
  ask();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && timer === null) ask();
});
window.addEventListener("resize", drawHistory);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  forgetColours();
  splits.draw();
  drawHistory();
});
ask();
