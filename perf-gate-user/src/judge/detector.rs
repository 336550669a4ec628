//! Whether the detector works, by what it read of controls whose truth is known. Pure.
//!
//! Every clause is written as *not (x is good)*, so that a figure that is missing or no number fails
//! it. Margins are constants of this file: a budget of the user's can tighten one of them, never
//! loosen any. A control of perf-gate's own has an exact truth; one that the user put in its place is
//! held to what any such control must show.

use super::{
    scenario::{Figure, MAX_SCAVENGES},
    text::{fixed0, number, per_op},
};
use serde_json::{Map, Value};

/// Collections that the positive control forces at least at k·N, and how they must scale.
const FLOOR: f64 = 6.0;
const SCALE: f64 = 2.0;
/// Collections that the negative control may see at most.
const NEGATIVE_CEILING: f64 = 2.0;
/// KiB of ArrayBuffers that the large control keeps at least.
const LARGE_FLOOR_KB: f64 = 277.0;
/// `{x, y, z, w}`: map, properties, elements and four slots of 8 bytes (src/objects/js-objects.h).
pub const POSITIVE_BYTES_PER_OP: f64 = 56.0;
/// How far off a rate may read.
const RATE_SLACK: f64 = 0.01;
/// 13 buffers of 64 KiB in 1.6 million operations.
const LARGE_EXTERNAL_KB: f64 = 832.0;
/// `new Array(40000)`: a FixedArray of a header of 16 bytes and 8 a slot; 13 of them.
const LARGE_OBJECT_BYTES: f64 = 13.0 * (16.0 + 40_000.0 * 8.0);
/// One Symbol in 64 operations: map, hash and flags, description (src/objects/name.h), in old space.
pub const OLD_BYTES_PER_OP: f64 = 24.0 / 64.0;
/// One `{x, y, z, w}` kept in 64 operations, and its slot in an array that grows by half its size (and
/// 16) at a time: between 8 and 12 bytes, and less what slack it began with.
const RETAINED_BYTES_PER_OP: (f64, f64) = (56.0 / 64.0, 72.0 / 64.0);

struct Control<'a>(Option<&'a Value>);

impl Control<'_> {
    fn figure(&self, name: &str) -> f64 {
        let value = self.0.and_then(|r| r.get(name));
        Figure::of(value).number().unwrap_or(f64::NAN)
    }

    fn scale(&self) -> String {
        number(self.figure("k"))
    }

    fn of_space(&self, space: &str) -> f64 {
        let value = self
            .0
            .and_then(|r| r.get("bytesPerOpBySpace"))
            .and_then(|spaces| spaces.get(space));
        Figure::of(value).number().unwrap_or(f64::NAN)
    }
}

fn near(x: f64, truth: f64) -> bool {
    (x - truth).abs() <= RATE_SLACK
}

/// Why the detector cannot be trusted; `None`: it can.
#[must_use]
#[expect(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "what is no number is not good either"
)]
pub fn validate(
    controls: &Map<String, Value>,
    max_scavenges: Option<f64>,
    overridden: &[String],
) -> Option<String> {
    let control = |name: &str| Control(controls.get(name));
    let own = |name: &str| !overridden.iter().any(|o| o == name);
    for (name, result) in controls {
        let doubts = result.get("doubts").and_then(Value::as_array);
        if let Some(why) = doubts.and_then(|d| d.first()).and_then(Value::as_str) {
            return Some(format!("{name} control cannot be trusted: {why}"));
        }
    }

    let pos = control("positive");
    let (lo, hi) = (pos.figure("minorLo"), pos.figure("minorHi"));
    let k = pos.scale();
    if !(hi >= FLOOR) {
        let hi = number(hi);
        return Some(format!(
            "positive control forced {hi} scavenges at {k}N (need >=6)."
        ));
    }
    if lo > 0.0 && !(hi >= SCALE * lo) {
        return Some(format!(
            "positive control did not scale: {} at N, {} at {k}N (need >={}).",
            number(lo),
            number(hi),
            number(SCALE * lo)
        ));
    }
    let rate = pos.figure("bytesPerOp");
    if own("positive") && !near(rate, POSITIVE_BYTES_PER_OP) {
        return Some(format!(
            "positive control read {} B/op (truth: 56).",
            per_op(rate)
        ));
    }
    if !(rate > 0.0) {
        return Some(format!(
            "positive control read {} B/op: it must allocate.",
            per_op(rate)
        ));
    }
    let kept = pos.figure("retainedBytesPerOp");
    if !(kept <= RATE_SLACK) {
        return Some(format!(
            "positive control keeps {} B/op: what it allocates must die young.",
            per_op(kept)
        ));
    }

    let neg = control("negative");
    let k = neg.scale();
    let ceiling = max_scavenges.unwrap_or(MAX_SCAVENGES).min(NEGATIVE_CEILING);
    let hi = neg.figure("minorHi");
    if !(hi <= ceiling) {
        return Some(format!(
            "negative control forced {} scavenges (need <={}) -- noisy process, or a prior measurement poisoned it.",
            number(hi),
            number(ceiling)
        ));
    }
    let old = neg.figure("oldGenHi");
    if !(old <= 0.0) {
        return Some(format!(
            "negative control forced {} old-gen collections (need 0) -- noisy process, the oldgen lane cannot be trusted.",
            number(old)
        ));
    }
    let rate = neg.figure("bytesPerOp");
    if !(rate <= 0.0) {
        return Some(format!(
            "negative control read {} B/op at {k}N (need 0) -- noisy process, the bytes lane cannot be trusted.",
            per_op(rate)
        ));
    }

    let large = control("large");
    let k = large.scale();
    let kb = large.figure("arrayBuffersKB_hi");
    if !(kb >= LARGE_FLOOR_KB) {
        return Some(format!(
            "large control forced {}KB arrayBuffers at {k}N (need >=277KB) -- the external signal is blind.",
            fixed0(kb)
        ));
    }
    let kb = large.figure("externalKB_hi");
    if own("large") && !(kb >= LARGE_EXTERNAL_KB) {
        return Some(format!(
            "large control allocated {}KB off the heap at {k}N (truth: 832KB) -- the external lane is blind.",
            fixed0(kb)
        ));
    }

    let object = control("largeObject");
    let bytes = object.figure("largeBytesHi");
    if !(bytes >= LARGE_OBJECT_BYTES) {
        return Some(format!(
            "large-object control read {}B (truth: {}B) -- the large lane is blind.",
            number(bytes),
            number(LARGE_OBJECT_BYTES)
        ));
    }
    let rate = control("oldSpace").of_space("old");
    if !(near(rate, OLD_BYTES_PER_OP)) {
        return Some(format!(
            "old-space control read {} B/op in old space (truth: {}) -- bytes of old space cannot be trusted.",
            per_op(rate),
            per_op(OLD_BYTES_PER_OP)
        ));
    }
    let rate = control("worker").figure("workersBytesPerOp");
    if !near(rate, POSITIVE_BYTES_PER_OP) {
        return Some(format!(
            "worker control read {} B/op in worker isolates (truth: 56) -- other isolates cannot be seen.",
            per_op(rate)
        ));
    }
    let rate = control("retained").figure("retainedBytesPerOp");
    let (least, most) = RETAINED_BYTES_PER_OP;
    if !(rate >= least && rate <= most) {
        return Some(format!(
            "retained control read {} B/op (truth: {} to {}) -- the retained lane is blind.",
            per_op(rate),
            per_op(least),
            per_op(most)
        ));
    }
    None
}
