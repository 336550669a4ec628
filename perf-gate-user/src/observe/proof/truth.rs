//! What each step of the control must have done to the figures. Pure: two snapshots and the numbers
//! the step announced go in, a verdict for its lanes comes out.

use crate::model::Lane;
use perf_gate_ebpf::{Iso, MARK_COMPACT, MINOR_MARK_SWEEP, Proc, SCAVENGE, Window};

/// V8's `GarbageCollectionReason::kTesting`, which `gc()` gives.
const REASON_TESTING: usize = 21;
/// `kAllocationFailure`.
const REASON_ALLOCATION_FAILURE: usize = 1;

/// Bytes that may come to life or die beside the control's own objects, allocation areas included.
const LIVE_SLACK: u64 = 262_144;

/// The figures of the control process at one moment.
#[derive(Clone)]
pub struct Snapshot {
    pub proc: Proc,
    /// In order of birth; the first is the main isolate.
    pub isos: Vec<Iso>,
    pub windows: Vec<Window>,
}

impl Snapshot {
    fn main(&self) -> Option<&Iso> {
        self.isos.first()
    }

    /// The least that windows of this id read. Tiering up adds to some of them.
    fn least(&self, id: u64) -> u64 {
        self.windows
            .iter()
            .filter(|w| w.id == id && w.closed != 0)
            .map(|w| w.figures.spaces.iter().sum::<u64>() + w.figures.large_bytes)
            .min()
            .unwrap_or(0)
    }
}

/// One lane's outcome in one step.
pub type Outcome = (Lane, Result<(), String>);

fn expect(lane: Lane, what: &str, got: u64, want: u64) -> Outcome {
    let verdict = if got == want {
        Ok(())
    } else {
        Err(format!("control: {what} read {got}, truth is {want}"))
    };
    (lane, verdict)
}

fn at_least(lane: Lane, what: &str, got: u64, want: u64) -> Outcome {
    let verdict = if got >= want {
        Ok(())
    } else {
        Err(format!(
            "control: {what} read {got}, truth is at least {want}"
        ))
    };
    (lane, verdict)
}

