//! How one scenario is measured, as a state machine without I/O: in goes what the last step showed,
//! out comes the next step.
//!
//! Two passes, at N and at k·N, each with a state of its own from `setup`. A pass warms up by many
//! calls until windows agree, then opens windows until the least reading was seen twice, then measures
//! what stays alive and what is left to run later in a call of its own, so that no collection that
//! the harness asks for lies inside a byte window. Foreign work can only add to a window, so the least
//! of them is the steady state.
//!
//! A function may agree with itself in a tier that still boxes numbers, above all when the compiler's
//! thread gets no core. So a reading that would fail is not the last word: both passes are
//! run again, after a longer warm-up and a pause for the compiler, until a slope repeats itself, at
//! most [`RETRIES`] times and not for a scenario that takes seconds a call.
//!
//! What hot() leaves to run later is told by what keeps the event loop alive. Before the call that is
//! looked at, the work of all the calls before it is waited for, so that what runs after it is its own.

use super::{
    outcome::{Outcome, Pass, Win},
    protocol::{Seen, Spec, Step},
};
use perf_gate_ebpf::OWN_WINDOWS;
use std::time::Duration;

/// Calls of a warm-up are of this many iterations at most: a call that is long enough to be replaced
/// while it runs leaves a function that was compiled for its one loop.
const CHUNK: u64 = 2048;
/// Iterations of a warm-up, unless [`WARM_TIME`] is over before.
const WARM_OPS: u64 = 400_000;
const WARM_TIME: Duration = Duration::from_millis(40);
/// Chunks in one step: one question each would cost more than the calls.
const CHUNKS: u64 = 50;
/// Calls at full scale until this many in a row agree, at most [`SETTLING`] of them or [`WARM_TIME`].
const AGREEING: usize = 3;
const SETTLING: usize = 12;
/// Windows of a scale: until the least was read twice, and no more than so many or so long.
const WINDOWS: usize = 8;
const WINDOWS_TIME: Duration = Duration::from_millis(400);
/// How often a reading that would fail is looked into again, if all calls so far took no longer than
/// that, and unless a slope is as it was before but for this share of it.
const RETRIES: u32 = 2;
const RETRY_TIME: Duration = Duration::from_secs(1);
const SAME_SLOPE: f64 = 0.01;
/// For the compiler's thread, before a retry.
const COMPILER_PAUSE_MS: u64 = 60;
/// Calls by which what stays alive is measured; the least counts.
const RETAINING: usize = 3;
/// Bytes that may come to life or die in a call without being the scenario's: feedback, inline
/// caches, a table of V8's own. Measured: 0 to 2 KiB on V8 10 to 14.
pub const RETAINED_SLACK_BYTES: f64 = 4096.0;
/// How long what hot() left to run later may take.
pub const LEFT_BEHIND_MS: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Setup,
    Ambient,
    Pause,
    Chunks,
    Settling,
    BigCall,
    Windows,
    Drain,
    Before,
    Bare,
    Flush,
    After,
    Teardown,
    Done,
}

/// The measurement of one scenario.
#[derive(Debug)]
pub struct Measuring {
    pub spec: Spec,
    at: At,
    /// Whether the pass at k·N is on.
    high: bool,
    retry: u32,
    lo: Pass,
    hi: Pass,
    /// Of the pass that is on.
    warmed_ops: u64,
    warmed: Duration,
    last: Vec<Win>,
    live_before: i64,
    external_before: i64,
    /// What kept the event loop alive after setup(), and before the call whose leavings are looked at.
    resources_at_setup: Option<u64>,
    resources_before: Option<u64>,
    /// In calls that were windows, over all attempts.
    spent: Duration,
    /// What the attempt before this one read.
    slope_before: Option<f64>,
    next_id: u64,
    pub failed: Option<(String, String)>,
    pub doubts: Vec<String>,
    lost_at_start: Option<u64>,
}

