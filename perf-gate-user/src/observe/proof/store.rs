//! Proofs on disk: one small JSON file each, named by a hash of everything the proof depends on. A
//! file that cannot be read, or is not what was written, is no proof.

use super::Proof;
use crate::{
    model::Lane,
    v8::{plan::Plan, table},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};

const SIZE_CAP: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Stored {
    key: String,
    /// Lane name; `null` when proven, else why it is blind.
    lanes: Vec<(String, Option<String>)>,
}

/// What a proof of this plan depends on; `None` for a binary that cannot be told from others.
pub fn key(plan: &Plan) -> Option<String> {
    if plan.build_id.is_empty() {
        return None;
    }
    let kernel = nix::sys::utsname::uname().ok()?;
    Some(format!(
        "{} on {} {} by perf-gate {} object {} table {}",
        plan.build_id,
        kernel.release().to_string_lossy(),
        kernel.version().to_string_lossy(),
        env!("CARGO_PKG_VERSION"),
        env!("PERF_GATE_OBJECT_ID"),
        table::fingerprint(),
    ))
}

fn path(dir: &Path, key: &str) -> PathBuf {
    let hash = Sha256::digest(key.as_bytes());
    let name: String = hash[..12].iter().map(|b| format!("{b:02x}")).collect();
    dir.join(format!("proof-{name}.json"))
}

pub fn load(dir: &Path, key: &str) -> Option<Proof> {
    let path = path(dir, key);
    if !fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= SIZE_CAP) {
        return None;
    }
    let stored: Stored = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    if stored.key != key {
        return None;
    }
    let lanes = stored
        .lanes
        .into_iter()
        .map(|(name, why)| {
            let lane = Lane::ALL.into_iter().find(|l| l.name() == name)?;
            Some((lane, why.map_or(Ok(()), Err)))
        })
        .collect::<Option<_>>()?;
    Some(Proof { lanes })
}

/// Best effort: without it the next run proves again.
pub fn save(dir: &Path, key: &str, proof: &Proof) {
    let stored = Stored {
        key: key.to_owned(),
        lanes: proof
            .lanes
            .iter()
            .map(|(lane, r)| (lane.name().to_owned(), r.clone().err()))
            .collect(),
    };
    let path = path(dir, key);
    let written = serde_json::to_vec(&stored)
        .map_err(std::io::Error::other)
        .and_then(|bytes| {
            fs::create_dir_all(dir)?;
            let temporary = path.with_extension(format!("{}.part", std::process::id()));
            fs::write(&temporary, bytes)?;
            fs::rename(&temporary, &path).inspect_err(|_| {
                let _ = fs::remove_file(&temporary);
            })
        });
    if let Err(e) = written {
        log::debug!("the proof is not kept in {}: {e}", path.display());
    }
}
