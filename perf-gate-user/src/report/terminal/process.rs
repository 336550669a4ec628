//! The block of one process: its isolates, why they collected, its memory and its counters.

use std::{collections::BTreeMap, io};

use anstyle::Style;

use super::{BOLD, DIM, Page, WARN};
use crate::{
    model::{End, External, Isolate, Lane, Process, Totals},
    report::{
        table::Figures,
        text::{self, count, size, time},
    },
};

const DASH: &str = "–";

const HEAD: [&str; 13] = [
    "  isolate",
    "scavenges",
    "minor",
    "mark-compact",
    "forced",
    "incr. starts",
    "pause total",
    "max",
    "p50",
    "p99",
    "large",
    "large bytes",
    "old pages",
];

pub fn block(page: &mut Page, p: &Process) -> io::Result<()> {
    page.gap()?;
    let argv = text::clean(&p.argv.join(" ")).into_owned();
    let facts = [
        version(p),
        ending(p.end),
        p.wall_ns.map_or(DASH.into(), time),
    ]
    .join(" · ");
    let room = page
        .width
        .saturating_sub(facts.chars().count() + 14)
        .max(20);
    let argv = text::shorten(&argv, room);
    page.line(BOLD, &format!("{:<8} {argv}  {facts}", p.pid))?;
    let mut table = Figures::new(&HEAD);
    let mut shown: Vec<&Isolate> = p.isolates.iter().collect();
    if shown.len() > page.most {
        shown.sort_by_key(|i| std::cmp::Reverse((i.pauses.total_ns, i.kinds.total())));
        shown.truncate(page.most);
        shown.sort_by_key(|i| i.index);
    }
    for isolate in &shown {
        table.row(isolate_row(p, isolate));
    }
    let hidden = p.isolates.len() - shown.len();
    if p.isolates.len() > 1 {
        let label = match hidden {
            0 => "  sum".to_owned(),
            n => format!("  sum (and {} more)", count(n as u64)),
        };
        table.row(sum_row(label, &Totals::of_isolates(&p.isolates), &[p]));
    }
    if p.isolates.is_empty() {
        page.line(DIM, "  no isolate was seen")?;
    } else {
        for (n, line) in table.lines(page.width).iter().enumerate() {
            page.line(if n == 0 { DIM } else { Style::new() }, line)?;
        }
    }
    reasons(page, p)?;
    allocated(page, p)?;
    external(page, p)?;
    rss(page, p)?;
    counters(page, p)?;
    for (lane, why) in &p.blind {
        let piece = format!("{}: {}", lane.name(), text::clean(why));
        page.labelled(WARN, "blind", vec![piece])?;
    }
    Ok(())
}

/// Bytes are what people compare: exact figures, the largest spaces first.
fn allocated(page: &mut Page, p: &Process) -> io::Result<()> {
    const SHOWN: usize = 8;
    // Without the large objects the sum would pass for a whole one.
    let blind = [Lane::Bytes, Lane::Large]
        .into_iter()
        .any(|lane| p.blind_in(lane).is_some());
    if blind || p.isolates.is_empty() {
        return Ok(());
    }
    let mut pieces = Vec::new();
    for i in p.isolates.iter().take(SHOWN) {
        let who = match i.index {
            0 => "main".to_owned(),
            n => format!("worker {n}"),
        };
        let total: u64 = i.allocated_at_least.values().sum();
        let bound = if i.allocated.is_some() {
            ""
        } else {
            "at least "
        };
        let mut spaces: Vec<_> = i
            .allocated_at_least
            .iter()
            .filter(|(_, b)| **b != 0)
            .collect();
        spaces.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), (*name).clone()));
        let spaces: Vec<_> = spaces
            .into_iter()
            .map(|(name, bytes)| format!("{name} {}", size(*bytes)))
            .collect();
        pieces.push(format!(
            "{who} {bound}{} B ({})",
            count(total),
            spaces.join(", ")
        ));
    }
    if p.isolates.len() > SHOWN {
        let total: u64 = p
            .isolates
            .iter()
            .flat_map(|i| i.allocated_at_least.values())
            .sum();
        pieces.push(format!("all {} B", count(total)));
    }
    let background: u64 = p.isolates.iter().map(|i| i.background_bytes).sum();
    if background != 0 {
        pieces.push(format!("background threads {}", size(background)));
    }
    page.labelled(Style::new(), "allocated", pieces)
}

