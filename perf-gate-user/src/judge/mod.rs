//! The only place that says pass or fail. Pure: plain data in, a verdict out.
//!
//! A budget is judged on the whole tree: collections and live external memory are summed over every
//! isolate of every process that runs V8, the pause is the longest single one, resident memory is
//! the largest peak of any one of them (peaks of different moments have no meaningful sum). A
//! budget needs the lanes that carry its figure. When one of them is unproven, lost something or is
//! blind in one of the processes, a figure under the limit proves nothing, and the verdict is *cannot
//! vouch* (2), which outweighs *failed* (1). A failed budget in turn outweighs the command's own exit
//! code, which decides when every budget is kept or none was set.

pub mod detector;
mod limit;
mod needs;
pub mod scenario;
pub mod text;

pub use limit::{LimitError, parse_count, parse_limit};

use crate::model::{End, Lane, Run, Totals};

/// Limits the user set; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Scavenges and minor mark-sweeps together: both collect the young generation.
    pub max_scavenges: Option<u64>,
    /// Mark-compacts and starts of incremental marking together.
    pub max_old_gen: Option<u64>,
    pub max_external_kb: Option<f64>,
    pub max_rss_kb: Option<f64>,
    pub max_pause_ms: Option<f64>,
    /// Bytes allocated in V8's heaps by the isolates' own threads.
    pub max_bytes: Option<u64>,
}

impl Budgets {
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// The detector cannot vouch for the run.
pub const CANNOT_VOUCH: u8 = 2;
const FAILED: u8 = 1;

/// What decided the exit code. A command may itself exit with 1 or 2, so the code alone is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// Doubts about the run: it cannot be vouched for.
    Detector,
    /// A budget that was not kept.
    Budgets,
    /// The command's own end.
    Command,
}

impl DecidedBy {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Detector => "detector",
            Self::Budgets => "budgets",
            Self::Command => "command",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True exactly when `code` is 0.
    pub pass: bool,
    /// What `watch` exits with.
    pub code: u8,
    pub decided_by: DecidedBy,
    /// Why it is not a pass.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// Turns the verdict into *cannot vouch*, for what is found out after judging.
    pub fn distrust(&mut self, why: String) {
        self.pass = false;
        self.code = CANNOT_VOUCH;
        self.decided_by = DecidedBy::Detector;
        self.reasons.push(why);
    }
}

#[must_use]
pub fn verdict(run: &Run, budgets: &Budgets) -> Verdict {
    let mut court = Court::default();
    if budgets.any() {
        court.untrusted.extend(run.doubts.iter().cloned());
        if run.v8_processes().next().is_none() {
            court.distrust("no process of the tree ran V8, so there is nothing to hold a budget against: does the command start node?".into());
        } else {
            court.hear(run, budgets);
        }
    }
    court.rule(run.end)
}

#[derive(Default)]
struct Court {
    untrusted: Vec<String>,
    failed: Vec<String>,
}

impl Court {
    fn distrust(&mut self, why: String) {
        if !self.untrusted.contains(&why) {
            self.untrusted.push(why);
        }
    }

    fn need(&mut self, run: &Run, budget: &str, lanes: &[Lane]) {
        for &lane in lanes {
            for why in needs::troubles(run, lane) {
                self.distrust(format!("{budget} cannot be judged: {why}"));
            }
        }
    }

    fn hear(&mut self, run: &Run, budgets: &Budgets) {
        let sum = Totals::of(run.v8_processes());
        if let Some(max) = budgets.max_scavenges {
            self.need(run, "--max-scavenges", &[Lane::Isolate, Lane::Gc]);
            if needs::minor_seen(run) {
                self.need(run, "--max-scavenges", &[Lane::Minor]);
            }
            let found = sum.kinds.scavenges + sum.kinds.minor_mark_sweeps;
            self.count("scavenges", "--max-scavenges", found, sum.unfinished, max);
        }
        if let Some(max) = budgets.max_old_gen {
            let lanes = [Lane::Isolate, Lane::Gc, Lane::Incremental];
            self.need(run, "--max-old-gen", &lanes);
            let found = sum.kinds.mark_compacts + sum.incremental_starts;
            let name = "old-generation collections and marking starts";
            self.count(name, "--max-old-gen", found, sum.unfinished, max);
        }
        if let Some(max) = budgets.max_bytes {
            self.bytes(run, max);
        }
        if let Some(max) = budgets.max_external_kb {
            self.external(run, max);
        }
        if let Some(max) = budgets.max_rss_kb {
            self.rss(run, max);
        }
        if let Some(max) = budgets.max_pause_ms {
            self.need(run, "--max-pause-ms", &[Lane::Isolate, Lane::Pause]);
            let found = sum.pause_ns_max as f64 / 1e6;
            if found > max {
                self.fail(format!("longest pause {found:.3} ms > max {max} ms"));
            }
        }
    }

