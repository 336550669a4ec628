// The in-process rival, loaded with --import: learns of collections the way perf_hooks offers it.
import { PerformanceObserver } from 'node:perf_hooks';

let collections = 0;
new PerformanceObserver((list) => {
  collections += list.getEntries().length;
}).observe({ entryTypes: ['gc'] });
