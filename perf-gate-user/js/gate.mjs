// measure, verdict, zgcSuite and runGate: what tests call. Figures come from the kernel's side and
// verdicts from perf-gate's judge; here they are asked for, in order, and told to the test runner.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { required } from './channel.mjs';
import { CONTROL_K, CONTROL_N, OWN_CONTROLS } from './controls.mjs';
import { CONTROLS, K, N, checkConfig, checkScenario, limitsOf } from './door.mjs';
import { inProcess } from './fallback.mjs';
import { measureWith } from './measure.mjs';

const prefix = (where) => `perf-gate: ${where}: `;

/** Where figures and verdicts come from: perf-gate around us or, on purpose only, this process itself. */
function source(config, where) {
  return config.fallback === 'in-process' ? inProcess(config) : required(where);
}

const measured = (from, scenario, config, more) =>
  from.measure === undefined ? measureWith(from, scenario, config, more) : from.measure(scenario, config, more);

export async function measure(scenario, config) {
  checkScenario(scenario, 'scenario', prefix('measure'));
  const given = checkConfig(config, 'measure');
  return measured(source(given, 'measure'), scenario, given);
}

const judged = (from, result, limits) => from.ask({ op: 'verdict', result, thresholds: limits });
const isCaught = (from, result, limits) => from.ask({ op: 'verdict', result, thresholds: limits, caught: true }).caught;
const formatted = (from, result) => from.ask({ op: 'format', result }).text;

const sourceOf = (result, where) =>
  result?.source === 'in-process' ? inProcess({}) : required(where);

export function verdict(result, thresholds) {
  const given = checkConfig(thresholds, 'verdict');
  if (result === null || typeof result !== 'object') {
    throw new TypeError(`${prefix('verdict')}result must be a MeasureResult (got ${result === null ? 'null' : typeof result})`);
  }
  if (result.retainedReliable === false) {
    checkConfig({ ...given, allowNoGc: true }, 'verdict');
  }
  const { pass, reasons } = judged(sourceOf(result, 'verdict'), result, limitsOf(given));
  return { pass, reasons };
}

export function formatResult(result) {
  if (typeof result?.retainedKB_hi !== 'number') {
    throw new TypeError(`${prefix('formatResult')}retainedKB_hi must be a number (got ${typeof result?.retainedKB_hi})`);
  }
  return formatted(sourceOf(result, 'formatResult'), result);
}

/** Measures the controls, each at its own scale, and has them judged. */
async function detector(from, given, report) {
  const controls = {};
  const overridden = [];
  for (const name of CONTROLS) {
    const override = given[`${name}Control`];
    const { scenario, ...how } = OWN_CONTROLS[name];
    if (override !== undefined) {
      overridden.push(name);
      how.expected = null;
    }
    const scale = { N: CONTROL_N, k: CONTROL_K, ...scenario.options };
    controls[name] = await measured(from, override ?? scenario, scale, { control: name, ...how });
    report?.(name, controls[name]);
  }
  const { reason } = from.ask({ op: 'detector', controls, maxScavenges: given.maxScavenges, overridden });
  return { controls, reason: reason ?? undefined };
}

// Placeholder for tests of the controls themselves.
const sabotage = () => false;

const limitsFor = (given, scenario) => limitsOf({ ...given, ...scenario.options });
const shown = (from, controls) => Object.values(controls).map((r) => formatted(from, r)).join('\n');

export function zgcSuite(config) {
  const given = checkConfig(config, 'zgcSuite');
  const from = source(given, 'zgcSuite');
  const { scenarios, mustFail = [] } = given;
  const title =
    scenarios.length === 0
      ? 'perf-gate: detector validation only (allowEmpty, 0 scenarios)'
      : 'perf-gate: detector validation (positive + negative + large controls)';
  test(title, async () => {
    const { controls, reason } = await detector(from, given);
    if (reason !== undefined) assert.fail(`DETECTOR VALIDATION FAILED: ${reason}\n${shown(from, controls)}`);
  });
  for (const scenario of scenarios) {
    test(`zero-GC: ${scenario.name}`, async () => {
      const result = await measured(from, scenario, given);
      const { pass, reasons } = judged(from, result, limitsFor(given, scenario));
      if (!pass) {
        assert.fail(`${scenario.name} FAILED:\n${reasons.map((r) => `  ${r}`).join('\n')}\n  ${formatted(from, result)}`);
      }
    });
  }
  for (const scenario of mustFail) {
    test(`perf-gate: MUST CATCH ${scenario.name}`, async () => {
      const result = await measured(from, scenario, given, { mustFail: true, expected: null });
      if (!isCaught(from, result, limitsFor(given, scenario))) {
        assert.fail(`gate failed to flag a known allocation: ${scenario.name}\n  ${formatted(from, result)}`);
      }
    });
  }
}

export async function runGate(config) {
  const given = checkConfig(config, 'runGate');
  const from = source(given, 'runGate');
  const { scenarios, mustFail = [], N: n = N, k = K } = given;
  const line = '='.repeat(72);
  const say = (text) => console.log(text);
  say(`Zero-GC gate — scavenge scaling (N=${n}, ${k}N=${k * n})`);
  const { controls, reason } = await detector(from, given);
  const results = [];
  for (const scenario of scenarios) results.push(await measured(from, scenario, given));
  const caught = [];
  for (const scenario of mustFail) caught.push(await measured(from, scenario, given, { mustFail: true, expected: null }));

  say('== controls ==');
  say(shown(from, controls));
  if (reason !== undefined) {
    say(`!! DETECTOR VALIDATION FAILED: ${reason}`);
    return { passed: false, code: 2, results: [] };
  }
  const { positive, negative } = controls;
  say(
    `detector validated: positive forced ${positive.minorHi} scavenges at ${positive.k}N (${positive.minorLo} at N, floor 6), negative forced ${negative.minorHi}.`,
  );
  say('== scenarios ==');
  for (const result of results) say(formatted(from, result));
  const failures = [];
  let missed = false;
  if (mustFail.length > 0) {
    say('== must-fail (gate self-test) ==');
    mustFail.forEach((scenario, i) => {
      const isMissed = !isCaught(from, caught[i], limitsFor(given, scenario));
      missed ||= isMissed;
      say(`${isMissed ? 'MISSED ' : 'CAUGHT '}${formatted(from, caught[i])}`);
    });
  }
  say(line);
  let doubted = false;
  scenarios.forEach((scenario, i) => {
    const { pass, reasons } = judged(from, results[i], limitsFor(given, scenario));
    doubted ||= results[i].doubts?.length > 0;
    say(`  ${pass ? 'PASS' : 'FAIL'}  ${scenario.name}`);
    for (const why of reasons) say(`       ${why}`);
    if (!pass) failures.push(scenario.name);
  });
  say(line);
  if (missed) failures.push('must-fail scenario was not caught');
  const code = doubted ? 2 : failures.length > 0 ? 1 : 0;
  if (code !== 0) {
    say(`ZERO-GC GATE: FAIL — ${failures.join('; ')}`);
  } else if (scenarios.length === 0) {
    say('ZERO-GC GATE: PASS — detector only (allowEmpty, 0 scenarios gated).');
  } else {
    say(`ZERO-GC GATE: PASS — ${scenarios.length}/${scenarios.length} scenarios.`);
  }
  return { passed: code === 0, code, results };
}
