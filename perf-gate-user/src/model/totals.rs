//! Sums over processes, in one place so that the judge and every report mean the same by them.

use super::{Isolate, Kinds, Process};

/// What the watched processes did together. A figure that one of them could not measure is missing
/// here too: the caller looks at [`Process::blind`] before it trusts a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub processes: u64,
    pub isolates: u64,
    pub kinds: Kinds,
    pub forced: Kinds,
    pub incremental_starts: u64,
    pub minor_incremental_starts: u64,
    pub unfinished: u64,
    pub pause_ns_total: u64,
    pub pause_ns_max: u64,
    pub large_count: u64,
    pub large_bytes: u64,
    pub old_pages: u64,
}

impl Totals {
    #[must_use]
    pub fn of<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Self {
        let mut sum = Self::default();
        for process in processes {
            sum.processes += 1;
            process.isolates.iter().for_each(|i| sum.add(i));
        }
        sum
    }

    #[must_use]
    pub fn of_isolates(isolates: &[Isolate]) -> Self {
        let mut sum = Self::default();
        isolates.iter().for_each(|i| sum.add(i));
        sum
    }

    fn add(&mut self, i: &Isolate) {
        self.isolates += 1;
        add_kinds(&mut self.kinds, &i.kinds);
        add_kinds(&mut self.forced, &i.forced);
        self.incremental_starts += i.incremental_starts;
        self.minor_incremental_starts += i.minor_incremental_starts;
        self.unfinished += i.unfinished;
        self.pause_ns_total += i.pauses.total_ns;
        self.pause_ns_max = self.pause_ns_max.max(i.pauses.max_ns);
        self.large_count += i.large_count;
        self.large_bytes += i.large_bytes;
        self.old_pages += i.old_pages;
    }
}

fn add_kinds(to: &mut Kinds, from: &Kinds) {
    to.scavenges += from.scavenges;
    to.minor_mark_sweeps += from.minor_mark_sweeps;
    to.mark_compacts += from.mark_compacts;
}