pub fn sum_table(page: &mut Page, processes: &[&Process]) -> io::Result<()> {
    let sum = Totals::of(processes.iter().copied());
    let mut table = Figures::new(&HEAD);
    let label = format!("  {} isolates", count(sum.isolates));
    table.row(sum_row(label, &sum, processes));
    for (n, line) in table.lines(page.width).iter().enumerate() {
        page.line(if n == 0 { DIM } else { Style::new() }, line)?;
    }
    Ok(())
}

fn isolate_row(p: &Process, i: &Isolate) -> Vec<String> {
    let label = match i.index {
        0 => "  main".to_owned(),
        n => format!("  worker {n}"),
    };
    let mut row = sum_row(label, &Totals::of_isolates(std::slice::from_ref(i)), &[p]);
    let pauses = [(8, i.pauses.p50_ns), (9, i.pauses.p99_ns)];
    for (column, ns) in pauses {
        let seen = p.blind_in(Lane::Pause).is_none();
        row[column] = ns.filter(|_| seen).map_or(DASH.to_owned(), time);
    }
    row
}

/// Cells in the order of [`HEAD`]; percentiles cannot be summed and stay empty.
fn sum_row(label: String, t: &Totals, of: &[&Process]) -> Vec<String> {
    let cell = |lane: Lane, figure: String| match of.iter().all(|p| p.blind_in(lane).is_none()) {
        true => figure,
        false => DASH.to_owned(),
    };
    vec![
        label,
        cell(Lane::Gc, count(t.kinds.scavenges)),
        cell(Lane::Minor, count(t.kinds.minor_mark_sweeps)),
        cell(Lane::Gc, count(t.kinds.mark_compacts)),
        cell(Lane::Gc, count(t.forced.total())),
        cell(Lane::Incremental, count(t.incremental_starts)),
        cell(Lane::Pause, time(t.pause_ns_total)),
        cell(Lane::Pause, time(t.pause_ns_max)),
        String::new(),
        String::new(),
        cell(Lane::Large, count(t.large_count)),
        cell(Lane::Large, size(t.large_bytes)),
        cell(Lane::Pages, count(t.old_pages)),
    ]
}

pub fn version(p: &Process) -> String {
    let Some(runtime) = &p.runtime else {
        return "no V8".to_owned();
    };
    let node = runtime.node.as_ref().map(|v| format!("node {v}"));
    let v8 = runtime.v8.as_ref().map(|v| format!("V8 {v}"));
    match (node, v8) {
        (Some(node), Some(v8)) => format!("{node}, {v8}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "V8 of unknown version".to_owned(),
    }
}

pub fn ending(end: End) -> String {
    match end {
        End::Exited(code) => format!("exit {code}"),
        End::Killed { signal, core } => {
            let name = nix::sys::signal::Signal::try_from(signal)
                .map_or_else(|_| format!("signal {signal}"), |s| s.to_string());
            let core = if core { ", core dumped" } else { "" };
            format!("killed by {name}{core}")
        }
        End::Replaced => "replaced by exec".to_owned(),
        End::StillRunning => "still running".to_owned(),
        End::Unknown => "end not seen".to_owned(),
    }
}

fn reasons(page: &mut Page, p: &Process) -> io::Result<()> {
    let gather = |pick: fn(&Isolate) -> &BTreeMap<String, u64>| {
        let mut sum: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, n) in p.isolates.iter().flat_map(pick) {
            *sum.entry(reason).or_default() += n;
        }
        let mut list: Vec<_> = sum.into_iter().collect();
        list.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        list
    };
    let kinds = [
        ("scavenge", gather(|i| &i.scavenge_reasons)),
        ("minor mark-sweep", gather(|i| &i.minor_mark_sweep_reasons)),
        ("mark-compact", gather(|i| &i.mark_compact_reasons)),
    ];
    let mut label = "reasons";
    for (kind, list) in kinds {
        if list.is_empty() {
            continue;
        }
        let mut pieces: Vec<_> = list
            .into_iter()
            .map(|(reason, n)| format!("{} {}", text::clean(reason), count(n)))
            .collect();
        pieces[0] = format!("{kind}: {}", pieces[0]);
        page.labelled(Style::new(), label, pieces)?;
        label = "";
    }
    let unfinished = p.isolates.iter().map(|i| i.unfinished).sum();
    if unfinished > 0 {
        let piece = format!(
            "{} cut off by the end of the process, not counted",
            count(unfinished)
        );
        page.labelled(WARN, "unfinished", vec![piece])?;
    }
    Ok(())
}

