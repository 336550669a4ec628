// Watched in the virtual machine: all three kinds of work in few collections, because emulation is slow.
import { Worker, isMainThread } from 'node:worker_threads';

function churn(rounds) {
  for (let i = 0; i < rounds; i++) Array.from({ length: 200 }, (_, n) => ({ x: n, y: i }));
}

churn(4_000);
if (isMainThread) {
  globalThis.gc();
  globalThis.gc({ type: 'minor' });
  await new Promise((resolve) => new Worker(new URL(import.meta.url)).once('exit', resolve));
}
