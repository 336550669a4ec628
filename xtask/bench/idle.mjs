// Idle heap: arithmetic alone, no object after start-up, hence nothing for a heap probe to fire on.
const rounds = Number(process.argv[2] ?? 600_000_000);
let x = 1;
for (let i = 0; i < rounds; i++) x = (Math.imul(x, 1103515245) + 12345) | 0;
if (x === 1) console.log(x);
