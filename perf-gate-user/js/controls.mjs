// Controls: scenarios whose truth is known. Before anything is judged, each must read it; see
// docs/cookbook.md for what each proves.
import { Worker } from 'node:worker_threads';

const RING = 64;
const ring = new Array(RING).fill(null);

/** Scale of the controls: their truths hold there, whatever the scenarios' own scale. */
export const CONTROL_N = 200_000;
export const CONTROL_K = 8;

/** An object of four fields an operation, which escapes into a ring and dies young: 56 bytes. */
export const controlPositive = {
  name: 'CONTROL+ ({x,y,z,w} per iter into a 64-slot ring)',
  setup: () => ({}),
  hot(state, n) {
    for (let i = 0; i < n; i++) ring[i & (RING - 1)] = { x: i, y: i + 1, z: i + 2, w: i + 3 };
  },
};

/** How many slots of the ring hold an object that the positive control made. Keeps them from being optimised away. */
export function _controlKeepAlive() {
  let n = 0;
  for (let i = 0; i < RING; i++) {
    const object = ring[i];
    if (object !== null && object.w >= object.x) n++;
  }
  return n;
}

/** Arithmetic on small integers: nothing. */
export const controlNegative = {
  name: 'CONTROL- (pure arithmetic)',
  setup: () => ({ acc: 0 }),
  hot(state, n) {
    let a = state.acc;
    for (let i = 0; i < n; i++) {
      const j = i & 0xffff;
      a = (a + ((j * 3) ^ j)) & 0xfffffff;
    }
    state.acc = a;
  },
};

/** 13 ArrayBuffers of 64 KiB at 1.6 million operations, all kept. */
export const controlLarge = {
  name: 'CONTROL_LARGE (64KB ArrayBuffer every 131072 iters, accumulating pool)',
  setup: () => ({ pool: [] }),
  hot(state, n) {
    for (let i = 0; i < n; i++) if ((i & 131071) === 0) state.pool.push(new ArrayBuffer(65536));
  },
  teardown(state) {
    state.pool = null;
  },
};

/** 13 arrays of 40,000 elements: large objects of 320,016 bytes. */
export const controlLargeObject = {
  name: 'CONTROL_LARGE_OBJECT (new Array(40000) every 131072 iters)',
  setup: () => ({ last: null }),
  hot(state, n) {
    for (let i = 0; i < n; i++) if ((i & 131071) === 0) state.last = new Array(40_000);
  },
};

/** A Symbol, which V8 puts into old space at once, every 64 operations: 24 bytes. */
export const controlOldSpace = {
  name: 'CONTROL_OLD_SPACE (Symbol() every 64 iters)',
  setup: () => ({ last: null }),
  hot(state, n) {
    for (let i = 0; i < n; i++) if ((i & 63) === 0) state.last = Symbol();
  },
};

const WORKER = `
const { workerData: cell } = require('node:worker_threads');
const ring = new Array(64).fill(null);
const hot = (n) => { for (let i = 0; i < n; i++) ring[i & 63] = { x: i, y: i + 1, z: i + 2, w: i + 3 }; };
for (;;) {
  Atomics.wait(cell, 0, 0);
  const n = Atomics.load(cell, 0);
  if (n < 0) break;
  hot(n);
  Atomics.store(cell, 0, 0);
  Atomics.notify(cell, 0);
}`;

/** The positive control's objects, made by another isolate while this one waits. */
export const controlWorker = {
  name: 'CONTROL_WORKER ({x,y,z,w} per iter in a worker)',
  options: { N: 20_000, k: 8 },
  setup() {
    const cell = new Int32Array(new SharedArrayBuffer(4));
    const worker = new Worker(WORKER, { eval: true, workerData: cell });
    worker.unref();
    return { cell, worker };
  },
  hot({ cell }, n) {
    Atomics.store(cell, 0, n);
    Atomics.notify(cell, 0);
    while (Atomics.load(cell, 0) !== 0) Atomics.wait(cell, 0, n, 1000);
  },
  teardown({ cell }) {
    Atomics.store(cell, 0, -1);
    Atomics.notify(cell, 0);
  },
};

/** An object of four fields every 64 operations, kept. */
export const controlRetained = {
  name: 'CONTROL_RETAINED ({x,y,z,w} kept every 64 iters)',
  setup: () => ({ kept: [] }),
  hot(state, n) {
    for (let i = 0; i < n; i++) if ((i & 63) === 0) state.kept.push({ x: i, y: i, z: i, w: i });
  },
};

/** All of them, in the order that they are measured in, with what each is expected to read. */
export const OWN_CONTROLS = {
  positive: { scenario: controlPositive, expected: 56, retains: true },
  negative: { scenario: controlNegative, expected: 0, retains: false },
  large: { scenario: controlLarge, expected: null, retains: true },
  largeObject: { scenario: controlLargeObject, expected: null, retains: false },
  oldSpace: { scenario: controlOldSpace, expected: 24 / 64, retains: false },
  worker: { scenario: controlWorker, expected: 56, retains: false },
  retained: { scenario: controlRetained, expected: null, retains: true },
};
