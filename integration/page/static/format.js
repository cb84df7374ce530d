// Words and numbers, as the command line writes them. Times are microseconds since the epoch, or ISO-8601.


export function time(us, milliseconds = true) {
  if (us === null || us === undefined) return "none";
  const ms = Math.floor(us / 1000);
  if (!(Math.abs(ms) <= 8.64e15)) return `${us} us`;
  const year = new Date(ms).getUTCFullYear();
  if (year < 0 || year > 9999) return `${us} us`;
  const text = new Date(ms).toISOString().replace("T", " ").replace("Z", "");
  return milliseconds ? text : text.slice(0, 19);
}

export function clock(us) {
  return us === null ? "" : time(us, false).slice(11);
}

export function parsed(iso) {
  return iso === null || iso === undefined ? null : Date.parse(iso) * 1000;
}

const UNITS = [[86400e6 * 365, "y"], [86400e6, "d"], [3600e6, "h"], [60e6, "m"], [1e6, "s"], [1e3, "ms"]];

// The two largest units: 3d 4h. Rounded down, as in `lowmark status`.
export function span(us) {
  if (us === null || us === undefined || !Number.isFinite(us)) return "";
  if (us < 0) return `-${span(-us)}`;
  const at = UNITS.findIndex(([size]) => us >= size);
  if (at < 0) return "0s";
  const [size, unit] = UNITS[at];
  const whole = Math.floor(us / size);
  const next = UNITS[at + 1];
  const rest = unit === "s" || unit === "ms" || next === undefined ? 0 : Math.floor((us - whole * size) / next[0]);
  return rest > 0 ? `${whole}${unit} ${rest}${next[1]}` : `${whole}${unit}`;
}

const grouped = new Intl.NumberFormat("en");

export function count(number) {
  return number === null || number === undefined ? "?" : grouped.format(number);
}

export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}
