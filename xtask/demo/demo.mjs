// What `cargo xtask demo` watches: a program that allocates, leaks a little and uses a worker, within a second.
import { Worker, isMainThread } from 'node:worker_threads';

// Garbage: short-lived objects, as many as make the young generation collect a few dozen times.
function churn(rounds) {
  let kept = 0;
  for (let i = 0; i < rounds; i++) {
    const points = Array.from({ length: 100 }, (_, n) => ({ x: n, y: i }));
    kept += points.length;
  }
  return kept;
}

if (isMainThread) {
  const worker = new Worker(new URL(import.meta.url));

  // The leak: a cache that nobody empties, on the heap and outside of it.
  const cache = new Map();
  for (let i = 0; i < 400; i++) {
    cache.set(i, { id: i, body: new Uint8Array(64 * 1024), label: `entry ${i} `.repeat(50) });
    churn(25);
  }

  await new Promise((resolve) => worker.once('exit', resolve));
  console.log(`demo: ${cache.size} entries cached, and nobody will ever ask for them`);
} else {
  churn(10_000);
}