/// Judges one step. `minor_kind` is the collector that a young collection uses in this control run.
/// `old_space` is V8's id of the old space.
#[must_use]
pub fn judge(
    step: &str,
    truth: &[u64],
    before: &Snapshot,
    after: &Snapshot,
    minor_kind: usize,
    old_space: usize,
) -> Vec<Outcome> {
    let (Some(b), Some(a)) = (before.main(), after.main()) else {
        return vec![(
            Lane::Isolate,
            Err("control: its main isolate was not seen".into()),
        )];
    };
    let n = truth.first().copied().unwrap_or(0);
    let young_lane = if minor_kind == MINOR_MARK_SWEEP {
        Lane::Minor
    } else {
        Lane::Gc
    };
    let forced = |k: usize| a.forced[k] - b.forced[k];
    let testing = |k: usize| a.reasons[k][REASON_TESTING] - b.reasons[k][REASON_TESTING];
    match step {
        "minor" => vec![
            expect(
                young_lane,
                "young collections",
                a.gcs[minor_kind] - b.gcs[minor_kind],
                n,
            ),
            expect(
                young_lane,
                "forced young collections",
                forced(minor_kind),
                n,
            ),
            expect(young_lane, "reason `testing`", testing(minor_kind), n),
            expect(Lane::Pause, "pauses", a.pauses - b.pauses, n),
        ],
        "major" => vec![
            expect(
                Lane::Gc,
                "mark-compacts",
                a.gcs[MARK_COMPACT] - b.gcs[MARK_COMPACT],
                n,
            ),
            expect(Lane::Gc, "forced mark-compacts", forced(MARK_COMPACT), n),
            expect(Lane::Gc, "reason `testing`", testing(MARK_COMPACT), n),
            expect(Lane::Pause, "pauses", a.pauses - b.pauses, n),
            at_least(
                Lane::Pause,
                "pause time in ns",
                a.pause_ns_total - b.pause_ns_total,
                n * 1000,
            ),
        ],
        "young" => vec![at_least(
            Lane::Gc,
            "scavenges for `allocation failure`",
            a.reasons[SCAVENGE][REASON_ALLOCATION_FAILURE]
                - b.reasons[SCAVENGE][REASON_ALLOCATION_FAILURE],
            1,
        )],
        "windows" => {
            let closed = after.windows.iter().filter(|w| w.closed != 0).count();
            let slope = after.least(2).saturating_sub(after.least(1));
            vec![
                expect(Lane::Window, "closed windows", closed as u64, n),
                expect(Lane::Window, "markers out of order", a.bad_markers, 0),
                expect(
                    Lane::Bytes,
                    "bytes of 7000 substrings",
                    slope,
                    truth.get(1).copied().unwrap_or(0),
                ),
                expect(Lane::Bytes, "breaks of allocation areas", a.set.breaks, 0),
            ]
        }
        "buffers" => vec![expect(
            Lane::External,
            "bytes of array buffers allocated",
            after.proc.ext_alloc_bytes - before.proc.ext_alloc_bytes,
            n,
        )],
        "buffers-freed" => vec![expect(
            Lane::External,
            "bytes of array buffers freed",
            after.proc.ext_free_bytes - before.proc.ext_free_bytes,
            n,
        )],
        "strings" => vec![expect(
            Lane::Strings,
            "bytes of external strings allocated",
            after.proc.string_alloc_bytes - before.proc.string_alloc_bytes,
            n,
        )],
        "strings-freed" => vec![expect(
            Lane::Strings,
            "bytes of external strings freed",
            after.proc.string_free_bytes - before.proc.string_free_bytes,
            n,
        )],
        "buffer-refused" => vec![expect(
            Lane::External,
            "bytes of a refused array buffer",
            after.proc.ext_alloc_bytes - before.proc.ext_alloc_bytes,
            n,
        )],
        "stores" => vec![expect(
            Lane::Store,
            "bytes of WebAssembly, resizable and growable memory",
            after.proc.store_alloc_bytes - before.proc.store_alloc_bytes,
            n,
        )],
        "large" => vec![
            expect(
                Lane::Large,
                "large objects",
                a.large_count - b.large_count,
                n,
            ),
            expect(
                Lane::Large,
                "bytes of large objects",
                a.large_bytes - b.large_bytes,
                truth.get(1).copied().unwrap_or(0),
            ),
        ],
        "live" => {
            let freed = b.live_bytes.saturating_sub(a.live_bytes);
            vec![
                at_least(
                    Lane::Live,
                    "bytes of dropped objects",
                    freed + LIVE_SLACK,
                    n,
                ),
                at_least(
                    Lane::Live,
                    "bytes of dropped objects, from above",
                    n + LIVE_SLACK,
                    freed,
                ),
            ]
        }
        "pages" => vec![at_least(
            Lane::Pages,
            "old-space pages",
            a.pages[old_space] - b.pages[old_space],
            n,
        )],
        "worker" => {
            let worker = after.isos.get(1);
            vec![
                expect(Lane::Isolate, "isolates", after.isos.len() as u64, 2),
                expect(
                    Lane::Isolate,
                    "mark-compacts of the worker's isolate",
                    worker.map_or(0, |w| w.forced[MARK_COMPACT]),
                    n,
                ),
                expect(
                    Lane::Isolate,
                    "ended isolates",
                    after.isos.iter().filter(|i| i.gone_ns != 0).count() as u64,
                    1,
                ),
            ]
        }
        "incremental" => vec![at_least(
            Lane::Incremental,
            "starts of incremental marking",
            a.incremental_starts - b.incremental_starts,
            1,
        )],
        _ => Vec::new(),
    }
}
