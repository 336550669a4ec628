// Allocation-heavy: nearly all time goes into short-lived objects and the collections they cause.
const rounds = Number(process.argv[2] ?? 800_000);
let sum = 0;
for (let i = 0; i < rounds; i++) {
  const points = new Array(200);
  for (let n = 0; n < 200; n++) points[n] = { x: n, y: i, next: null };
  sum += points[i % 200].x;
}
if (sum < 0) console.log(sum);
