//! From windows to the figures of a scenario: least readings, slope and fixed part.

use super::{
    protocol::{Seen, Spec},
    steps::{LEFT_BEHIND_MS, RETAINED_SLACK_BYTES},
};
use perf_gate_ebpf::{MARK_COMPACT, MINOR_MARK_SWEEP, SCAVENGE, SPACES, Window};
use serde_json::{Map, Value, json};

/// One call's window, the marker's own bytes removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Win {
    pub id: u64,
    /// Iterations.
    pub scale: u64,
    pub spaces: [u64; SPACES],
    pub large_bytes: u64,
    pub large_count: u64,
    pub scavenges: u64,
    pub mark_compacts: u64,
    pub incremental_starts: u64,
    pub external_bytes: u64,
    pub breaks: u64,
    pub wall_ns: u64,
    /// Bytes of the process's other isolates around it.
    pub others_bytes: u64,
}

impl Win {
    #[must_use]
    pub fn of(w: &Window, marker: &[u64; SPACES], others_bytes: u64) -> Self {
        let f = &w.figures;
        let mut spaces = f.spaces;
        for (space, own) in spaces.iter_mut().zip(marker) {
            *space = space.saturating_sub(*own);
        }
        Self {
            id: w.id,
            scale: w.scale,
            spaces,
            large_bytes: f.large_bytes,
            large_count: f.large_count,
            scavenges: f.gcs[SCAVENGE] + f.gcs[MINOR_MARK_SWEEP],
            mark_compacts: f.gcs[MARK_COMPACT],
            incremental_starts: f.incremental_starts,
            external_bytes: f.ext_alloc_bytes,
            breaks: f.breaks,
            wall_ns: f.t_ns,
            others_bytes,
        }
    }

    /// Bytes that its own isolate allocated in V8's heap.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.spaces.iter().sum::<u64>() + self.large_bytes
    }

    /// The same with other isolates.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes() + self.others_bytes
    }
}

/// What one pass showed.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    pub windows: Vec<Win>,
    pub counters: Option<Map<String, Value>>,
    pub is_async: bool,
    /// Bytes while the event loop turned before hot() ever ran, and after calls of it.
    pub ambient: u64,
    pub deferred: Vec<u64>,
    /// Growth of live bytes and of live external bytes, for each call.
    pub retained: Vec<(i64, i64)>,
    /// Timers and the like were left when hot() had returned, and still when it was waited for.
    pub left_behind: bool,
    pub unfinished: bool,
}

impl Pass {
    pub(super) fn take(&mut self, seen: &Seen) {
        self.windows.extend(seen.windows.iter().cloned());
        self.is_async |= seen.is_async;
        if self.counters.is_none() {
            self.counters.clone_from(&seen.counters);
        }
    }

    pub(super) fn least_retained(&self) -> (i64, i64) {
        let live = self.retained.iter().map(|r| r.0).min();
        let external = self.retained.iter().map(|r| r.1).min();
        (live.unwrap_or(0), external.unwrap_or(0))
    }

    fn least_deferred(&self) -> u64 {
        self.deferred.iter().copied().min().unwrap_or(0)
    }

    /// Bytes that later work of a call came to, where it is more than goes on without any call.
    pub(super) fn deferred_beyond_slack(&self) -> u64 {
        let slack = DEFERRED_SLACK_BYTES + 2 * self.ambient;
        self.least_deferred().saturating_sub(slack)
    }

    fn least(&self, figure: impl Fn(&Win) -> u64) -> Option<u64> {
        self.windows.iter().map(figure).min()
    }

    /// The window with the least bytes: what it consists of goes together.
    fn steady(&self) -> Option<&Win> {
        self.windows.iter().min_by_key(|w| w.total())
    }
}

