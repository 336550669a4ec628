//! Objects that compiled code makes in old space at once, because their like has been seen to survive.

use crate::{ARRAY, ELEMENTS, OBJECT, WORD, least, sound};
use perf_gate_tests::{Node, Watch, fixture, on_each_node};

const SIZES: [u64; 2] = [OBJECT + 4 * WORD, ARRAY + ELEMENTS + 3 * WORD];

fn pretenured(node: &Node) {
    let mut runs = Vec::new();
    let mut wrong = Vec::new();
    // As with all that is compiled: until there is a window of each without compiling in it.
    for _ in 0..4 {
        let run = Watch::new()
            .run([
                node.path.as_os_str(),
                "--min-semi-space-size=1".as_ref(),
                "--max-semi-space-size=1".as_ref(),
                fixture("bytes/pretenured.mjs").as_os_str(),
            ])
            .expect_code(0);
        sound(&run);
        runs.push(run);
        wrong.clear();
        for (kind, size) in SIZES.into_iter().enumerate() {
            let (n, low) = least(&runs, 0, kind, true);
            let (m, high) = least(&runs, 0, kind, false);
            let slope = (high as f64 - low as f64) / (m - n) as f64;
            let old = runs
                .iter()
                .flat_map(|r| r.of("window"))
                .filter(|w| w["id"] == kind as u64 + 1 && w["scale"] == m)
                .filter_map(|w| w["allocated"]["old"].as_u64())
                .max();
            if (slope - size as f64).abs() > 0.001 || old < Some(m * size) {
                wrong.push(format!("{slope} B, truth is {size}; in old space {old:?}"));
            }
        }
        if wrong.is_empty() {
            break;
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

on_each_node!(pretenured);
