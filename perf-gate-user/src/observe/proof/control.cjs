// The control that proves a node binary's probes: it does known things, one step at a time. After
// each step it prints the step's name and the numbers that must have been seen, then blocks until
// the supervisor, which reads its maps meanwhile, lets it go on. Nothing here measures anything.
'use strict';
const fs = require('fs');
const v8 = require('v8');
const byte = Buffer.alloc(1);
const did = (step, ...truth) => {
  fs.writeSync(1, [step, ...truth].join(' ') + '\n');
  // A supervisor that is gone closes the pipe: end, too.
  if (fs.readSync(0, byte, 0, 1, null) === 0) process.exit(3);
};
const feature = (make) => {
  try {
    return make();
  } catch {
    return undefined;
  }
};
let kept = [];

// Windows are marked by the times of a file; see js/mark.mjs.
const [, path, nonce] = /^(.*):(\d+)$/.exec(process.env.PERF_GATE_MARK);
const marker = fs.openSync(path, 'r+');
fs.futimesSync(marker, 2, Number(nonce));
const begin = (id, scale) => fs.futimesSync(marker, id << 2, scale);
const end = () => fs.futimesSync(marker, 1, 0);

did('start');
for (let i = 0; i < 3; i++) gc({ type: 'minor' });
did('minor', 3);
if (process.argv.includes('minor-only')) process.exit(0);

for (let i = 0; i < 2; i++) gc();
did('major', 2);

let sink;
for (let i = 0; i < 600000; i++) sink = { a: i, b: i, c: i, d: i };
did('young');

// A substring of 13 characters or more is a SlicedString: map, hash and length, parent, offset, 32 bytes
// from one builtin, which no compiler takes apart.
// The texts take turns: of a constant one, a compiler can cut the first iteration's piece itself.
const texts = ['abcdefghijklmnopqrstuvwxyz'.repeat(4), 'zyxwvutsrqponmlkjihgfedcba'.repeat(4)];
const ring = new Array(16).fill('');
function slices(text, n) {
  for (let i = 0; i < n; i++) ring[i & 15] = text.substring(i & 31, 80);
}
for (let round = 0; round < 8; round++) {
  begin(0, 0);
  end();
  begin(1, 1000);
  slices(texts[round & 1], 1000);
  end();
  begin(2, 8000);
  slices(texts[round & 1], 8000);
  end();
}
did('windows', 24, 7000 * 32);

let sum = 0;
for (let i = 0; i < 5; i++) {
  const size = 1048576 + i;
  kept.push(new ArrayBuffer(size));
  sum += size;
}
did('buffers', sum);
kept = [];
gc();
gc();
did('buffers-freed', sum);

// Beyond a million bytes node keeps the characters outside of the heap, and the collector frees them.
const bytes = Buffer.alloc(2097152, 97);
const strings = (n) => {
  for (let i = 0; i < n; i++) kept.push(bytes.toString('latin1'), bytes.toString('utf16le'));
};
strings(2);
did('strings', 4 * 2097152);
kept = [];
gc();
gc();
did('strings-freed', 4 * 2097152);

const impossible = feature(() => new ArrayBuffer(2 ** 52));
did('buffer-refused', impossible === undefined ? 0 : impossible.byteLength);

sum = 0;
const memory = new WebAssembly.Memory({ initial: 1, maximum: 4 });
memory.grow(2);
kept.push(memory);
sum += 3 * 65536;
const resizable = feature(() => {
  const b = new ArrayBuffer(1000, { maxByteLength: 100000 });
  b.resize(50000);
  return b;
});
if (resizable !== undefined && resizable.byteLength === 50000) {
  kept.push(resizable);
  sum += 50000;
}
const growable = feature(() => {
  const b = new SharedArrayBuffer(2000, { maxByteLength: 100000 });
  b.grow(60000);
  return b;
});
if (growable !== undefined && growable.byteLength === 60000) {
  kept.push(growable);
  sum += 60000;
}
did('stores', sum);

// In a function of its own, or a register of this one might keep the last.
const fill = (n) => {
  for (let i = 0; i < n; i++) kept.push(new Array(40000));
};
kept = [];
fill(4);
// FixedArray: 16 bytes of header, 8 a slot (no pointer compression in node).
did('large', 4, 4 * (16 + 40000 * 8));

// More of them, as V8 itself sums up what lives.
fill(16);
gc();
gc();
v8.getHeapStatistics();
did('live-base');
kept = [];
gc();
v8.getHeapStatistics();
did('live', 20 * (16 + 40000 * 8));

const room = v8.getHeapSpaceStatistics().find((s) => s.space_name === 'old_space').space_available_size;
for (let i = 0; i < 50000; i++) kept.push({ a: i, b: i, c: i, d: i });
// Scavenges copy survivors into old space; a mark-compact would hand over whole new-space pages.
gc({ type: 'minor' });
gc({ type: 'minor' });
// 56 bytes each (map, properties, elements, four slots), 262144 a page; the array of them is large.
did('pages', Math.max(1, Math.floor((50000 * 56 - room) / 262144)));

kept = [];
const { Worker } = require('worker_threads');
const worker = new Worker('gc(); gc(); gc();', { eval: true });
worker.on('exit', () => {
  did('worker', 3);
  v8.setFlagsFromString('--stress-incremental-marking');
  for (let i = 0; i < 20; i++) {
    const batch = [];
    for (let j = 0; j < 5000; j++) batch.push({ i, j, k: j, l: j });
    kept.push(batch);
  }
  did('incremental');
  process.exit(sink === undefined ? 1 : 0);
});
