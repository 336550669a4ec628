// The one door for configurations: every function of the package checks what it is given here, in
// this order, and throws for the first thing that is wrong, naming the field and the value.

const show = (value) => {
  try {
    return String(value);
  } catch {
    return typeof value;
  }
};
const kindOf = (value) => (value === null ? 'null' : typeof value);
const isObject = (value) => typeof value === 'object' && value !== null;
const own = Object.prototype.hasOwnProperty;

const HINT = ' -- pass allowEmpty: true for a controls-only detector smoke run.';

/** Limits, all numbers of at least 0, and what they are where none is given (null: not judged). */
export const LIMITS = {
  maxScavenges: 2,
  maxRetainedKB: 64,
  maxOldGen: 0,
  maxArrayBuffersKB: 64,
  maxBytesPerOp: 0,
  maxBytesFixed: null,
  maxLargeBytes: 0,
  maxExternalKB: 64,
  maxRetainedBytesPerOp: 0,
  maxDeferredBytesPerOp: 0,
};
export const N = 200_000;
export const K = 8;
// The wait after hot() is for work that it leaves behind; counts need none.
export const FLUSH_MS = flushFromEnvironment(process.env.PERF_GATE_FLUSH_MS) ?? 10;

function flushFromEnvironment(text) {
  const value = Number.parseInt(text, 10);
  return value > 0 && value < 60_000 ? value : undefined;
}

const MEASURE_KEYS = ['N', 'k', 'flushMs', 'repeat', 'allowNoGc', 'fallback'];
const LIMIT_KEYS = [...Object.keys(LIMITS), 'counters'];
export const CONTROLS = ['positive', 'negative', 'large', 'largeObject', 'oldSpace', 'worker', 'retained'];
const SUITE_KEYS = [
  ...MEASURE_KEYS,
  ...LIMIT_KEYS,
  'scenarios',
  'mustFail',
  'allowEmpty',
  ...CONTROLS.map((name) => `${name}Control`),
];
const KEYS = {
  // One configuration may be passed to all of them.
  measure: SUITE_KEYS,
  verdict: SUITE_KEYS,
  zgcSuite: SUITE_KEYS,
  runGate: SUITE_KEYS,
  gate: SUITE_KEYS,
  options: [...MEASURE_KEYS, ...LIMIT_KEYS],
};

/** Edits that turn one word into another. */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length];
}

/** The known word that was probably meant. */
export function meant(word, known) {
  const [best] = known
    .map((candidate) => [distance(word.toLowerCase(), candidate.toLowerCase()), candidate])
    .sort(([a], [b]) => a - b);
  return best !== undefined && best[0] <= Math.max(2, word.length / 3) ? best[1] : undefined;
}

function unknownKeys(object, known, prefix) {
  for (const key of Object.keys(object)) {
    if (known.includes(key)) continue;
    const guess = meant(key, known);
    const hint = guess === undefined ? `known: ${known.join(', ')}` : `did you mean ${guess}?`;
    throw new TypeError(`${prefix}unknown key ${key} -- ${hint}`);
  }
}

function integer(config, key, least, prefix) {
  const value = config[key];
  if (value !== undefined && !(Number.isInteger(value) && value >= least)) {
    throw new RangeError(`${prefix}${key} must be an integer >= ${least} (got ${show(value)})`);
  }
  if (value > Number.MAX_SAFE_INTEGER) {
    throw new RangeError(`${prefix}${key} must be an integer <= ${Number.MAX_SAFE_INTEGER} (got ${show(value)})`);
  }
}

function atLeast0(config, key, prefix) {
  const value = config[key];
  if (value !== undefined && !(typeof value === 'number' && Number.isFinite(value) && value >= 0)) {
    throw new RangeError(`${prefix}${key} must be a finite number >= 0 (got ${show(value)})`);
  }
}

function counters(config, prefix) {
  const value = config.counters;
  if (value === undefined || value === null) return;
  if (typeof value !== 'object') {
    throw new TypeError(`${prefix}counters must be an object of numeric maxima (got ${typeof value})`);
  }
  // Inherited keys count.
  for (const key in value) {
    if (!(typeof value[key] === 'number' && Number.isFinite(value[key]))) {
      throw new RangeError(`${prefix}counters.${key} must be a finite number (got ${show(value[key])})`);
    }
  }
}

