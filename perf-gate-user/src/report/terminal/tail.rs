//! What follows the processes: other programs, lanes, cost, doubts and the verdict.

use std::{collections::BTreeMap, io};

use anstyle::Style;

use super::{BAD, DIM, GOOD, Page, WARN, process};
use crate::{
    judge::{DecidedBy, Verdict},
    model::{LaneState, Process, Run},
    report::{
        table::Figures,
        text::{clean, count, shorten, size, time},
    },
};

pub fn others(page: &mut Page, run: &Run) -> io::Result<()> {
    let others: Vec<&Process> = run.processes.iter().filter(|p| !p.is_v8()).collect();
    if others.is_empty() {
        return Ok(());
    }
    page.gap()?;
    if others.len() <= page.most {
        for p in others {
            let peak = p
                .rss
                .peak_bytes
                .map_or(String::new(), |b| format!(" · peak {}", size(b)));
            let facts = format!("{}{peak}", process::ending(p.end));
            let argv = clean(&p.argv.join(" ")).into_owned();
            let room = page.width.saturating_sub(facts.chars().count() + 11);
            page.line(
                DIM,
                &format!("{:<8} {}  {facts}", p.pid, shorten(&argv, room.max(12))),
            )?;
        }
        return Ok(());
    }
    let mut names: BTreeMap<String, u64> = BTreeMap::new();
    for p in &others {
        let name = p.exe.rsplit('/').next().unwrap_or_default();
        *names.entry(clean(name).into_owned()).or_default() += 1;
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let more = names.len().saturating_sub(page.most);
    names.truncate(page.most);
    let mut list: Vec<_> = names
        .iter()
        .map(|(name, n)| format!("{name} ×{}", count(*n)))
        .collect();
    if more > 0 {
        list.push(format!("{more} more programs"));
    }
    let total = count(others.len() as u64);
    page.line(
        DIM,
        &format!("{total} other processes: {}", list.join(", ")),
    )
}

fn sound(state: &LaneState) -> bool {
    state.proven && state.lost == 0 && state.why.is_empty()
}

pub fn lanes(page: &mut Page, run: &Run, verbose: bool) -> io::Result<()> {
    page.gap()?;
    let all_sound = run.lanes.iter().all(sound);
    if all_sound && !verbose {
        let list = run
            .lanes
            .iter()
            .map(|s| format!("{} ✔ {}", s.lane.name(), count(s.hits)));
        let mut pieces: Vec<String> = list.collect();
        if let Some(first) = pieces.first_mut() {
            *first = format!("all proven, hits: {first}");
        } else {
            pieces.push("nothing was watched".to_owned());
        }
        return page.labelled(Style::new(), "lanes", pieces);
    }
    let mut table = Figures::new(&["  lane", "proven", "probes", "attached", "hits", "lost"]);
    for s in &run.lanes {
        let proven = if s.proven { "✔" } else { "no" };
        let name = format!("  {}", s.lane.name());
        let figures = [s.probes, s.attached, s.hits, s.lost].map(count);
        let mut row = vec![name, proven.to_owned()];
        row.extend(figures);
        table.row(row);
    }
    for (n, line) in table.lines(page.width).iter().enumerate() {
        page.line(if n == 0 { DIM } else { Style::new() }, line)?;
    }
    for s in &run.lanes {
        for why in &s.why {
            page.line(WARN, &format!("  {}: {}", s.lane.name(), clean(why)))?;
        }
    }
    Ok(())
}

pub fn overhead(page: &mut Page, run: &Run) -> io::Result<()> {
    let o = &run.overhead;
    let mut pieces = vec![
        format!("{} probe hits", count(o.hits)),
        format!("{} from start to release", time(o.start_to_release_ns)),
    ];
    if o.timeline_dropped > 0 {
        let dropped = count(o.timeline_dropped);
        pieces.push(format!(
            "{dropped} timeline records dropped (totals do not depend on them)"
        ));
    }
    page.labelled(DIM, "overhead", pieces)
}

pub fn doubts(page: &mut Page, run: &Run) -> io::Result<()> {
    for doubt in &run.doubts {
        page.line(WARN, &format!("doubt: {}", clean(doubt)))?;
    }
    Ok(())
}

pub fn verdict(page: &mut Page, verdict: &Verdict) -> io::Result<()> {
    page.gap()?;
    let (style, word) = match verdict.decided_by {
        _ if verdict.pass => (GOOD, "pass"),
        DecidedBy::Budgets => (BAD, "FAIL"),
        DecidedBy::Detector => (BAD, "CANNOT VOUCH"),
        DecidedBy::Command => (WARN, "the command failed"),
    };
    page.line(style, &format!("{word} (exit {})", verdict.code))?;
    for reason in &verdict.reasons {
        page.line(Style::new(), &format!("  {}", clean(reason)))?;
    }
    Ok(())
}
