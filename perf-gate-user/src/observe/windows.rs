//! Marked windows, from records to plain data. The marker allocates a little on some versions (56 bytes
//! a call on V8 10): what empty windows of the same isolate read is taken off every other window of it.

use super::{
    collect::{Owner, Owners, kinds, short_name},
    tree::Tree,
};
use crate::model;
use perf_gate_ebpf::{OWN_WINDOWS, SPACES, Window};
use std::collections::{BTreeMap, HashMap};

/// Id of windows that hold nothing, by which the helper measures the marker.
pub const EMPTY: u64 = 0;

/// All windows of the run, in order of their begin.
pub fn collect(tree: &Tree, owners: &Owners) -> Vec<model::Window> {
    let mut records: Vec<_> = tree.windows.iter().collect();
    records.sort_by_key(|(key, w)| (w.begin_ns, *key));
    let mut markers: HashMap<u64, [u64; SPACES]> = HashMap::new();
    for (key, w) in &records {
        if w.id == EMPTY && w.closed != 0 && w.figures.breaks == 0 {
            let least = markers.entry(key.iso_seq).or_insert(w.figures.spaces);
            for (least, now) in least.iter_mut().zip(w.figures.spaces) {
                *least = (*least).min(now);
            }
        }
    }
    records
        .into_iter()
        .filter(|(_, w)| w.id != EMPTY && w.id < OWN_WINDOWS)
        .map(|(key, w)| {
            let owner = owners.get(&key.iso_seq).copied().unwrap_or_default();
            window(w, owner, markers.get(&key.iso_seq))
        })
        .collect()
}

fn window(w: &Window, owner: Owner, marker: Option<&[u64; SPACES]>) -> model::Window {
    let f = &w.figures;
    let mut allocated: BTreeMap<String, u64> = BTreeMap::new();
    for id in 0..SPACES {
        let own = marker.map_or(0, |m| m[id]);
        let bytes = f.spaces[id].saturating_sub(own);
        if bytes != 0 {
            allocated.insert(short_name(owner.v8, id as u32), bytes);
        }
    }
    if f.large_bytes != 0 {
        allocated.insert("large".to_owned(), f.large_bytes);
    }
    model::Window {
        pid: owner.pid,
        isolate: owner.isolate,
        id: w.id,
        scale: w.scale,
        closed: w.closed != 0,
        bytes: allocated.values().sum(),
        allocated,
        marker_bytes: marker.map(|m| m.iter().sum()),
        large_count: f.large_count,
        kinds: kinds(&f.gcs),
        incremental_starts: f.incremental_starts,
        pause_ns_total: f.pause_ns_total,
        wall_ns: f.t_ns,
        external_delta_bytes: f.ext_alloc_bytes.wrapping_sub(f.ext_free_bytes) as i64,
        external_allocated_bytes: f.ext_alloc_bytes,
        external_string_bytes: f.string_alloc_bytes,
        breaks: f.breaks,
    }
}
