// The pictures. Each is drawn whole, from what it is given; every figure in them stands in words beside them, too.

import { clock, span, time } from "./format.js";

const colours = new Map();

export function forgetColours() {
  colours.clear();
}

function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}

const FONT = "11px system-ui, sans-serif";

// A canvas of so many CSS pixels, sharp on every screen.
function sheet(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const on = canvas.getContext("2d");
  on.setTransform(ratio, 0, 0, ratio, 0, 0);
  on.clearRect(0, 0, width, height);
  on.font = FONT;
  return on;
}

function stroke(on, fromX, fromY, toX, toY) {
  on.beginPath();
  on.moveTo(fromX, fromY);
  on.lineTo(toX, toY);
  on.stroke();
}

function fill(on, corners) {
  on.beginPath();
  for (const [x, y] of corners) on.lineTo(x, y);
  on.fill();
}

// The stretch of event time that is shown. One clock that is a year ahead must not squeeze all others into a point: what
// lies far outside of the middle is drawn at the edge, with an arrow.
export function stretch(watermarks, lines) {
  const marks = lines.filter((us) => us !== null && us !== undefined);
  const known = Float64Array.from(watermarks.length ? watermarks : marks.length ? marks : [0]).sort();
  const at = (share) => known[Math.min(known.length - 1, Math.floor(share * known.length))];
  const [low, high] = [at(0.1), at(0.9)];
  const middle = Math.max(high - low, 1e6);
  let from = Math.max(known[0], low - 4 * middle);
  let to = Math.min(known[known.length - 1], high + 4 * middle);
  for (const us of marks) {
    if (us < from && us >= from - 2 * middle) from = us;
    if (us > to && us <= to + 2 * middle) to = us;
  }
  const margin = Math.max((to - from) * 0.06, 5e5);
  return { from: from - margin, to: to + margin, known: watermarks.length + marks.length > 0 };
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1e6);

function ticks({ from, to }, most) {
  const wanted = (to - from) / most;
  const step = STEPS.find((each) => each >= wanted) ?? Math.ceil(wanted / 86400e6) * 86400e6;
  const found = [];
  for (let us = Math.ceil(from / step) * step; us <= to && found.length < 50; us += step) found.push([us, tick(us, step)]);
  return found;
}

function tick(us, step) {
  if (step >= 86400e6) return time(us).slice(0, 10);
  return step >= 60e6 ? clock(us).slice(0, 5) : clock(us);
}

function scale({ from, to }, left, right) {
  return (us) => left + ((us - from) / (to - from)) * (right - left);
}

// A line at the edge stands for one beyond it.
function mark(on, x, left, right, top, bottom, name, dash) {
  const inside = Math.min(Math.max(x, left + 1), right - 1);
  on.strokeStyle = colour(name);
  on.lineWidth = 1.5;
  on.setLineDash(dash);
  stroke(on, inside, top, inside, bottom);
  on.setLineDash([]);
  if (inside !== x) {
    const way = x > right ? 1 : -1;
    on.fillStyle = colour(name);
    fill(on, [[inside, top + 8], [inside - way * 7, top + 4], [inside - way * 7, top + 12]]);
  }
}

// The sheet of a picture whose x is event time, and the rows behind native Spark's watermark marked in it.
function ground(canvas, width, height, top, view, native) {
  const on = sheet(canvas, width, height);
  const [left, right] = [8, width - 8];
  const x = scale(view, left, right);
  const within = (us) => Math.min(Math.max(x(us), left), right);
  if (native !== null) {
    on.fillStyle = colour("native-tint");
    on.fillRect(left, top, within(native) - left, height - top);
  }
  return { on, left, right, x, within };
}

// One strip for each row of the table: from the low watermark to the split's own.
// rows: {top, height, state, watermark_us, holds}; tops are pixels below the top of the canvas.
export function strips(canvas, { width, height, head, rows, view, low, native, cap }) {
  const { on, left, right, x, within } = ground(canvas, width, height, head, view, native);
  on.fillStyle = colour("quiet");
  on.strokeStyle = colour("line");
  on.lineWidth = 1;
  on.textAlign = "center";
  for (const [us, label] of view.known ? ticks(view, Math.max(2, width / 90)) : []) {
    const at = x(us);
    const half = on.measureText(label).width / 2;
    if (at - half >= 2 && at + half <= width - 2) on.fillText(label, at, 25);
    stroke(on, at, head - 4, at, height);
  }
  for (const row of rows) strip(on, row, { x: within, left, right, low });
  if (cap !== null) mark(on, x(cap), left, right, head, height, "cap", [2, 3]);
  if (native !== null) mark(on, x(native), left, right, head, height, "native", [5, 3]);
  if (low !== null) mark(on, x(low), left, right, head, height, "low", []);
}

