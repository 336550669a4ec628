// Measures one scenario: calls its hooks as perf-gate says and tells it what happened. What to call
// next, when it is warm and what the windows come to is perf-gate's business.
import v8 from 'node:v8';
import vm from 'node:vm';
import { K, N, FLUSH_MS } from './door.mjs';

const { getHeapStatistics } = v8;
const later = setImmediate;
const timer = setTimeout;
const now = performance.now.bind(performance);
const resources = process.getActiveResourcesInfo?.bind(process);
const count = () => resources?.().length;

let collect;
/** A collection on demand, without any option on the command line. */
function gc() {
  if (collect === undefined) {
    collect = globalThis.gc;
    if (typeof collect !== 'function') {
      v8.setFlagsFromString('--expose-gc');
      collect = vm.runInNewContext('gc');
      v8.setFlagsFromString('--no-expose-gc');
    }
  }
  collect();
}

const turn = () => new Promise((resolve) => later(resolve));
const sleep = (ms) => new Promise((resolve) => timer(resolve, ms));

/** The growth of every counter that is a number before and after. */
function growth(before, after) {
  const counters = {};
  for (const key in after) {
    if (typeof after[key] === 'number' && typeof before?.[key] === 'number') counters[key] = after[key] - before[key];
  }
  return counters;
}

/** What the scenario and the configuration ask for, the scenario's own options first. */
export function specOf(scenario, config) {
  const own = scenario.options ?? {};
  const pick = (key, fallback) => own[key] ?? config[key] ?? fallback;
  return {
    name: scenario.name,
    N: pick('N', N),
    k: pick('k', K),
    flushMs: Math.ceil(pick('flushMs', FLUSH_MS)),
    repeat: pick('repeat', undefined),
  };
}

class Failure extends Error {
  constructor(stage, cause) {
    super(stage);
    this.stage = stage;
    this.cause = cause;
  }
}

const guarded = async (stage, hook) => {
  try {
    return await hook();
  } catch (error) {
    throw new Failure(stage, error);
  }
};

/**
 * Measures `scenario` over `channel`; `more` goes with the question.
 * Rejects with what a hook threw, after teardown.
 */
export async function measureWith(channel, scenario, config, more = {}) {
  const { statsOf, teardown } = scenario;
  let state;
  let up = false;
  const steps = {
    async setup() {
      state = await guarded('setup', () => scenario.setup());
      up = true;
      return { resources: count() };
    },
    async call({ id, n, times, stats }) {
      const shown = {};
      const before = stats && statsOf ? await guarded('statsOf', () => ({ ...statsOf.call(scenario, state) })) : undefined;
      try {
        for (let i = 0; i < times; i++) {
          const promise = channel.call(scenario, state, n, id);
          if (promise !== undefined) shown.is_async = await promise;
        }
      } catch (error) {
        channel.end();
        throw new Failure('hot', error);
      }
      if (before !== undefined) {
        const after = await guarded('statsOf', () => statsOf.call(scenario, state));
        shown.counters = growth(before, after);
      }
      if (stats) shown.resources = count();
      return shown;
    },
    async bare({ n }) {
      await guarded('hot', () => scenario.hot(state, n));
      return { resources: count() };
    },
    async settle({ times }) {
      for (let i = 0; i < times; i++) {
        gc();
        await turn();
      }
      // Sums up what lives, which is seen from outside.
      getHeapStatistics();
      return { resources: count() };
    },
    async flush({ id, ms, untilResources, withinMs }) {
      const end = now() + withinMs;
      await channel.around(id, async () => {
        await turn();
        if (ms > 0) await sleep(ms);
        if (untilResources !== null) while (count() > untilResources && now() < end) await sleep(5);
      });
      return { resources: count() };
    },
    async sleep({ ms }) {
      await sleep(ms);
      return {};
    },
    async teardown() {
      up = false;
      if (teardown) await guarded('teardown', () => teardown.call(scenario, state));
      state = undefined;
      return {};
    },
  };
  let thrown;
  let step = channel.ask({ op: 'begin', ...specOf(scenario, config), ...more });
  for (;;) {
    if (step.do === 'done') return step.result;
    if (step.do === 'failed') throw thrown;
    try {
      step = channel.ask({ op: 'step', ...(await steps[step.do](step)) });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      thrown ??= error.cause;
      const torn = error.stage === 'setup' || error.stage === 'teardown' || !up;
      step = channel.ask({ op: 'failed', stage: error.stage, error: describe(error.cause), torn });
    }
  }
}

/** An error in one line. */
export function describe(error) {
  try {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : `threw ${String(error)}`;
    return text.replace(/\s+/g, ' ').slice(0, 500);
  } catch {
    return 'threw something that cannot be shown';
  }
}
