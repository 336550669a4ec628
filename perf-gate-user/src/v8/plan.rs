//! The probe table resolved against one file: which byte offsets to probe, and which lanes are blind.
//!
//! A row takes its first name that the file defines. Compilers leave copies of functions behind
//! (`.constprop.N`, `.isra.N`: bodies of their own, called instead of the original by some callers;
//! `.part.N`, `.cold`: pieces that the original itself jumps to). Pieces are never probed, they would
//! count twice or not at all. Copies are probed beside the original, but their arguments may have
//! moved, so they leave a doubt on the lane; only the control can clear it. Every offset is decoded
//! before it is accepted: see [`crate::elf::insn`].

use super::{
    Version,
    labs::LIBC_ROWS,
    table::{MEASURED, Name, Row, rows},
    version,
};
use crate::{
    elf::{Image, Kind, Result, Symbol, entry_site, insn::WINDOW, return_site},
    model::Lane,
};
use perf_gate_ebpf::{Cookie, Op};
use std::path::PathBuf;

/// An original and a few copies of it are plausible, more are not.
const BODIES_CAP: usize = 8;
/// Bytes of code kept with a point, by which a cached plan is checked against the file.
pub const CODE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointKind {
    Entry,
    Return,
}

/// One probe to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub op: Op,
    pub lane: Lane,
    pub kind: PointKind,
    /// In the file; for an entry probe maybe behind the function's first instruction.
    pub offset: u64,
    pub cookie: u64,
    /// Mangled name.
    pub symbol: String,
    /// The kernel single-steps the probed instruction: 10 us a hit instead of 0.5.
    pub slow: bool,
    /// First bytes at `offset`.
    pub code: [u8; CODE],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub node_version: Option<String>,
    pub v8_version: Option<String>,
    /// Empty when the file has none.
    pub build_id: String,
    /// Ordered by offset.
    pub points: Vec<Point>,
    /// Lanes that cannot be measured in this file, and why; one entry per lane.
    pub blind: Vec<(Lane, String)>,
    /// Lanes that are attached but not as the table knows them: only a control can clear them.
    pub doubts: Vec<(Lane, String)>,
    /// The file this was resolved from.
    pub source: PathBuf,
}

/// Exported by everything that has V8 or node in it, also when stripped. A runtime that has these
/// and none of the table's names is reported as blind instead of passing for an ordinary program.
const MARKERS: [&str; 2] = ["_ZN2v87Isolate10GetCurrentEv", "napi_create_function"];

impl Plan {
    /// `None` when the file has no V8 in it.
    pub fn resolve(image: &Image) -> Result<Option<Self>> {
        let mut wanted: Vec<&str> = Vec::from(version::NUMBERS);
        wanted.extend(MARKERS);
        for name in rows().flat_map(|row| row.names) {
            if !wanted.contains(&name.mangled) {
                wanted.push(name.mangled);
            }
        }
        let found = image.find_symbols(&wanted)?;
        if found.is_empty() {
            return Ok(None);
        }
        let v8 = version::v8(image, &found, 0)?;
        let mut plan = Self {
            node_version: version::node(image)?,
            v8_version: v8.map(|v| v.to_string()),
            build_id: image.build_id().unwrap_or_default().to_owned(),
            points: Vec::new(),
            blind: Vec::new(),
            doubts: Vec::new(),
            source: image.path().to_owned(),
        };
        let missing = plan.add_rows(image, rows(), &wanted, &found, v8)?;
        plan.say_missing(image, v8, &missing);
        plan.say_unmeasured(v8);
        Ok(Some(plan))
    }

    /// The points in a C library.
    pub fn resolve_libc(image: &Image) -> Result<Self> {
        let wanted: Vec<&str> = LIBC_ROWS
            .iter()
            .flat_map(|row| row.names)
            .map(|name| name.mangled)
            .collect();
        let found = image.find_symbols(&wanted)?;
        let mut plan = Self {
            node_version: None,
            v8_version: None,
            build_id: image.build_id().unwrap_or_default().to_owned(),
            points: Vec::new(),
            blind: Vec::new(),
            doubts: Vec::new(),
            source: image.path().to_owned(),
        };
        for (lane, function) in plan.add_rows(image, LIBC_ROWS.iter(), &wanted, &found, None)? {
            let why = format!("the C library {} has no {function}", image.path().display());
            doubt(&mut plan.blind, lane, &why);
        }
        Ok(plan)
    }

