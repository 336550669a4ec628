//! Marked windows: one row for each id and scale of an isolate, over all its repeats. Pollution such as
//! tiering up can only add bytes, so the least of the repeats is the steady state.

use std::{collections::BTreeMap, io};

use super::{BOLD, DIM, Page, WARN};
use crate::{
    model::{Run, Window},
    report::{
        table::Figures,
        text::{count, time},
    },
};
use anstyle::Style;

const HEAD: [&str; 9] = [
    "  window",
    "scale",
    "times",
    "bytes min",
    "median",
    "max",
    "bytes/scale",
    "collections",
    "wall min",
];

/// Process, isolate, id, scale.
type Key = (u32, u32, u64, u64);

pub fn block(page: &mut Page, run: &Run) -> io::Result<()> {
    if run.windows.is_empty() {
        return Ok(());
    }
    let mut groups: BTreeMap<Key, Vec<&Window>> = BTreeMap::new();
    for w in run.windows.iter().filter(|w| w.closed) {
        let key = (w.pid, w.isolate, w.id, w.scale);
        groups.entry(key).or_default().push(w);
    }
    let several = groups.keys().any(|k| {
        (k.0, k.1) != {
            let first = groups.keys().next().copied().unwrap_or_default();
            (first.0, first.1)
        }
    });
    page.gap()?;
    page.line(BOLD, "windows, as the program marked them")?;
    let mut table = Figures::new(&HEAD);
    for (key, windows) in groups.iter().take(page.most.saturating_mul(4)) {
        table.row(row(*key, windows, several));
    }
    for (n, line) in table.lines(page.width).iter().enumerate() {
        page.line(if n == 0 { DIM } else { Style::new() }, line)?;
    }
    let hidden = groups.len().saturating_sub(page.most.saturating_mul(4));
    if hidden > 0 {
        page.line(
            DIM,
            &format!("  and {} more (--verbose shows all)", count(hidden as u64)),
        )?;
    }
    let open = run.windows.iter().filter(|w| !w.closed).count();
    if open > 0 {
        page.line(
            WARN,
            &format!("  {} windows were never ended", count(open as u64)),
        )?;
    }
    let broken = run.windows.iter().filter(|w| w.breaks != 0).count();
    if broken > 0 {
        page.line(
            WARN,
            &format!(
                "  {} windows are not exact: an allocation area was lost sight of",
                count(broken as u64)
            ),
        )?;
    }
    Ok(())
}

fn row((pid, isolate, id, scale): Key, windows: &[&Window], several: bool) -> Vec<String> {
    let mut bytes: Vec<u64> = windows.iter().map(|w| w.bytes).collect();
    bytes.sort_unstable();
    let least = bytes.first().copied().unwrap_or(0);
    let most = bytes.last().copied().unwrap_or(0);
    let median = bytes.get(bytes.len() / 2).copied().unwrap_or(0);
    let collections: u64 = windows.iter().map(|w| w.kinds.total()).sum();
    let wall = windows.iter().map(|w| w.wall_ns).min().unwrap_or(0);
    let label = if several {
        format!("  {id} in {pid}/{isolate}")
    } else {
        format!("  {id}")
    };
    let per = if scale == 0 {
        String::new()
    } else {
        format!("{:.4}", least as f64 / scale as f64)
    };
    vec![
        label,
        count(scale),
        count(windows.len() as u64),
        count(least),
        count(median),
        count(most),
        per,
        count(collections),
        time(wall),
    ]
}