    /// `cut` collections were running when their process ended: of unknown kind, so each may be one
    /// more than was counted.
    fn count(&mut self, what: &str, option: &str, found: u64, cut: u64, max: u64) {
        if found > max {
            self.fail(format!("{what} {found} > max {max}"));
        } else if found.saturating_add(cut) > max {
            self.distrust(format!("{option} cannot be judged: {cut} collections were cut off by the end of their process, and with them {what} may exceed {max}"));
        }
    }

    fn bytes(&mut self, run: &Run, max: u64) {
        self.need(
            run,
            "--max-bytes",
            &[Lane::Isolate, Lane::Bytes, Lane::Large],
        );
        let isolates = || run.v8_processes().flat_map(|p| &p.isolates);
        // What was seen is a lower bound where an end was not: enough to fail, not to pass.
        let seen: u64 = isolates().flat_map(|i| i.allocated_at_least.values()).sum();
        let open = isolates().filter(|i| i.allocated.is_none()).count();
        if seen > max {
            self.failed
                .push(format!("bytes allocated {seen} > max {max}"));
        } else if open > 0 {
            self.distrust(format!(
                "--max-bytes cannot be judged: the end of {open} isolates was not seen (killed?), so their last page is not counted; {seen} bytes were"
            ));
        }
    }

    fn external(&mut self, run: &Run, max: f64) {
        let option = "--max-external-kb";
        self.need(run, option, &Lane::EXTERNAL);
        let mut live = 0i64;
        for process in run.v8_processes() {
            match process.external.map(|e| e.live_bytes()) {
                Some(bytes) if bytes >= 0 => live = live.saturating_add(bytes),
                Some(_) => self.distrust(format!("{option} cannot be judged: process {} freed more external memory than it was seen to allocate", process.pid)),
                None => self.distrust(format!("{option} cannot be judged: external memory of process {} was not measured", process.pid)),
            }
        }
        let found = live as f64 / 1024.0;
        if found > max {
            self.fail(format!(
                "live external memory {found:.1} KiB > max {max} KiB"
            ));
        }
    }

    fn rss(&mut self, run: &Run, max: f64) {
        let mut largest = None;
        let mut doubt = None;
        for process in run.v8_processes() {
            let pid = process.pid;
            let peak = process.rss.peak_bytes;
            largest = largest.max(peak.map(|bytes| (bytes, pid)));
            // A sample before the end is a lower bound: it can prove a failure, not a pass.
            let trouble = match peak {
                Some(_) if process.rss.peak_exact => continue,
                Some(_) => "only a sample before its end is known",
                None => "nothing was measured",
            };
            doubt.get_or_insert_with(|| {
                format!("--max-rss-kb cannot be judged: of the peak of process {pid} {trouble}")
            });
        }
        let largest_kb = largest.map(|(bytes, pid)| (bytes as f64 / 1024.0, pid));
        match (largest_kb, doubt) {
            (Some((kb, pid)), _) if kb > max => {
                self.fail(format!(
                    "peak RSS {kb:.0} KiB > max {max} KiB (process {pid})"
                ));
            }
            (_, Some(why)) => self.distrust(why),
            _ => {}
        }
    }

    fn fail(&mut self, reason: String) {
        self.failed.push(reason);
    }

    fn rule(self, end: End) -> Verdict {
        let verdict = |code, decided_by, reasons| Verdict {
            pass: code == 0,
            code,
            decided_by,
            reasons,
        };
        let Self {
            mut untrusted,
            failed,
        } = self;
        if !untrusted.is_empty() {
            untrusted.extend(failed);
            return verdict(CANNOT_VOUCH, DecidedBy::Detector, untrusted);
        }
        if !failed.is_empty() {
            return verdict(FAILED, DecidedBy::Budgets, failed);
        }
        match of_child(end) {
            Some((code, reasons)) => verdict(code, DecidedBy::Command, reasons),
            None => {
                let why = "how the command ended was not seen".to_owned();
                verdict(CANNOT_VOUCH, DecidedBy::Detector, vec![why])
            }
        }
    }
}

/// Exit code and reason when the command's own end decides.
fn of_child(end: End) -> Option<(u8, Vec<String>)> {
    match end {
        End::Exited(0) => Some((0, Vec::new())),
        // The kernel keeps the low byte of a status; a code cannot be larger.
        End::Exited(code) => Some((code as u8, vec![format!("the command exited with {code}")])),
        End::Killed { signal, .. } => {
            let code = 128u8.saturating_add(signal.clamp(0, 127) as u8);
            let why = format!("the command was ended by signal {signal}");
            Some((code, vec![why]))
        }
        End::Replaced | End::StillRunning | End::Unknown => None,
    }
}

#[cfg(test)]
mod tests;
