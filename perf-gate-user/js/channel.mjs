// Questions to perf-gate, which runs the program, and its answers: a line of JSON each way, over pipes
// in the folder of the marker file. Everything is synchronous, and nothing of it happens in a window.
// What is used is taken hold of at import: a program under test may delete or freeze what it likes.
import { closeSync, constants, existsSync, futimesSync, openSync, readSync, writeFileSync, writeSync } from 'node:fs';

const { parse, stringify } = JSON;
const { isFinite } = Number;
const { wait } = Atomics;
const { floor, random } = Math;
const decoder = new TextDecoder();
const decode = decoder.decode.bind(decoder);
const cell = new Int32Array(new SharedArrayBuffer(4));
const sleep = (ms) => wait(cell, 0, 0, ms);

const VERSION = 1;
const HELLO = 2;
const ASK = 3;
const BEGIN = 0;
const END = 1;
const CALIBRATIONS = 8;
// What a pipe takes in one piece.
const ATOMIC = 4096;
const PATIENCE_MS = 10_000;

export const HOW = 'run it as: sudo perf-gate watch -- node --test FILE (or: sudo perf-gate gate FILE)';

// JSON has no NaN.
const plain = (key, value) => (typeof value === 'number' && !isFinite(value) ? { $n: `${value}` } : value);

const errnoOf = (error) => error?.code;

class Channel {
  #marker;
  #token;
  #questions;
  #answers;
  #dir;
  #buffer = new Uint8Array(1 << 16);

  constructor(variable) {
    const colon = variable.lastIndexOf(':');
    const path = variable.slice(0, colon);
    this.#dir = path.slice(0, path.lastIndexOf('/'));
    this.#marker = openSync(path, 'r+');
    futimesSync(this.#marker, HELLO, +variable.slice(colon + 1));
    this.#token = 1 + floor(random() * 2 ** 26);
    this.#questions = openSync(`${this.#dir}/ask`, constants.O_WRONLY | constants.O_NONBLOCK);
    this.#mark();
    // Empty windows: the least of them is the marker's own cost.
    for (let i = 0; i < CALIBRATIONS; i++) {
      futimesSync(this.#marker, BEGIN, 0);
      futimesSync(this.#marker, END, 0);
    }
    this.#write(stringify({ token: this.#token, op: 'hello', v: VERSION }));
    const answers = `${this.#dir}/answer-${this.#token}`;
    for (let waited = 0; !existsSync(answers); waited++) {
      if (waited > PATIENCE_MS) throw new Error('no answer');
      sleep(1);
    }
    this.#answers = openSync(answers, 'r');
    this.#read();
  }

  // Closes the isolate's books and says whose question comes next.
  #mark() {
    futimesSync(this.#marker, (this.#token << 2) | ASK, 0);
  }

  #write(text) {
    let line = `${text}\n`;
    if (line.length * 3 > ATOMIC) {
      writeFileSync(`${this.#dir}/question-${this.#token}`, text, { mode: 0o600 });
      line = `${stringify({ token: this.#token, op: 'long' })}\n`;
    }
    for (let waited = 0; ; waited++) {
      try {
        writeSync(this.#questions, line);
        return;
      } catch (error) {
        // Others fill the pipe.
        if (errnoOf(error) !== 'EAGAIN' || waited > PATIENCE_MS) throw error;
        sleep(1);
      }
    }
  }

  #read() {
    let text = '';
    while (!text.endsWith('\n')) {
      const n = readSync(this.#answers, this.#buffer, 0, this.#buffer.length, null);
      if (n === 0) throw new Error('perf-gate: it has ended, so nothing is measured any more');
      text += decode(this.#buffer.subarray(0, n), { stream: true });
    }
    const answer = parse(text);
    if (answer !== null && answer.error !== undefined) throw new Error(`perf-gate: ${answer.error}`);
    return answer;
  }

  ask(question) {
    this.#mark();
    this.#write(stringify({ token: this.#token, ...question }, plain));
    return this.#read();
  }

  /** Calls `scenario.hot(state, n)` in a window of its own. Nothing but the call may be in it. */
  call(scenario, state, n, id) {
    futimesSync(this.#marker, this.#begin(id), n);
    const promise = scenario.hot(state, n);
    if (typeof promise?.then === 'function') return this.#later(promise);
    futimesSync(this.#marker, END, 0);
    return undefined;
  }

  async #later(promise) {
    try {
      await promise;
    } finally {
      futimesSync(this.#marker, END, 0);
    }
    return true;
  }

  #begin(id) {
    return id * 4 + BEGIN;
  }

  /** A window around what `turn` waits for. */
  async around(id, turn) {
    futimesSync(this.#marker, this.#begin(id), 0);
    try {
      await turn();
    } finally {
      this.end();
    }
  }

  end() {
    futimesSync(this.#marker, END, 0);
  }

  close() {
    closeSync(this.#questions);
    closeSync(this.#answers);
    closeSync(this.#marker);
  }
}

let connected;

/** The channel to perf-gate, or undefined where nothing measures the program. */
export function channel() {
  if (connected === undefined) {
    const variable = process.env.PERF_GATE_MARK;
    if (variable === undefined) return undefined;
    try {
      connected = new Channel(variable);
    } catch (error) {
      // A folder or pipe that is not there: perf-gate has ended, or is not the one around us.
      const code = errnoOf(error);
      if (code === 'ENOENT' || code === 'ENXIO') return undefined;
      throw error;
    }
  }
  return connected;
}

/** The channel, or an error that says how to get one. */
export function required(where) {
  const found = channel();
  if (found === undefined) throw new Error(`perf-gate: ${where}: nothing measures this program; ${HOW}`);
  return found;
}