/// A scenario's figures. `None` could not be measured.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub name: String,
    pub n: u64,
    pub k: u64,
    pub lo: Scale,
    pub hi: Scale,
    /// Bytes per operation: the slope between the scales, other isolates included.
    pub bytes_per_op: Option<f64>,
    pub workers_per_op: Option<f64>,
    /// Bytes of a call that do not depend on its scale: the intercept.
    pub bytes_fixed: Option<f64>,
    pub retained_per_op: Option<f64>,
    pub deferred_per_op: Option<f64>,
    /// Slope by space.
    pub spaces: [f64; SPACES],
    pub is_async: bool,
    pub left_behind: bool,
    pub unfinished: bool,
    pub doubts: Vec<String>,
}

/// Figures at one scale; the least of its windows.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    pub scavenges: Option<u64>,
    pub mark_compacts: Option<u64>,
    pub old_gen: Option<u64>,
    pub bytes: Option<u64>,
    pub others: Option<u64>,
    pub large_bytes: Option<u64>,
    pub external_bytes: Option<u64>,
    pub retained: Option<i64>,
    pub external_retained: Option<i64>,
    pub deferred: Option<u64>,
    pub counters: Option<Map<String, Value>>,
    /// Bytes of every window, in order.
    pub readings: Vec<u64>,
    /// The least reading was read more than once.
    pub agreed: bool,
}

impl Scale {
    fn of(pass: &Pass) -> Self {
        let steady = pass.steady();
        let readings: Vec<u64> = pass.windows.iter().map(Win::total).collect();
        let least = readings.iter().min();
        let retained = (!pass.retained.is_empty()).then(|| pass.least_retained());
        Self {
            scavenges: pass.least(|w| w.scavenges),
            mark_compacts: pass.least(|w| w.mark_compacts),
            old_gen: pass.least(|w| w.mark_compacts + w.incremental_starts),
            bytes: steady.map(Win::total),
            others: steady.map(|w| w.others_bytes),
            large_bytes: pass.least(|w| w.large_bytes),
            external_bytes: pass.least(|w| w.external_bytes),
            retained: retained.map(|r| r.0),
            external_retained: retained.map(|r| r.1),
            deferred: (!pass.deferred.is_empty())
                .then(|| pass.least_deferred().saturating_sub(pass.ambient)),
            counters: pass.counters.clone(),
            agreed: readings.iter().filter(|r| Some(*r) == least).count() > 1,
            readings,
        }
    }
}

impl Outcome {
    #[must_use]
    pub fn of(spec: &Spec, lo: &Pass, hi: &Pass, doubts: &[String]) -> Self {
        let operations = (spec.n.saturating_mul(spec.k) - spec.n) as f64;
        let slope = |lo: Option<f64>, hi: Option<f64>| Some((hi? - lo?) / operations);
        let mut out = Self {
            name: spec.name.clone(),
            n: spec.n,
            k: spec.k,
            lo: Scale::of(lo),
            hi: Scale::of(hi),
            is_async: lo.is_async || hi.is_async,
            left_behind: lo.left_behind && hi.left_behind,
            unfinished: lo.unfinished && hi.unfinished,
            doubts: doubts.to_vec(),
            ..Self::default()
        };
        let float = |x: Option<u64>| x.map(|x| x as f64);
        out.bytes_per_op = slope(float(out.lo.bytes), float(out.hi.bytes));
        out.workers_per_op = slope(float(out.lo.others), float(out.hi.others));
        out.bytes_fixed = out
            .bytes_per_op
            .zip(out.lo.bytes)
            .map(|(slope, lo)| lo as f64 - slope * spec.n as f64);
        // What is within the slack says nothing, and what the low pass set free says nothing of the high.
        let retained = out.lo.retained.zip(out.hi.retained);
        out.retained_per_op = retained.map(|(lo, hi)| {
            let growth = (hi - lo.max(0)) as f64;
            if growth > RETAINED_SLACK_BYTES {
                growth / operations
            } else {
                0.0
            }
        });
        out.deferred_per_op = deferred(lo, hi).map(|bytes| bytes / operations);
        if let (Some(l), Some(h)) = (lo.steady(), hi.steady()) {
            for (id, slope) in out.spaces.iter_mut().enumerate() {
                *slope = (h.spaces[id] as f64 - l.spaces[id] as f64) / operations;
            }
        }
        if out.unfinished {
            out.doubts.push(format!(
                "hot() leaves work behind that is not done {LEFT_BEHIND_MS} ms later; what that allocates is not known"
            ));
        }
        let breaks: u64 = lo.windows.iter().chain(&hi.windows).map(|w| w.breaks).sum();
        if breaks != 0 {
            out.doubts.push(format!(
                "allocation areas were lost sight of {breaks} times"
            ));
        }
        out
    }

