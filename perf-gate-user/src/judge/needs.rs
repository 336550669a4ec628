//! Whether a lane can carry a budget, and if not why, in sentences.

use crate::model::{Lane, Run};

/// Everything that keeps figures of `lane` from being trusted in this run.
pub fn troubles(run: &Run, lane: Lane) -> Vec<String> {
    let name = lane.name();
    let mut troubles = Vec::new();
    match run.lanes.iter().find(|s| s.lane == lane) {
        None => troubles.push(format!("lane {name} was not observed")),
        Some(state) => {
            if !state.proven {
                let why = match state.why.first() {
                    Some(why) => format!("lane {name} is not proven: {why}"),
                    None => format!("lane {name} is not proven"),
                };
                troubles.push(why);
            }
            if state.lost > 0 {
                troubles.push(format!("lane {name} lost {} records", state.lost));
            }
        }
    }
    let mut blind = run
        .v8_processes()
        .filter_map(|p| p.blind_in(lane).map(|why| (p.pid, why)));
    if let Some((pid, why)) = blind.next() {
        let more = match blind.count() {
            0 => String::new(),
            n => format!(" (and in {n} more)"),
        };
        troubles.push(format!(
            "lane {name} is blind in process {pid}{more}: {why}"
        ));
    }
    troubles
}

/// Whether the run shows any trace of minor mark-sweeps. Only then does a budget need their lane:
/// V8 runs scavenges instead unless it was told otherwise.
pub fn minor_seen(run: &Run) -> bool {
    let hits = run
        .lanes
        .iter()
        .any(|s| s.lane == Lane::Minor && s.hits > 0);
    let mut isolates = run.v8_processes().flat_map(|p| &p.isolates);
    hits || isolates.any(|i| i.kinds.minor_mark_sweeps > 0 || i.minor_incremental_starts > 0)
}
