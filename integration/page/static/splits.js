// The splits of the stream in view: a table of one page of them, their strips beside it, and all of them in a profile.
// Names come from data, and may hold anything: they are text everywhere, never markup, never a key of an object.

import { $, element, put } from "./elements.js";
import { count, many, parsed, span, time } from "./format.js";
import { profile, stretch, strips } from "./paint.js";

const STATES = ["pending", "active", "paused", "idle", "finished"];
const RANK = new Map([["pending", 0], ["active", 1], ["paused", 1], ["idle", 2], ["finished", 3]]);
const PAGE = 50;
const PROFILE_FROM = 40;
const NUMBERED = new Intl.Collator("en", { numeric: true }); // orders-9 before orders-10

export class Splits {
  constructor() {
    this.all = new Map();
    this.first = 0;
    this.wanted = new Set();
    this.selected = null; // the run whose splits these are
    this.open = null; // name of the split of which more is shown
    this.more = element("tr", { className: "more" }, element("td"));
    this.listed = [];
    this.lines = []; // the rows of the table, made once and filled again and again
    this.reading = false; // who reads the table does not want its rows to change places
    for (const [id, event] of [["search", "input"], ["order", "change"]]) {
      $(id).addEventListener(event, () => this.restart());
    }
    $("previous").addEventListener("click", () => this.turnTo(this.first - PAGE));
    $("following").addEventListener("click", () => this.turnTo(this.first + PAGE));
    $("profile").addEventListener("click", (event) => {
      const at = Math.floor((event.offsetY / $("profile").clientHeight) * this.listed.length);
      this.turnTo(Math.floor(at / PAGE) * PAGE);
    });
    $("sheet").addEventListener("pointerenter", () => { this.reading = true; });
    $("sheet").addEventListener("pointerleave", () => { this.reading = $("sheet").contains(document.activeElement); });
    $("rows").addEventListener("focusin", () => { this.reading = true; });
    $("rows").addEventListener("focusout", (event) => { this.reading = $("sheet").contains(event.relatedTarget); });
    $("rows").addEventListener("keydown", (event) => this.walk(event));
    $("rows").addEventListener("click", (event) => this.toggle(event.target.closest("tr")));
    this.filters = new Map(STATES.map((state) => [state, this.filter(state)]));
    new ResizeObserver(() => this.draw()).observe($("sheet"));
  }