    /// The smallest thing that would have been seen: bytes, in how many operations.
    #[must_use]
    pub fn floor(&self) -> (u64, u64) {
        (SMALLEST_OBJECT, self.n.saturating_mul(self.k))
    }

    /// As JavaScript gets it and the record has it. `space` names V8's spaces.
    #[must_use]
    pub fn to_json(&self, node: Option<&str>, space: impl Fn(usize) -> String) -> Value {
        let kb = |bytes: Option<i64>| bytes.map(|b| b as f64 / 1024.0);
        let kb_of = |bytes: Option<u64>| bytes.map(|b| b as f64 / 1024.0);
        let mut by_space = Map::new();
        for (id, slope) in self.spaces.iter().enumerate() {
            if *slope != 0.0 {
                by_space.insert(space(id), json!(slope));
            }
        }
        let (floor_bytes, floor_ops) = self.floor();
        json!({
            "name": self.name,
            "N": self.n,
            "k": self.k,
            "minorLo": self.lo.scavenges,
            "minorHi": self.hi.scavenges,
            "majorLo": self.lo.mark_compacts,
            "majorHi": self.hi.mark_compacts,
            "oldGenLo": self.lo.old_gen,
            "oldGenHi": self.hi.old_gen,
            "retainedKB_lo": kb(self.lo.retained),
            "retainedKB_hi": kb(self.hi.retained),
            "arrayBuffersKB_lo": kb(self.lo.external_retained),
            "arrayBuffersKB_hi": kb(self.hi.external_retained),
            "counters_lo": self.lo.counters,
            "counters_hi": self.hi.counters,
            "retainedReliable": true,
            "source": "kernel",
            "node": node,
            "bytesLo": self.lo.bytes,
            "bytesHi": self.hi.bytes,
            "bytesPerOp": self.bytes_per_op,
            "bytesFixed": self.bytes_fixed,
            "bytesPerOpBySpace": by_space,
            "workersBytesPerOp": self.workers_per_op,
            "largeBytesLo": self.lo.large_bytes,
            "largeBytesHi": self.hi.large_bytes,
            "externalKB_lo": kb_of(self.lo.external_bytes),
            "externalKB_hi": kb_of(self.hi.external_bytes),
            "retainedBytesPerOp": self.retained_per_op,
            "deferredBytesPerOp": self.deferred_per_op,
            "leftBehind": self.left_behind,
            "async": self.is_async,
            "steady": self.lo.agreed && self.hi.agreed,
            "windowsLo": self.lo.readings,
            "windowsHi": self.hi.readings,
            "floorBytes": floor_bytes,
            "floorOperations": floor_ops,
            "doubts": self.doubts,
        })
    }
}

/// V8 has no object of fewer bytes on x86-64 without pointer compression but the one-word filler.
const SMALLEST_OBJECT: u64 = 16;

/// A turn of the event loop allocates a little by itself: timers' lists, promises of the harness.
/// Measured: 0 to 1.2 KiB on V8 10 to 14.
const DEFERRED_SLACK_BYTES: u64 = 4096;

/// Bytes that later work of a call at k·N costs more than one at N. The least of the one against the
/// most of the other: what runs by itself, such as an interval of the scenario's, comes and goes.
fn deferred(lo: &Pass, hi: &Pass) -> Option<f64> {
    hi.deferred.first()?;
    let most = *lo.deferred.iter().max()?;
    let beyond = hi.deferred_beyond_slack() > most;
    let growth = hi.least_deferred().saturating_sub(most) as f64;
    Some(if beyond { growth } else { 0.0 })
}