    /// Adds the points of all rows; returns the required ones that are missing.
    fn add_rows(
        &mut self,
        image: &Image,
        rows: impl Iterator<Item = &'static Row>,
        wanted: &[&str],
        found: &[Symbol],
        v8: Option<Version>,
    ) -> Result<Vec<(Lane, &'static str)>> {
        let mut missing = Vec::new();
        for row in rows {
            let probed = self.add_row(image, row, wanted, found, v8)?;
            if !probed && row.is_required(v8) {
                missing.push((row.lane, row.function));
            }
        }
        self.points.sort_by_key(|p| (p.offset, p.kind, p.cookie));
        self.points.dedup_by_key(|p| (p.offset, p.kind, p.cookie));
        Ok(missing)
    }

    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Version::parse(self.v8_version.as_deref()?)
    }

    /// Why `lane` cannot be measured here, if so.
    #[must_use]
    pub fn blind_in(&self, lane: Lane) -> Option<&str> {
        let found = self.blind.iter().find(|(l, _)| *l == lane);
        found.map(|(_, why)| why.as_str())
    }

    /// Whether the row's function was found; one that was found and refused is blind by itself.
    fn add_row(
        &mut self,
        image: &Image,
        row: &Row,
        wanted: &[&str],
        found: &[Symbol],
        v8: Option<Version>,
    ) -> Result<bool> {
        for name in row.names.iter().filter(|n| n.fits(v8)) {
            let bodies: Vec<&Symbol> = found
                .iter()
                .filter(|s| wanted.get(s.wanted) == Some(&name.mangled))
                .filter(|s| s.kind == Kind::Function && is_body(&s.suffix))
                .collect();
            if bodies.is_empty() {
                continue;
            }
            if bodies.len() > BODIES_CAP {
                let why = format!("{} is defined {} times", row.function, bodies.len());
                doubt(&mut self.blind, row.lane, &why);
                return Ok(true);
            }
            for symbol in bodies {
                if is_copy(&symbol.suffix) {
                    doubt(
                        &mut self.doubts,
                        row.lane,
                        &format!(
                            "{} has a copy made by the compiler ({}), which may take other arguments",
                            row.function, symbol.suffix
                        ),
                    );
                }
                self.add_points(image, row, symbol, name)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn add_points(&mut self, image: &Image, row: &Row, symbol: &Symbol, name: &Name) -> Result<()> {
        let size = match usize::try_from(symbol.size) {
            Ok(0) | Err(_) => WINDOW,
            Ok(size) => size.min(WINDOW),
        };
        let code = image.code(symbol.offset, size)?;
        let sites = entry_site(&code, &name.slots).and_then(|entry| {
            let ret = row.ret.then(|| return_site(&code)).transpose()?;
            Ok((entry, ret))
        });
        let (entry, ret) = match sites {
            Ok(sites) => sites,
            Err(why) => {
                let why = format!("{} cannot be probed: {why}", row.function);
                doubt(&mut self.blind, row.lane, &why);
                return Ok(());
            }
        };
        for (kind, site) in [(PointKind::Entry, Some(entry)), (PointKind::Return, ret)] {
            let Some(site) = site else { continue };
            let offset = symbol.offset + site.delta;
            let mut code = [0; CODE];
            let bytes = image.code(offset, CODE)?;
            code[..bytes.len()].copy_from_slice(&bytes);
            self.points.push(Point {
                op: row.op,
                lane: row.lane,
                kind,
                offset,
                cookie: Cookie::new(row.op, name.slots, name.immediate).0,
                symbol: symbol.name.clone(),
                slow: site.slow,
                code,
            });
        }
        Ok(())
    }

    fn say_missing(&mut self, image: &Image, v8: Option<Version>, missing: &[(Lane, &str)]) {
        for lane in Lane::ALL {
            let names: Vec<&str> = missing
                .iter()
                .filter(|&&(l, _)| l == lane)
                .map(|&(_, function)| function)
                .collect();
            if names.is_empty() {
                continue;
            }
            let hint = if image.has_symtab() {
                "this build has none of the names the table knows for it; use an official build of node"
            } else if v8.is_none_or(|v| v.major >= 13) {
                "the binary is stripped, and since Node 24 that removes V8's names; use one that is not"
            } else {
                "the binary is stripped; use one that is not"
            };
            doubt(
                &mut self.blind,
                lane,
                &format!("no symbol for {}: {hint}", names.join(", ")),
            );
        }
    }

    fn say_unmeasured(&mut self, v8: Option<Version>) {
        let ((major, minor), last) = MEASURED;
        let why = match v8 {
            Some(v) if v.at_least(major, minor) && !v.at_least(last.0, last.1 + 1) => return,
            Some(v) => format!(
                "V8 {v} is not in the table, which was measured on {major}.{minor} to {}.{}",
                last.0, last.1
            ),
            None => "the binary does not say which V8 it has".to_owned(),
        };
        for lane in Lane::ALL {
            if self.blind_in(lane).is_none() {
                doubt(&mut self.doubts, lane, &why);
            }
        }
    }
}

/// One entry per lane; further reasons are appended.
fn doubt(list: &mut Vec<(Lane, String)>, lane: Lane, why: &str) {
    match list.iter_mut().find(|(l, _)| *l == lane) {
        Some((_, text)) if text.contains(why) => {}
        Some((_, text)) => {
            text.push_str("; ");
            text.push_str(why);
        }
        None => list.push((lane, why.to_owned())),
    }
}

/// Link-time optimisation renames a function without changing it.
fn is_renamed(suffix: &str) -> bool {
    suffix.is_empty() || suffix.starts_with(".llvm.") || suffix.starts_with(".lto_priv.")
}

fn is_copy(suffix: &str) -> bool {
    !is_renamed(suffix)
}

/// A whole function, the original or a copy; not a piece of one.
fn is_body(suffix: &str) -> bool {
    let piece = suffix.contains(".cold") || suffix.contains(".part.");
    let copy = suffix.starts_with(".constprop.") || suffix.starts_with(".isra.");
    is_renamed(suffix) || (copy && !piece)
}