/// External memory, unless a lane that carries it is blind here.
pub fn external_of(p: &Process) -> Option<External> {
    p.external.filter(|_| p.blind_in_external().is_none())
}

fn external(page: &mut Page, p: &Process) -> io::Result<()> {
    let Some(e) = external_of(p) else {
        return page.labelled(DIM, "external", vec!["not measured".to_owned()]);
    };
    let mut allocated = format!("allocated {}", size(e.allocated_bytes));
    if e.reserved_allocated_bytes > 0 {
        let part = size(e.reserved_allocated_bytes);
        allocated += &format!(" (of it {part} resizable or WebAssembly)");
    }
    if e.string_allocated_bytes > 0 {
        let part = size(e.string_allocated_bytes);
        allocated += &format!(" (of it {part} external strings)");
    }
    let live = e.live_bytes();
    let pieces = vec![
        allocated,
        format!("freed {}", size(e.freed_bytes)),
        format!("live at the end {}", text::bytes(live)),
    ];
    page.labelled(Style::new(), "external", pieces)
}

fn rss(page: &mut Page, p: &Process) -> io::Result<()> {
    let r = &p.rss;
    let word = if r.peak_exact {
        "peak"
    } else {
        "peak at least"
    };
    let pieces = vec![
        split(word, r.peak_bytes, r.peak_v8_bytes, r.peak_external_bytes),
        split("end", r.end_bytes, r.v8_bytes, r.external_bytes),
    ];
    page.labelled(Style::new(), "RSS", pieces)
}

/// Resident memory and what it consists of. Memory that was never touched is not resident, so that
/// the parts can exceed the whole; then there is no rest to name.
fn split(word: &str, whole: Option<u64>, v8: Option<u64>, external: Option<u64>) -> String {
    let Some(whole) = whole else {
        return format!("{word} not measured");
    };
    let text = format!("{word} {}", size(whole));
    match (v8, external) {
        (Some(v8), Some(external)) => {
            let parts = format!("V8 {}, external {}", size(v8), size(external));
            match whole.checked_sub(v8.saturating_add(external)) {
                Some(rest) => format!("{text} ({parts}, rest {})", size(rest)),
                None => format!("{text} ({parts}, not all of it resident)"),
            }
        }
        (Some(v8), None) => format!("{text} (V8 {})", size(v8)),
        (None, Some(external)) => format!("{text} (external {})", size(external)),
        (None, None) => text,
    }
}

fn counters(page: &mut Page, p: &Process) -> io::Result<()> {
    let c = &p.counters;
    let all = [
        ("page faults", "page_faults", c.page_faults.map(count)),
        (
            "context switches",
            "context_switches",
            c.context_switches.map(count),
        ),
        ("task clock", "task_clock_ns", c.task_clock_ns.map(time)),
        ("instructions", "instructions", c.instructions.map(count)),
        ("cycles", "cycles", c.cycles.map(count)),
    ];
    let mut pieces = Vec::new();
    // What is missing for the same reason is said once.
    let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, field, value) in all {
        let Some(value) = value else {
            let why = c.unmeasured.iter().find(|(f, _)| f == field);
            let why = why.map_or("not sampled", |(_, why)| why.as_str());
            match missing.iter_mut().find(|(w, _)| *w == why) {
                Some((_, names)) => names.push(name),
                None => missing.push((why, vec![name])),
            }
            continue;
        };
        pieces.push(format!("{name} {value}"));
    }
    for (why, names) in missing {
        pieces.push(format!("{} n/a: {}", names.join(", "), text::clean(why)));
    }
    page.labelled(Style::new(), "counters", pieces)
}
