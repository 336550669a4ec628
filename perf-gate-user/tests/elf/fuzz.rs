//! Random damage to a complete file: no panic, no hang, little memory.
//!
//! Deterministic; `PERF_GATE_FUZZ_RUNS` sets how many, `PERF_GATE_FUZZ_SEED` where to begin.

use crate::synthetic;
use perf_gate::{
    elf::Image,
    v8::{Plan, locate},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }
}

/// Values at which arithmetic and comparisons turn over.
const EDGES: [u64; 14] = [
    0,
    1,
    7,
    24,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX - 1,
    u64::MAX,
];

fn damage(bytes: &mut Vec<u8>, random: &mut Random, headers: &[(usize, usize)]) {
    for _ in 0..=random.below(4) {
        // Half of the hits on what is structure, half anywhere.
        let (from, len) = if random.next().is_multiple_of(2) {
            headers[random.below(headers.len())]
        } else {
            (0, bytes.len())
        };
        let at = (from + random.below(len)).min(bytes.len() - 1);
        let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
        let value = match random.below(4) {
            0 => random.next(),
            1 => bytes.len() as u64 + random.next() % 64 - 32,
            2 => 1 << random.below(64),
            _ => EDGES[random.below(EDGES.len())],
        };
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
    if random.next().is_multiple_of(16) {
        bytes.truncate(random.below(bytes.len()).max(1));
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn damaged_files_never_panic_hang_or_bloat() {
    let runs = number("PERF_GATE_FUZZ_RUNS", 20_000);
    let seed = number("PERF_GATE_FUZZ_SEED", 1);
    let good = synthetic::node();
    let word =
        |at: usize| u64::from_le_bytes(good[at..at + 8].try_into().expect("8 bytes")) as usize;
    let sections = word(40);
    let dynamic = word(64 + 2 * 56 + 8);
    let headers = [
        (0, 64),
        (64, 3 * 56),
        (sections, good.len() - sections),
        (dynamic, 96),
    ];
    let file = synthetic::file(&good);
    let (mut opened, mut resolved, mut longest) = (0u64, 0u64, Duration::ZERO);
    for run in 0..runs {
        let mut random = Random((seed + run).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut bytes = good.clone();
        damage(&mut bytes, &mut random, &headers);
        synthetic::refill(&file, &bytes);
        let start = Instant::now();
        if let Ok(image) = Image::from_file(file.try_clone().expect("a descriptor"), "fuzzed") {
            opened += 1;
            let mut sum = usize::from(locate::may_need(&image));
            if let Ok(Some(plan)) = Plan::resolve(&image) {
                resolved += 1;
                for point in &plan.points {
                    assert!(image.is_code(point.offset), "run {run}: {point:?}");
                }
            }
            if run.is_multiple_of(64) {
                let root = Path::new("/");
                sum += locate::libraries(&image, Path::new("/a/b"), root, None, &locate::V8_NAMES)
                    .len();
            }
            assert!(sum < 100, "run {run}: {sum} libraries");
        }
        let took = start.elapsed();
        longest = longest.max(took);
        assert!(took < Duration::from_secs(5), "run {run} took {took:?}");
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("own status");
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .expect("own peak");
    println!(
        "{runs} runs from seed {seed}: {opened} opened, {resolved} resolved, longest {longest:?}, peak {peak} kB"
    );
    assert!(
        resolved > runs / 20,
        "the damage is too coarse to test anything"
    );
    assert!(peak < 64 << 10, "peak memory {peak} kB");
}