export function checkScenario(scenario, label, prefix) {
  if (!isObject(scenario)) throw new TypeError(`${prefix}${label} must be a Scenario object (got ${kindOf(scenario)})`);
  const { name } = scenario;
  if (typeof name !== 'string' || name === '') {
    throw new TypeError(`${prefix}${label}.name must be a non-empty string (got ${show(name)})`);
  }
  for (const hook of ['setup', 'hot']) {
    if (typeof scenario[hook] !== 'function') {
      throw new TypeError(`${prefix}${label} "${name}": ${hook} must be a function (got ${typeof scenario[hook]})`);
    }
  }
  for (const hook of ['statsOf', 'teardown']) {
    if (scenario[hook] !== undefined && typeof scenario[hook] !== 'function') {
      throw new TypeError(`${prefix}${label} "${name}": ${hook} must be a function when present (got ${typeof scenario[hook]})`);
    }
  }
  if (own.call(scenario, 'options') && scenario.options !== undefined) {
    checkConfig(scenario.options, 'options', `${prefix}${label} "${name}": `);
  }
}

/** Checks a configuration; `where` is the function that was called. */
export function checkConfig(config, where, prefix = `perf-gate: ${where}: `) {
  if (config !== undefined && typeof config !== 'object') {
    throw new TypeError(`${prefix}config must be an object (got ${typeof config})`);
  }
  const given = config ?? {};
  integer(given, 'N', 1, prefix);
  integer(given, 'k', 2, prefix);
  integer(given, 'repeat', 1, prefix);
  atLeast0(given, 'flushMs', prefix);
  for (const key of ['allowNoGc', 'allowEmpty']) {
    if (given[key] !== undefined && typeof given[key] !== 'boolean') {
      throw new TypeError(`${prefix}${key} must be true or false (got ${show(given[key])})`);
    }
  }
  if (given.fallback !== undefined && given.fallback !== 'in-process') {
    throw new TypeError(`${prefix}fallback must be 'in-process' when present (got ${show(given.fallback)})`);
  }
  if (where !== 'measure') {
    for (const key of Object.keys(LIMITS)) atLeast0(given, key, prefix);
    counters(given, prefix);
    for (const [option, lane] of [
      ['maxRetainedKB', 'retained'],
      ['maxArrayBuffersKB', 'arrayBuffers'],
    ]) {
      if (given.allowNoGc === true && given[option] !== undefined) {
        throw new RangeError(
          `${prefix}${lane} is ungateable without --expose-gc (allowNoGc: true with an explicit ${option}) -- drop one of them.`,
        );
      }
    }
  }
  unknownKeys(given, KEYS[where], prefix);
  if (where === 'zgcSuite' || where === 'runGate' || where === 'gate') suite(given, prefix);
  return given;
}

function suite(given, prefix) {
  const { scenarios, mustFail } = given;
  if (!Array.isArray(scenarios)) {
    throw new TypeError(`${prefix}scenarios must be an array (got ${typeof scenarios})${HINT}`);
  }
  if (scenarios.length === 0 && given.allowEmpty !== true) {
    throw new RangeError(`${prefix}scenarios must be a non-empty array${HINT}`);
  }
  if (mustFail !== undefined && !Array.isArray(mustFail)) {
    throw new TypeError(`${prefix}mustFail must be an array (got ${typeof mustFail})`);
  }
  scenarios.forEach((scenario, i) => checkScenario(scenario, `scenarios[${i}]`, prefix));
  mustFail?.forEach((scenario, i) => checkScenario(scenario, `mustFail[${i}]`, prefix));
  for (const control of CONTROLS) {
    const key = `${control}Control`;
    if (given[key] !== undefined) checkScenario(given[key], key, prefix);
  }
}

/** What of a configuration are limits, for the judge. */
export function limitsOf(config) {
  const limits = {};
  for (const key of Object.keys(LIMITS)) if (config[key] !== undefined) limits[key] = config[key];
  if (config.counters !== undefined && config.counters !== null) {
    limits.counters = {};
    for (const key in config.counters) limits.counters[key] = config.counters[key];
  }
  return limits;
}
