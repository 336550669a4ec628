//! The human report.
//!
//! It has to stay readable from one process to a tree of hundreds: every process that ran V8 gets a
//! block, above ten only the heaviest do; what they did together follows; other programs share one
//! short list. A figure that a blind lane would have carried is a dash, never a zero.

mod process;
mod tail;
mod windows;

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::{Report, table::flow, text};
use crate::{
    judge::Verdict,
    model::{Process, Run, Totals},
};

/// Blocks, isolates and other programs shown before the rest is summed up.
const MOST: usize = 10;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default();

/// How to print; the caller knows what it prints to.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    pub width: usize,
    pub color: bool,
    /// Show every lane, process and isolate.
    pub verbose: bool,
}

impl Report for Terminal {
    fn write(&self, run: &Run, verdict: &Verdict, out: &mut dyn Write) -> io::Result<()> {
        let mut page = Page {
            out,
            color: self.color,
            width: self.width.max(40),
            most: if self.verbose { usize::MAX } else { MOST },
        };
        header(&mut page, run)?;
        let v8: Vec<_> = run.v8_processes().collect();
        for process in heaviest(&v8, page.most) {
            process::block(&mut page, process)?;
        }
        if v8.len() > 1 {
            sum(&mut page, &v8)?;
        }
        windows::block(&mut page, run)?;
        tail::others(&mut page, run)?;
        tail::lanes(&mut page, run, self.verbose)?;
        tail::overhead(&mut page, run)?;
        tail::doubts(&mut page, run)?;
        tail::verdict(&mut page, verdict)
    }
}

/// Where the report goes and how wide it may be.
struct Page<'a> {
    out: &'a mut dyn Write,
    color: bool,
    width: usize,
    most: usize,
}

impl Page<'_> {
    fn line(&mut self, style: Style, text: &str) -> io::Result<()> {
        match self.color && style != Style::new() {
            true => writeln!(self.out, "{style}{text}{style:#}"),
            false => writeln!(self.out, "{text}"),
        }
    }

    /// `label` in front, then `pieces` in as many lines as it takes.
    fn labelled(&mut self, style: Style, label: &str, pieces: Vec<String>) -> io::Result<()> {
        const INDENT: usize = 11;
        let room = self.width.saturating_sub(INDENT + 2);
        for (n, line) in flow(pieces, " · ", room).into_iter().enumerate() {
            let label = if n == 0 { label } else { "" };
            self.line(style, &format!("  {label:<INDENT$}{line}"))?;
        }
        Ok(())
    }

    fn gap(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }
}

fn header(page: &mut Page, run: &Run) -> io::Result<()> {
    let command = text::clean(&run.command.join(" ")).into_owned();
    let room = page.width.saturating_sub(11);
    page.line(
        BOLD,
        &format!("perf-gate  {}", text::shorten(&command, room)),
    )?;
    let mut versions: Vec<String> = Vec::new();
    for process in run.v8_processes() {
        let version = process::version(process);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    if versions.is_empty() {
        versions.push("no process ran V8".into());
    }
    let (all, v8) = (run.processes.len(), run.v8_processes().count());
    versions.push(match (all, v8) {
        (1, _) => "1 process".to_owned(),
        _ => format!(
            "{} processes, {} with V8",
            text::count(all as u64),
            text::count(v8 as u64)
        ),
    });
    versions.push(text::time(run.wall_ns));
    let room = page.width.saturating_sub(11);
    for line in flow(versions, " · ", room) {
        page.line(Style::new(), &format!("{:11}{line}", ""))?;
    }
    Ok(())
}

/// The `most` processes that worked hardest, in the order of the run.
fn heaviest<'a>(processes: &[&'a Process], most: usize) -> Vec<&'a Process> {
    let weight = |p: &Process| {
        let pauses = Totals::of([p]).pause_ns_total;
        (p.counters.task_clock_ns.unwrap_or(0), pauses)
    };
    let mut order: Vec<usize> = (0..processes.len()).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(weight(processes[n])));
    order.truncate(most);
    order.sort_unstable();
    order.into_iter().map(|n| processes[n]).collect()
}

fn sum(page: &mut Page, v8: &[&Process]) -> io::Result<()> {
    page.gap()?;
    let hidden = v8.len().saturating_sub(page.most);
    let rest = match hidden {
        0 => String::new(),
        n => format!(
            " (the {} lightest are not shown; --verbose shows all)",
            text::count(n as u64)
        ),
    };
    let count = text::count(v8.len() as u64);
    page.line(BOLD, &format!("all {count} processes with V8{rest}"))?;
    process::sum_table(page, v8)?;
    let mut external = (0u64, 0u64);
    for e in v8.iter().filter_map(|p| process::external_of(p)) {
        external.0 = external.0.saturating_add(e.allocated_bytes);
        external.1 = external.1.saturating_add(e.freed_bytes);
    }
    let live = external.0 as i64 - external.1 as i64;
    let unseen = v8
        .iter()
        .filter(|p| process::external_of(p).is_none())
        .count();
    let mut pieces = vec![
        format!("allocated {}", text::size(external.0)),
        format!("freed {}", text::size(external.1)),
        format!("live at the end {}", text::bytes(live)),
    ];
    if unseen > 0 {
        pieces.push(format!("not measured in {unseen}"));
    }
    page.labelled(Style::new(), "external", pieces)?;
    let peak = v8
        .iter()
        .filter_map(|p| p.rss.peak_bytes.map(|b| (b, p.pid)))
        .max();
    if let Some((bytes, pid)) = peak {
        let piece = format!("largest peak {} (process {pid})", text::size(bytes));
        page.labelled(Style::new(), "RSS", vec![piece])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
