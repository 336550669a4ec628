//! Resident memory of a process over time. The kernel keeps the high-water mark; it is read while the
//! process runs, and exactly from its resource usage when it was our child. Each sample also notes
//! what V8 and external memory held then, so that peak and end can be split.

use crate::model;
use perf_gate_ebpf::{PAGE_BITS, Proc};
use std::fs;

/// A V8 page (`kRegularPageSize`, 256 KiB on x86-64; src/base/build_config.h).
pub const PAGE_BYTES: u64 = 1 << PAGE_BITS;

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    rss_bytes: u64,
    v8_bytes: Option<u64>,
    external_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Sampler {
    high_water: Option<u64>,
    exact: bool,
    top: Option<Sample>,
    last: Option<Sample>,
}

/// What V8's own pages and large objects take.
#[must_use]
pub fn v8_bytes(p: &Proc) -> u64 {
    p.pages_alloc.saturating_sub(p.pages_free) * PAGE_BYTES + p.large_live_bytes
}

/// What backing stores and external strings take.
#[must_use]
pub fn external_bytes(p: &Proc) -> u64 {
    p.external_allocated().saturating_sub(p.external_freed())
}

impl Sampler {
    /// Reads `/proc/PID/status`; a process that is gone leaves the last sample standing.
    pub fn sample(&mut self, pid: u32, record: Option<&Proc>) {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            return;
        };
        let (Some(high), Some(rss)) = (field(&text, "VmHWM:"), field(&text, "VmRSS:")) else {
            return;
        };
        let sample = Sample {
            rss_bytes: rss,
            v8_bytes: record.map(v8_bytes),
            external_bytes: record.map(external_bytes),
        };
        self.high_water = self.high_water.max(Some(high));
        if self.top.is_none_or(|t| rss >= t.rss_bytes) {
            self.top = Some(sample);
        }
        self.last = Some(sample);
    }

    /// The high-water mark that the kernel reported at the end.
    pub fn exact_peak(&mut self, bytes: u64) {
        self.high_water = Some(bytes);
        self.exact = true;
    }

    #[must_use]
    pub fn finish(&self) -> model::Rss {
        model::Rss {
            peak_bytes: self.high_water,
            peak_exact: self.exact,
            end_bytes: self.last.map(|s| s.rss_bytes),
            peak_v8_bytes: self.top.and_then(|s| s.v8_bytes),
            peak_external_bytes: self.top.and_then(|s| s.external_bytes),
            v8_bytes: self.last.and_then(|s| s.v8_bytes),
            external_bytes: self.last.and_then(|s| s.external_bytes),
        }
    }
}

/// A `kB` line of `/proc/PID/status`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kb: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kb.checked_mul(1024)
}
