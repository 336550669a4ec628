// Allocates at a steady rate: `rate.mjs WORK MEGABYTES [grown]` makes objects of 56 bytes with WORK steps of
// arithmetic before each. `cargo xtask bench` looks for the WORK that gives the rate it wants on the
// machine at hand; from then on every run does exactly the same. The event loop turns between slices
// of 8 MB, or an in-process poller beside it would never get its turn. Nothing survives, so V8 would leave
// the new space at its first size of a megabyte or two; with `grown`, objects that survive before the
// start have made it as large as in a program that has been up for a while, and collections rarer.
import { setImmediate } from 'node:timers/promises';

const [work, megabytes] = process.argv.slice(2, 4).map(Number);
const grown = process.argv[4] === 'grown';
const BYTES = 56; // map, properties, elements and four fields, 8 bytes each
const SLICE = Math.round(8e6 / BYTES);
let sink = 0;
const ring = new Array(64).fill(null);

function slice(objects) {
  let x = 1; // a local: kept outside, it would itself be allocated
  for (let i = 0; i < objects; i++) {
    for (let step = 0; step < work; step++) x = (Math.imul(x, 1103515245) + 12345) | 0;
    ring[i & 63] = { a: i, b: i, c: null, d: null };
  }
  return x;
}

async function run(bytes) {
  for (let left = Math.round(bytes / BYTES); left > 0; left -= SLICE) {
    sink ^= slice(Math.min(left, SLICE));
    await setImmediate();
  }
}

function grow() {
  const kept = [];
  for (let i = 0; i < 400_000; i++) kept.push({ a: i, b: i, c: null, d: null });
  return kept.length;
}

if (grown) sink ^= grow();
await run(40e6); // compiled from here on
const cpu = process.cpuUsage();
const start = performance.now();
await run(megabytes * 1e6);
const wall_ms = performance.now() - start;
const { user, system } = process.cpuUsage(cpu);
// For last-words.mjs: the work alone, without start-up and warm-up.
globalThis.work = { wall_ms, cpu_ms: (user + system) / 1000 };
if (sink === 0.5) console.log(ring);