  filter(state) {
    const word = element("span", { className: "state" });
    word.dataset.state = state;
    const button = element("button", { type: "button" }, word);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const on = !this.wanted.delete(state);
      if (on) this.wanted.add(state);
      button.setAttribute("aria-pressed", String(on));
      this.restart();
    });
    $("states").append(button);
    return { button, word };
  }

  take({ whole, selected, fields, splits, gone }) {
    if (whole) this.all = new Map();
    if (selected !== this.selected) {
      this.selected = selected;
      this.open = null;
      this.first = 0;
      this.listed = [];
    }
    for (const name of gone) this.all.delete(name);
    for (const list of splits) {
      const split = Object.fromEntries(fields.map((field, at) => [field, list[at]]));
      const { name, shown, state, watermark_us } = split;
      this.all.set(name, { ...split, label: shown ?? name, rank: RANK.get(state), least: watermark_us ?? -Infinity });
    }
  }

  show(run, now) {
    this.run = run;
    this.now = now;
    for (const [state, { button, word }] of this.filters) {
      put(word, `${count(run.states[state] ?? 0)} ${state}`);
      button.disabled = !run.states[state] && !this.wanted.has(state);
    }
    this.list();
    this.fill();
  }

  restart() {
    this.first = 0;
    this.listed = [];
    if (this.run) {
      this.list();
      this.fill();
    }
  }

  turnTo(first) {
    this.first = Math.max(0, Math.min(first, Math.floor(Math.max(0, this.listed.length - 1) / PAGE) * PAGE));
    this.fill();
  }

  list() {
    if (this.reading && this.listed.length > 0) {
      this.listed = this.listed.map(({ name }) => this.all.get(name)).filter((split) => split !== undefined);
      return;
    }
    const text = $("search").value.toLowerCase();
    const wanted = [];
    for (const split of this.all.values()) {
      if (this.wanted.size && !this.wanted.has(split.state)) continue;
      if (text && !split.label.toLowerCase().includes(text)) continue;
      wanted.push(split);
    }
    wanted.sort(this.comparison());
    this.listed = wanted;
    if (this.first >= wanted.length) this.first = 0;
  }

  comparison() {
    const { holder } = this.run;
    const byName = (a, b) => (a.label < b.label ? -1 : a.label > b.label ? 1 : 0);
    const far = (a, b) => (a.least < b.least ? -1 : a.least > b.least ? 1 : 0);
    switch ($("order").value) {
      case "name": return (a, b) => NUMBERED.compare(a.label, b.label);
      case "behind": return (a, b) => far(a, b) || byName(a, b);
      case "backlog": return (a, b) => (b.backlog_rows ?? -1) - (a.backlog_rows ?? -1) || byName(a, b);
      default: return (a, b) =>
        (b.name === holder) - (a.name === holder) || a.rank - b.rank || far(a, b) || byName(a, b);
    }
  }

  fill() {
    this.day = time(this.run.low_watermark_us).slice(0, 11); // is not told again in every row
    const shown = this.listed.slice(this.first, this.first + PAGE);
    const body = $("rows");
    while (this.lines.length < shown.length) this.lines.push(line());
    this.shown = shown;
    shown.forEach((split, at) => {
      const row = this.lines[at];
      if (row.line.parentNode !== body) body.append(row.line);
      this.fillLine(row, split);
    });
    for (let at = shown.length; at < this.lines.length; at += 1) this.lines[at].line.remove();
    this.fillMore();
    const tabbed = this.lines.slice(0, shown.length).find(({ button }) => button === document.activeElement) ?? this.lines[0];
    for (const { button } of this.lines) button.tabIndex = button === tabbed?.button ? 0 : -1;
    const [all, listed] = [this.all.size, this.listed.length];
    put($("splits-count"), listed === all ? count(all) : `${count(listed)} of ${count(all)}`);
    put($("range"), all === 0 ? "no split is known yet" : listed === 0 ? "no split fits" : `${count(this.first + 1)} to ${count(this.first + shown.length)} of ${count(listed)}`);
    put($("caption"), `Splits ${$("range").textContent}, in the order: ${$("order").selectedOptions[0].textContent}`);
    $("pager").hidden = listed <= PAGE && listed > 0;
    $("previous").disabled = this.first === 0;
    $("following").disabled = this.first + PAGE >= listed;
    this.draw();
  }

  fillLine(row, split) {
    const { run, now } = this;
    const holds = split.name === run.holder;
    if (row.name !== split.name) {
      row.name = split.name;
      put(row.button, split.label);
      row.button.title = split.label.length > 24 ? split.label.slice(0, 400) : "";
    }
    row.line.classList.toggle("holds", holds);
    row.button.setAttribute("aria-expanded", String(split.name === this.open));
    row.state.dataset.state = split.state;
    put(row.state, split.state);
    const clockWrong = run.clocks.some(([name]) => name === split.name);
    const tags = [holds && "holds", clockWrong && "wrong clock", split.lagging && "lagging", split.passed_over && "passed over", split.late_reports > 0 && "late reports"];
    put(row.tag, tags.filter(Boolean).join(", "));
    put(row.comma, row.tag.textContent === "" ? "" : ", ");
    row.tag.title = row.tag.textContent;
    row.tag.className = holds ? "tag" : "tag warn";
    const whole = split.watermark_us === null ? "none yet" : time(split.watermark_us);
    put(row.time, whole.startsWith(this.day) ? whole.slice(11) : whole.slice(0, 19));
    row.time.title = whole;
    const ahead = split.watermark_us === null || run.low_watermark_us === null ? null : split.watermark_us - run.low_watermark_us;
    put(row.ahead, ahead === null ? "" : span(ahead));
    put(row.unread, count(split.backlog_rows));
    put(row.rows, count(split.rows));
    const last = parsed(split.last_report);
    put(row.last, last === null ? "" : span(Math.max(0, Math.floor((now - last) / 1e6) * 1e6)));
  }

  fillMore() {
    const { run, shown } = this;
    const opened = shown.findIndex(({ name }) => name === this.open);
    if (opened < 0) {
      this.more.remove();
      return;
    }
    const split = shown[opened];
    const { name, rows, backlog_rows: unread, late_reports: late, native_late_rows: native, why, watermark_us: at } = split;
    const sentences = [
      `${split.label} is ${split.state}: ${why}.`,
      `Its watermark is ${time(at)}${at === null ? "" : " UTC"}; it ${rows === null ? "delivers rows, which are not counted by split," : `has delivered ${many(rows, "row")} since its query started`} and ` +
        (unread === null ? "nobody knows how many are unread." : `has ${many(unread, "row")} unread.`),
      split.lagging ? "It is lagging: rows wait in it, it may be read, and the last batch had none of it." : "",
      late > 0 ? `In ${many(late, "batch", "batches")} it delivered rows at or below the watermark in force.` : "",
      ...run.clocks.filter(([each]) => each === name).map(([, , future, since, last]) =>
        `Its clock is wrong: ${many(future, "row")} from ${time(parsed(since), false)} to ${time(parsed(last), false)} UTC lie further ahead than the future guard allows, and move nothing.`),
      native > 0 ? `At least ${many(native, "row")} of it came behind native Spark's one watermark, which drops them once their window is over.` : "",
      split.pending_since === null ? "" : `It has been waited for since ${time(parsed(split.pending_since), false)} UTC.`,
      split.passed_over ? "with_percentile() passes it: rows of it may be late." : "",
      name === run.holder ? run.next : "",
    ];
    // As wide as the columns that this screen has: one more would make room for itself.
    this.more.firstChild.colSpan = [...$("table").tHead.rows[0].cells].filter((cell) => cell.offsetParent !== null).length;
    put(this.more.firstChild, sentences.filter(Boolean).join(" "));
    const after = this.lines[opened].line;
    if (after.nextSibling !== this.more) after.after(this.more);
  }

  toggle(target) {
    const row = this.lines.find(({ line: each }) => each === target);
    if (row === undefined) return;
    this.open = this.open === row.name ? null : row.name;
    this.fill();
  }

  walk(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -PAGE, End: PAGE };
    const step = steps[event.key];
    const at = this.lines.findIndex(({ button }) => button === document.activeElement);
    if (step === undefined || at < 0) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(this.shown.length - 1, at + step));
    this.lines[at].button.tabIndex = -1;
    this.lines[to].button.tabIndex = 0;
    this.lines[to].button.focus();
  }

  draw() {
    const { run, shown } = this;
    if (!run || $("stream").hidden) return;
    const cap = run.run.alignment?.cap_us ?? null;
    const [low, native] = [run.low_watermark_us, run.native_watermark_us];
    const watermarks = [];
    for (const { watermark_us: us } of this.all.values()) if (us !== null) watermarks.push(us);
    const view = stretch(watermarks, [low, native, cap]);
    $("cap-key").hidden = cap === null;
    $("profile-figure").hidden = this.listed.length < PROFILE_FROM;
    const [head, sheet] = [$("strip-head"), $("sheet")];
    const canvas = $("strips");
    // All that is measured is measured before anything is placed: the page is laid out once.
    const [width, height, left, top] = [head.offsetWidth, sheet.clientHeight, head.offsetLeft, head.offsetHeight];
    const rows = shown.map((split, at) => {
      const { offsetTop: top, offsetHeight: tall } = this.lines[at].line;
      return { top, height: tall, state: split.state, watermark_us: split.watermark_us, holds: split.name === run.holder };
    });
    const covered = this.open !== null && this.more.parentNode ? [this.more.offsetTop, this.more.offsetHeight] : null;
    const place = { left: `${left}px`, width: `${width}px`, height: `${height}px` };
    for (const [what, where] of Object.entries(place)) if (canvas.style[what] !== where) canvas.style[what] = where;
    strips(canvas, { width, height, head: top, rows, view, low, native, cap });
    if (covered) canvas.getContext("2d").clearRect(0, covered[0], width, covered[1]);
    if (!$("profile-figure").hidden) {
      const holder = this.listed.findIndex(({ name }) => name === run.holder);
      profile($("profile"), { rows: this.listed, view, low, native, first: this.first, last: this.first + shown.length, holder });
    }
  }

  get reach() {
    let [least, most] = [null, null];
    for (const { watermark_us: us, state } of this.all.values()) {
      if (us === null || state === "idle" || state === "finished") continue;
      if (least === null || us < least) least = us;
      if (most === null || us > most) most = us;
    }
    return [least, most];
  }
}

// A row of the table: its parts by name, and the name of the split that it shows.
function line() {
  const cell = (className, ...children) => element("td", { className }, ...children);
  const made = {
    name: null,
    button: element("button", { type: "button" }),
    state: element("span", { className: "state" }),
    comma: element("span", { className: "comma" }),
    tag: element("span"),
    time: cell("c-time"),
    ahead: cell("c-ahead"),
    unread: cell("c-unread"),
    rows: cell("c-rows"),
    last: cell("c-last"),
  };
  const head = element("th", { className: "c-name", scope: "row" }, made.button);
  const state = cell("c-state", made.state, made.comma, made.tag);
  made.line = element("tr", {}, head, state, cell("c-strip"), made.time, made.ahead, made.unread, made.rows, made.last);
  return made;
}
