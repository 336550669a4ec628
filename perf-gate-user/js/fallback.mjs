export function inProcess() {
  throw new Error('perf-gate: fallback is not there yet');
}
