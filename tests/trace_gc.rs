//! Reads what V8 itself prints under `--trace-gc` and `--trace-incremental-marking`: the other witness of
//! every collection.
//!
//! A line reads `[pid:isolate] t ms: KIND a (b) -> c (d) MB, ... P / Q ms ... current mu = m) REASON; ...`.
//! Versions differ in the kind's name, in what stands between, and in a third part of the prefix. Each
//! line of a collection is one print, but a marking line is two, so that another thread's whole line may
//! stand inside one: a collection is found by its text, wherever it stands, and marking starts are counted
//! per process only.

use std::collections::BTreeMap;

/// One collection as V8 tells it, its kind and reason in perf-gate's words.
#[derive(Clone, Debug, PartialEq)]
pub struct Collection {
    pub pid: u64,
    /// Address of the isolate.
    pub isolate: String,
    pub kind: &'static str,
    pub reason: String,
    pub pause_ms: f64,
    /// MB of objects before and after, as printed.
    pub sizes: (String, String),
}

const KINDS: [(&str, &str); 5] = [
    ("Scavenge", "scavenge"),
    ("Mark-sweep", "mark-compact"),
    ("Mark-Compact", "mark-compact"),
    ("Minor Mark-Compact", "minor-mark-sweep"),
    ("Minor Mark-Sweep", "minor-mark-sweep"),
];

/// All collections told of in `output`, in order.
///
/// # Panics
/// On a line that is a collection's and cannot be read: nothing is left out in silence.
#[must_use]
pub fn collections(output: &str) -> Vec<Collection> {
    let mut found = Vec::new();
    for line in output.lines() {
        for (at, _) in line.match_indices(" ms: ") {
            let rest = &line[at + " ms: ".len()..];
            let rest = rest.strip_prefix("Incremental ").unwrap_or(rest);
            let Some(&(name, kind)) = KINDS.iter().find(|(name, _)| rest.starts_with(name)) else {
                continue;
            };
            let told = one(&line[..at], kind, &rest[name.len()..]);
            found.push(told.unwrap_or_else(|| panic!("cannot read: {line}")));
        }
    }
    // What a line about a collection always has; a name that is not known here must not go unseen.
    let marks = output.matches(" -> ").count();
    assert_eq!(found.len(), marks, "lines of collections in:\n{output}");
    found
}

fn one(before: &str, kind: &'static str, rest: &str) -> Option<Collection> {
    let prefix = &before[before.rfind('[')? + 1..];
    let (id, _) = prefix.split_once(']')?;
    let mut id = id.split(':');
    let pid = id.next()?.parse().ok()?;
    let isolate = id.next()?.to_owned();
    let (from, figures) = rest.split_once(" -> ")?;
    let sizes = (
        from.split_whitespace().nth_back(1)?.to_owned(),
        figures.split_whitespace().next()?.to_owned(),
    );
    let (pause, _) = figures.split_once(" / ").and_then(|(left, right)| {
        // On a line that pools pages too, the last figure before the slash.
        Some((left.rsplit(' ').next()?, right))
    })?;
    let (_, tail) = rest.rsplit_once("current mu = ")?;
    let (_, reason) = tail.split_once(") ")?;
    let (reason, _) = reason.split_once(';')?;
    Some(Collection {
        pid,
        isolate,
        kind,
        reason: reason.trim().to_owned(),
        pause_ms: pause.parse().ok()?,
        sizes,
    })
}

/// Starts of incremental marking told of: of the whole heap, and of its young part only.
#[must_use]
pub fn marking_starts(output: &str) -> (u64, u64) {
    let count = |text: &str| output.matches(text).count() as u64;
    let minor = count("[IncrementalMarking] (MinorMS) Start marking");
    (count("[IncrementalMarking] Start marking"), minor)
}

/// Collections by process and isolate.
#[must_use]
pub fn by_isolate(all: &[Collection]) -> BTreeMap<(u64, String), Vec<Collection>> {
    let mut out: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for c in all {
        let key = (c.pid, c.isolate.clone());
        out.entry(key).or_default().push(c.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_read() {
        for (line, kind, reason, pause_ms, (before, after)) in [
            (
                "[7:0x4098]       45 ms: Mark-sweep 19.0 (32.8) -> 2.8 (19.9) MB, 4.4 / 0.0 ms  (average mu = 1.000, current mu = 1.000) testing; GC in old space requested",
                "mark-compact",
                "testing",
                4.4,
                ("19.0", "2.8"),
            ),
            (
                "[7:0x4098]      155 ms: Mark-sweep (reduce) 14.7 (28.8) -> 11.3 (28.8) MB, 18.8 / 0.1 ms  (+ 1.2 ms in 32 steps since start of marking, biggest step 0.1 ms, walltime since start of marking 27 ms) (average mu = 1.000, current mu = 0.5) finalize incremental marking via stack guard; GC in old space requested",
                "mark-compact",
                "finalize incremental marking via stack guard",
                18.8,
                ("14.7", "11.3"),
            ),
            (
                "[7:0x4098:0]       80 ms: Incremental Mark-Compact 20.1 (25.1) -> 3.8 (16.9) MB, pooled: 1.2 MB, 14.31 / 0.00 ms (average mu = 0.809, current mu = 0.809) task; ",
                "mark-compact",
                "task",
                14.31,
                ("20.1", "3.8"),
            ),
            (
                "[7:0x4098]       80 ms: [Inc[7:0x4098]       80 ms: Scavenge (during sweeping) 4.8 (5.4) -> 4.5 (6.1) MB, pooled: 0.0 MB, 4.16 / 0.00 ms (average mu = 1.000, current mu = 1.000) allocation failure; ",
                "scavenge",
                "allocation failure",
                4.16,
                ("4.8", "4.5"),
            ),
            (
                "[7:0x4098]       80 ms: Incremental Minor Mark-Sweep (interleaved) 4.8 (5.4) -> 4.5 (6.1) MB, 4.16 / 0.00 ms (average mu = 1.000, current mu = 1.000) finalize concurrent MinorMS; ",
                "minor-mark-sweep",
                "finalize concurrent MinorMS",
                4.16,
                ("4.8", "4.5"),
            ),
        ] {
            let expected = Collection {
                pid: 7,
                isolate: "0x4098".to_owned(),
                kind,
                reason: reason.to_owned(),
                pause_ms,
                sizes: (before.to_owned(), after.to_owned()),
            };
            assert_eq!(collections(line), [expected], "{line}");
        }
    }

    #[test]
    #[should_panic(expected = "lines of collections")]
    fn an_unknown_kind_is_not_passed_over() {
        let _ = collections("[7:0x4098] 80 ms: Mega-Sweep 4.8 (5.4) -> 4.5 (6.1) MB, 1 / 0 ms");
    }
}
