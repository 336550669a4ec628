//! Resolved plans kept between runs, one small JSON file per binary.
//!
//! Searching the symbol tables of a node takes tens of milliseconds, reading the answer back less
//! than one. The file name is made of the build id, the size of the binary (a stripped copy keeps the
//! build id, but not what can be seen in it), the table's fingerprint and perf-gate's version. What is
//! read back is believed only if every point lies in code and shows the bytes recorded with it;
//! anything else is a miss, never an error, and is replaced.

use super::{
    plan::{CODE, Plan, Point, PointKind},
    table,
};
use crate::{elf::Image, model::Lane};
use perf_gate_ebpf::{Cookie, Op};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const SIZE_CAP: u64 = 256 << 10;
const POINTS_CAP: usize = 512;

/// A plan could not be stored; the run goes on without.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep the probe plan in {path} ({source}); later runs resolve it again")]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    key: String,
    node: Option<String>,
    v8: Option<String>,
    points: Vec<StoredPoint>,
    blind: Vec<(String, String)>,
    doubts: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
struct StoredPoint {
    ret: bool,
    offset: u64,
    cookie: u64,
    symbol: String,
    slow: bool,
    code: [u8; CODE],
}

/// What [`resolve`] did.
#[derive(Debug)]
pub struct Resolved {
    pub plan: Plan,
    pub from_cache: bool,
    /// Why it could not be kept, if so.
    pub not_stored: Option<Error>,
}

/// The plan for `image`, from `dir` when it is there, else resolved and stored. `None`: no V8 in it.
pub fn resolve(dir: &Path, image: &Image) -> crate::elf::Result<Option<Resolved>> {
    if let Some(plan) = load(dir, image) {
        return Ok(Some(Resolved {
            plan,
            from_cache: true,
            not_stored: None,
        }));
    }
    Ok(Plan::resolve(image)?.map(|plan| Resolved {
        not_stored: store(dir, image, &plan).err(),
        plan,
        from_cache: false,
    }))
}

/// A usable stored plan. A binary without a build id has none.
#[must_use]
pub fn load(dir: &Path, image: &Image) -> Option<Plan> {
    let key = key(image)?;
    let path = dir.join(file_name(&key));
    // A pipe or a huge file in the cache's place must not stop us.
    if !fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= SIZE_CAP) {
        return None;
    }
    let stored: Stored = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    if stored.key != key || stored.points.len() > POINTS_CAP {
        return None;
    }
    let points = stored
        .points
        .into_iter()
        .map(|p| point(image, p))
        .collect::<Option<Vec<_>>>()?;
    Some(Plan {
        node_version: stored.node,
        v8_version: stored.v8,
        build_id: image.build_id().unwrap_or_default().to_owned(),
        points,
        blind: lanes(stored.blind)?,
        doubts: lanes(stored.doubts)?,
        source: image.path().to_owned(),
    })
}

/// Stores `plan`, so that a reader sees the old file or the new one, never a part.
pub fn store(dir: &Path, image: &Image, plan: &Plan) -> Result<(), Error> {
    let Some(key) = key(image) else { return Ok(()) };
    let path = dir.join(file_name(&key));
    let stored = Stored {
        key,
        node: plan.node_version.clone(),
        v8: plan.v8_version.clone(),
        points: plan
            .points
            .iter()
            .map(|p| StoredPoint {
                ret: p.kind == PointKind::Return,
                offset: p.offset,
                cookie: p.cookie,
                symbol: p.symbol.clone(),
                slow: p.slow,
                code: p.code,
            })
            .collect(),
        blind: names(&plan.blind),
        doubts: names(&plan.doubts),
    };
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = serde_json::to_vec(&stored)
        .map_err(io::Error::other)
        .and_then(|json| {
            fs::create_dir_all(dir)?;
            // Never through a link that someone put there.
            let _ = fs::remove_file(&temporary);
            let mut file = fs::File::create_new(&temporary)?;
            io::Write::write_all(&mut file, &json)?;
            fs::rename(&temporary, &path)
        });
    written.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        Error { path, source }
    })
}

fn key(image: &Image) -> Option<String> {
    Some(format!(
        "{}-{:x}-{}-{}",
        image.build_id()?,
        image.facts().size,
        table::fingerprint(),
        env!("CARGO_PKG_VERSION")
    ))
}

fn file_name(key: &str) -> String {
    format!("plan-{key}.json")
}

fn point(image: &Image, p: StoredPoint) -> Option<Point> {
    let number = Cookie(p.cookie).op();
    let op = Op::ALL.into_iter().find(|&op| op as u8 == number)?;
    let lane = Lane::ALL.into_iter().find(|l| l.ops().contains(&op))?;
    if !image.is_code(p.offset) || image.code(p.offset, CODE).ok()? != p.code {
        return None;
    }
    Some(Point {
        op,
        lane,
        kind: if p.ret {
            PointKind::Return
        } else {
            PointKind::Entry
        },
        offset: p.offset,
        cookie: p.cookie,
        symbol: p.symbol,
        slow: p.slow,
        code: p.code,
    })
}

fn names(list: &[(Lane, String)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(lane, why)| (lane.name().to_owned(), why.clone()))
        .collect()
}

fn lanes(list: Vec<(String, String)>) -> Option<Vec<(Lane, String)>> {
    list.into_iter()
        .map(|(name, why)| {
            let lane = Lane::ALL.into_iter().find(|l| l.name() == name)?;
            Some((lane, why))
        })
        .collect()
}