impl Measuring {
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self {
            spec,
            at: At::Setup,
            high: false,
            retry: 0,
            lo: Pass::default(),
            hi: Pass::default(),
            warmed_ops: 0,
            warmed: Duration::ZERO,
            last: Vec::new(),
            live_before: 0,
            external_before: 0,
            resources_at_setup: None,
            resources_before: None,
            spent: Duration::ZERO,
            slope_before: None,
            next_id: 0,
            failed: None,
            doubts: Vec::new(),
            lost_at_start: None,
        }
    }

    /// Iterations of a call at the scale of the pass that is on.
    fn scale(&self) -> u64 {
        if self.high {
            self.spec.n.saturating_mul(self.spec.k)
        } else {
            self.spec.n
        }
    }

    fn pass(&mut self) -> &mut Pass {
        if self.high {
            &mut self.hi
        } else {
            &mut self.lo
        }
    }

    fn id(&mut self) -> u64 {
        // Ids only have to tell the harness's windows from the program's and stay small integers.
        self.next_id = (self.next_id + 1) % (OWN_WINDOWS - 1);
        OWN_WINDOWS + self.next_id
    }

    fn call(&mut self, n: u64, times: u64, stats: bool) -> Step {
        Step::Call {
            id: self.id(),
            n,
            times,
            stats,
        }
    }

    /// The first step.
    pub fn begin(&mut self) -> Step {
        self.at = At::Setup;
        Step::Setup
    }

    /// A hook has thrown: what is left is to tear down, once.
    pub fn fail(&mut self, stage: String, error: String, torn: bool) -> Step {
        self.failed.get_or_insert((stage, error));
        if torn {
            self.at = At::Done;
            Step::Failed
        } else {
            self.tear_down()
        }
    }

    /// The step after the one that showed `seen`.
    pub fn next(&mut self, seen: &Seen) -> Step {
        self.note(seen);
        match self.at {
            At::Setup => {
                self.warmed_ops = 0;
                self.warmed = Duration::ZERO;
                self.last.clear();
                self.resources_at_setup = seen.resources;
                *self.pass() = Pass::default();
                self.at = At::Ambient;
                self.flush(None)
            }
            At::Ambient => {
                self.pass().ambient = seen.windows.first().map_or(0, Win::bytes);
                if self.retry > 0 {
                    self.at = At::Pause;
                    return Step::Sleep {
                        ms: COMPILER_PAUSE_MS * u64::from(self.retry),
                    };
                }
                self.chunks()
            }
            At::Pause => self.chunks(),
            At::Chunks => {
                self.warm(seen);
                let ops = WARM_OPS << (2 * self.retry);
                let time = WARM_TIME * (1 << (2 * self.retry));
                if self.warmed_ops < ops && self.warmed < time {
                    return self.chunks();
                }
                let each = self.warmed.as_nanos() as u64 / self.warmed_ops.max(1);
                self.warmed = Duration::ZERO;
                self.at = At::Settling;
                if Duration::from_nanos(each.saturating_mul(self.spec.n)) > WINDOWS_TIME {
                    // The chunks have to do.
                    return self.windows();
                }
                self.call(self.spec.n, 1, false)
            }
            At::Settling => {
                self.warm(seen);
                if !self.agree() && self.last.len() < SETTLING && self.warmed < WARM_TIME {
                    return self.call(self.spec.n, 1, false);
                }
                let last = self.last.last().map_or(0, |w| w.wall_ns);
                let big = Duration::from_nanos(last.saturating_mul(self.spec.k));
                if self.high && big < WINDOWS_TIME {
                    self.at = At::BigCall;
                    return self.call(self.scale(), 1, false);
                }
                self.windows()
            }
            At::BigCall => self.windows(),
            At::Windows => {
                self.pass().take(seen);
                if self.more_windows() {
                    return self.call(self.scale(), 1, true);
                }
                if !self.spec.retains {
                    return self.tear_down();
                }
                if grown(seen.resources, self.resources_at_setup) {
                    self.at = At::Drain;
                    return self.flush(self.resources_at_setup);
                }
                self.settle(At::Before)
            }
            At::Drain => self.settle(At::Before),
            At::Before => {
                self.resources_before = seen.resources;
                self.bare(seen)
            }
            At::Bare => {
                self.at = At::Flush;
                let grown = grown(seen.resources, self.resources_before);
                self.pass().left_behind |= grown;
                self.flush(self.resources_before.filter(|_| grown))
            }
            At::Flush => {
                let deferred = seen.windows.first().map_or(0, Win::bytes);
                let unfinished = grown(seen.resources, self.resources_before);
                let pass = self.pass();
                pass.deferred.push(deferred);
                pass.unfinished |= unfinished;
                self.settle(At::After)
            }
            At::After => {
                let retained = seen.live_bytes - self.live_before;
                let external = seen.external_live_bytes - self.external_before;
                self.pass().retained.push((retained, external));
                if self.suspect() && self.pass().retained.len() < RETAINING && self.quick() {
                    return self.bare(seen);
                }
                self.tear_down()
            }
            At::Teardown => self.after_pass(),
            At::Done => Step::Failed,
        }
    }

    fn after_pass(&mut self) -> Step {
        if self.failed.is_some() {
            self.at = At::Done;
            return Step::Failed;
        }
        if !self.high {
            self.high = true;
            self.at = At::Setup;
            return Step::Setup;
        }
        if self.again() {
            self.retry += 1;
            self.high = false;
            self.at = At::Setup;
            return Step::Setup;
        }
        self.at = At::Done;
        Step::Done
    }

    /// Whether the figures are worth another look.
    fn again(&mut self) -> bool {
        let Some(expected) = self.spec.expected else {
            return false;
        };
        let slope = self.outcome().bytes_per_op;
        let before = std::mem::replace(&mut self.slope_before, slope);
        let repeats = before
            .zip(slope)
            .is_some_and(|(was, is)| (was - is).abs() <= SAME_SLOPE * is.abs());
        let as_expected = slope.is_some_and(|x| (x - expected).abs() <= 1e-9);
        !as_expected && !repeats && self.retry < RETRIES && self.spent < RETRY_TIME
    }

    /// What was found.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome::of(&self.spec, &self.lo, &self.hi, &self.doubts)
    }

    fn note(&mut self, seen: &Seen) {
        let start = *self.lost_at_start.get_or_insert(seen.lost);
        if seen.lost > start {
            let why = format!("{} hits of probes were lost meanwhile", seen.lost - start);
            self.doubts.retain(|d| !d.ends_with("were lost meanwhile"));
            self.doubts.push(why);
        }
        for w in &seen.windows {
            self.spent += Duration::from_nanos(w.wall_ns);
        }
        for why in &seen.doubts {
            if !self.doubts.contains(why) {
                self.doubts.push(why.clone());
            }
        }
    }

    fn chunks(&mut self) -> Step {
        self.at = At::Chunks;
        let n = self.spec.n.min(CHUNK);
        // One first: it may be slow.
        let times = if self.warmed_ops == 0 { 1 } else { CHUNKS };
        let each = self.warmed.as_nanos() as u64 / (self.warmed_ops / n).max(1);
        let room = (WARM_TIME.as_nanos() as u64)
            .checked_div(each)
            .unwrap_or(CHUNKS);
        self.call(n, times.min(room.max(1)), false)
    }

    fn warm(&mut self, seen: &Seen) {
        for w in &seen.windows {
            self.warmed_ops += w.scale;
            self.warmed += Duration::from_nanos(w.wall_ns);
        }
        if self.at == At::Settling {
            self.last.extend(seen.windows.iter().cloned());
        }
    }

    fn agree(&self) -> bool {
        let Some(tail) = self.last.len().checked_sub(AGREEING) else {
            return false;
        };
        let mut bytes = self.last[tail..].iter().map(Win::total);
        let first = bytes.next();
        bytes.all(|b| Some(b) == first)
    }

    fn flush(&mut self, until_resources: Option<u64>) -> Step {
        Step::Flush {
            id: self.id(),
            ms: self.spec.flush_ms,
            until_resources,
            within_ms: LEFT_BEHIND_MS,
        }
    }

    fn settle(&mut self, at: At) -> Step {
        self.at = at;
        Step::Settle { times: 2 }
    }

    fn bare(&mut self, seen: &Seen) -> Step {
        self.live_before = seen.live_bytes;
        self.external_before = seen.external_live_bytes;
        self.at = At::Bare;
        Step::Bare { n: self.scale() }
    }

    fn tear_down(&mut self) -> Step {
        self.at = At::Teardown;
        Step::Teardown
    }

    /// A call takes no time to speak of.
    fn quick(&mut self) -> bool {
        let least = self.pass().windows.iter().map(|w| w.wall_ns).min();
        Duration::from_nanos(least.unwrap_or(0)) < WINDOWS_TIME
    }

    fn windows(&mut self) -> Step {
        self.at = At::Windows;
        self.call(self.scale(), 1, true)
    }

    fn more_windows(&mut self) -> bool {
        let asked = self.spec.repeat.unwrap_or(0) as usize;
        let seen = &self.pass().windows;
        let least = seen.iter().map(Win::total).min();
        let twice = seen.iter().filter(|w| Some(w.total()) == least).count() >= 2;
        let time = Duration::from_nanos(seen.iter().map(|w| w.wall_ns).sum());
        let enough = twice || time > WINDOWS_TIME || seen.len() >= WINDOWS;
        seen.len() < asked || !enough
    }

    /// Whether what stays alive needs another look.
    fn suspect(&mut self) -> bool {
        let pass = self.pass();
        let (live, external) = pass.least_retained();
        live as f64 > RETAINED_SLACK_BYTES || external > 0 || pass.deferred_beyond_slack() > 0
    }
}

/// More keeps the event loop alive than did.
fn grown(now: Option<u64>, before: Option<u64>) -> bool {
    before.is_some() && now > before
}

#[cfg(test)]
mod tests;