function strip(on, { top, height, state, watermark_us, holds }, { x, left, right, low }) {
  const y = Math.round(top + height / 2);
  const own = colour(state);
  on.strokeStyle = on.fillStyle = own;
  if (watermark_us === null) {
    on.setLineDash([1, 4]);
    on.lineWidth = 1;
    stroke(on, left, y, right, y);
    on.setLineDash([]);
  } else {
    const [from, to] = [low === null ? left : x(low), x(watermark_us)];
    on.globalAlpha = state === "finished" || state === "idle" ? 0.55 : 0.85;
    on.setLineDash(state === "idle" ? [6, 4] : []);
    on.lineWidth = state === "active" || state === "paused" ? 6 : 3;
    stroke(on, from, y, to, y);
    on.setLineDash([]);
    on.globalAlpha = 1;
  }
  const at = watermark_us === null ? (low === null ? left : x(low)) : x(watermark_us);
  on.beginPath();
  if (holds) {
    on.fillStyle = colour("low");
    fill(on, [[at, y - 8], [at + 8, y], [at, y + 8], [at - 8, y]]);
  } else if (state === "active" || state === "paused") {
    on.arc(at, y, 4.5, 0, 7);
    on.fill();
  } else {
    on.lineWidth = 1.5;
    on.arc(at, y, 3.5, 0, 7);
    on.stroke();
  }
}

// All splits in a few pixels: line i of the canvas stands for the splits of that share of the list.
export function profile(canvas, { rows, view, low, native, first, last, holder }) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const { on, left, right, x, within } = ground(canvas, width, height, 0, view, native);
  const start = low === null ? left : within(low);
  const lines = Math.min(rows.length, Math.floor(height));
  const size = height / lines;
  let state = null;
  for (let line = 0; line < lines; line += 1) {
    const row = rows[Math.floor((line * rows.length) / lines)];
    if (row.state !== state) {
      state = row.state;
      on.fillStyle = colour(state);
    }
    const end = row.watermark_us === null ? start : within(row.watermark_us);
    on.globalAlpha = 0.3;
    on.fillRect(Math.min(start, end), line * size, Math.abs(end - start), size);
    on.globalAlpha = 1;
    on.fillRect(end - 1.5, line * size, 3, Math.max(size, 1));
  }
  if (native !== null) mark(on, x(native), left, right, 0, height, "native", [5, 3]);
  if (low !== null) mark(on, x(low), left, right, 0, height, "low", []);
  on.strokeStyle = colour("ink");
  on.lineWidth = 1.5;
  on.strokeRect(1, (first / rows.length) * height, width - 2, Math.max(3, ((last - first) / rows.length) * height));
  if (holder >= 0) {
    on.fillStyle = colour("low");
    const y = ((holder + 0.5) / rows.length) * height;
    fill(on, [[0, y - 5], [7, y], [0, y + 5]]);
  }
}

// The low watermark over the last hour; since this browser looks also native Spark's, and the band of all splits.
// points: {at, low, native, least, most}, microseconds, oldest first; at least one.
export function history(canvas, points) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const on = sheet(canvas, width, height);
  const [left, right, top, bottom] = [10, width - 92, 10, height - 20];
  const values = points.flatMap(({ low, least, most }) => [low, least, most]).filter((us) => us !== null);
  const view = stretch(values, [points.at(-1).native]);
  const [from, to] = [points[0].at, Math.max(points.at(-1).at, points[0].at + 60e6)];
  const x = scale({ from, to }, left, right);
  const y = scale({ from: view.to, to: view.from }, top, bottom);
  const inside = (us) => Math.min(Math.max(y(us), top - 4), bottom + 4);
  on.strokeStyle = colour("line");
  on.fillStyle = colour("quiet");
  on.lineWidth = 1;
  on.textAlign = "left";
  for (const [us, label] of values.length ? ticks(view, 4) : []) {
    stroke(on, left, y(us), right, y(us));
    on.fillText(label, right + 8, y(us) + 4);
  }
  on.textAlign = "center";
  for (const [us, label] of ticks({ from, to }, Math.max(2, width / 140))) on.fillText(label, Math.max(x(us), left + 24), height - 6);
  if (!values.length) on.fillText("no split has spoken yet", (left + right) / 2, (top + bottom) / 2);
  const band = points.filter(({ least, most }) => least !== null && most !== null);
  if (band.length) {
    on.fillStyle = colour("band");
    const above = band.map(({ at, most }) => [x(at), inside(most)]);
    fill(on, [...above, ...band.map(({ at, least }) => [x(at), inside(least)]).reverse()]);
  }
  for (const [name, dash] of [["native", [5, 3]], ["low", []]]) {
    on.strokeStyle = colour(name);
    on.lineWidth = 2;
    on.setLineDash(dash);
    on.beginPath();
    let before = null;
    for (const point of points) {
      if (point[name] !== null) {
        if (before === null) on.moveTo(x(point.at), inside(point[name]));
        else {
          on.lineTo(x(point.at), before);
          on.lineTo(x(point.at), inside(point[name]));
        }
        before = inside(point[name]);
      }
    }
    on.stroke();
    on.setLineDash([]);
  }
}

export function historyInWords(points) {
  const [first, last] = [points[0], points.at(-1)];
  const rose = first.low === null || last.low === null ? null : last.low - first.low;
  const words = [`Seen for ${span(last.at - first.at)}.`];
  if (rose !== null) words.push(rose > 0 ? `The low watermark rose by ${span(rose)}.` : "The low watermark did not rise.");
  if (last.least !== null) words.push(`The splits stand from ${time(last.least)} to ${time(last.most)} UTC.`);
  if (last.native !== null) words.push(`Native Spark's watermark would be ${time(last.native)} UTC.`);
  return words.join(" ");
}
