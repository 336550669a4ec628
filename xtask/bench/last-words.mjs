// Loaded with --import into every run: at exit, writes what the program itself cost into $LAST_WORDS.
// Start-up of an observer outside is thereby left out; what it costs while the program runs is in.
// A program that knows better what its work alone cost says so in globalThis.work.
import { writeFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';

process.on('exit', () => {
  const cpu = process.cpuUsage();
  const words = {
    wall_ms: performance.now(), // since this process started
    cpu_ms: (cpu.user + cpu.system) / 1000,
    ...globalThis.work,
    exit_ns: String(process.hrtime.bigint()), // CLOCK_MONOTONIC, which the caller reads too
  };
  writeFileSync(process.env.LAST_WORDS, JSON.stringify(words));
});
