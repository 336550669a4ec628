// Windows: `mark.begin(id, scale)` ... `mark.end()` around the code to measure. perf-gate, which runs
// the program, reads all of this isolate's allocation figures at both calls. Works in worker threads
// and in child processes; windows do not nest. Without perf-gate around it the calls do nothing.
//
// A marker is one `utimensat` system call on a file of perf-gate's, 0.5-1.5 us. It allocates nothing
// (56 bytes on Node 18, measured by empty windows here and removed from every figure).
import { openSync, futimesSync } from 'node:fs';

const BEGIN = 0;
const END = 1;
const HELLO = 2;
// Ids and scales must be small integers, or passing them would allocate.
// From 2^27 on they are the harness's own.
const MAX_ID = 2 ** 27 - 1;
const MAX_SCALE = 2 ** 31 - 1;
// Pairs of calls until V8 has collected what it wants to know about them, and room for it: some 20 to 60.
const WARM_UPS = 100;
const CALIBRATIONS = 8;

const HOW = 'run it as: sudo perf-gate watch -- node FILE';

function connect() {
  const variable = process.env.PERF_GATE_MARK;
  if (variable === undefined) return -1;
  try {
    return openSync(variable.slice(0, variable.lastIndexOf(':')), 'r+');
  } catch {
    return -1;
  }
}

const fd = connect();
// Windows of id 0 hold nothing; only this file makes them.
let leastId = 0;
let open = false;

function check(name, value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new RangeError(`perf-gate: mark.begin: ${name} must be an integer from ${least} to ${most} (got ${String(value)})`);
  }
}

function begin(id, scale = 1) {
  check('id', id, leastId, MAX_ID);
  check('scale', scale, 0, MAX_SCALE);
  if (open) throw new Error(`perf-gate: mark.begin(${id}): the window before it is still open; call mark.end() first`);
  open = true;
  futimesSync(fd, (id << 2) | BEGIN, scale);
}

function end() {
  if (!open) throw new Error('perf-gate: mark.end(): no window is open; call mark.begin(id, scale) first');
  open = false;
  futimesSync(fd, END, 0);
}

/** Whether perf-gate is there to see the marks. */
export const active = fd !== -1;

export const mark = active ? { begin, end } : { begin() {}, end() {} };

/**
 * The same as `mark`. With `require: true` it throws, with what to do about it, unless perf-gate is there to
 * see the marks: a test that must not pass unmeasured asks for it.
 */
export function getMark({ require = false } = {}) {
  if (require && !active) throw new Error(`perf-gate: nothing measures this program; ${HOW}`);
  return mark;
}

/** `getMark({ require: true })`. */
export function requireMark() {
  return getMark({ require: true });
}

if (active) {
  // Not introduced yet, the descriptor is anybody's: nothing is recorded, and the calls become warm.
  for (let i = 0; i < WARM_UPS; i++) {
    mark.begin(0, 0);
    mark.end();
  }
  const variable = process.env.PERF_GATE_MARK;
  futimesSync(fd, HELLO, Number(variable.slice(variable.lastIndexOf(':') + 1)));
  // Windows with nothing in them: the least of them is the marker's cost.
  for (let i = 0; i < CALIBRATIONS; i++) {
    mark.begin(0, 0);
    mark.end();
  }
  leastId = 1;
}
