//! What the committed eBPF object was made from, as one hash.
//!
//! The object is committed so that a plain build needs nothing but stable Rust; the price is that it can
//! fall behind its sources. This file is compiled into both sides of that check: `cargo xtask build-ebpf`
//! records the hash beside the object, and `perf-gate-user/build.rs` refuses to embed an object whose
//! recorded hash is not the one of the sources in the tree. Hashed are the sources and manifest of
//! `perf-gate-ebpf`, the locked versions of everything its programs link or expand, and the flags below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Flags of the BPF build that shape its code. The path remaps are added by the caller: they differ from
/// folder to folder exactly so that the object does not.
pub const RUSTFLAGS: &[&str] = &[
    "--cfg=bpf_target_arch=\"x86_64\"",
    "-Cdebuginfo=2",
    "-Clink-arg=--btf",
];

/// Profile settings, given on the command line so that no edit of the workspace's own profiles can change
/// the object unnoticed.
pub const PROFILE: &[&str] = &[
    "profile.release.opt-level=3",
    "profile.release.lto=\"off\"",
    "profile.release.codegen-units=1",
    "profile.release.strip=\"none\"",
    "profile.release.panic=\"abort\"",
    "profile.release.overflow-checks=false",
    "profile.release.debug-assertions=false",
];

/// The crates whose locked closure ends up in the object.
const ROOTS: &[&str] = &["aya-ebpf", "aya-log-ebpf"];

/// SHA-256 over everything that shapes the object, as lower-case hex.
pub fn source_sha256(workspace: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |name: &str, bytes: &[u8]| {
        // Lengths keep two neighbours from trading bytes without changing the hash.
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let mut files = Vec::new();
    rust_files(&workspace.join("perf-gate-ebpf/src"), &mut files)?;
    files.push(workspace.join("perf-gate-ebpf/Cargo.toml"));
    files.sort();
    for file in &files {
        let name = file.strip_prefix(workspace).unwrap_or(file);
        add(&name.to_string_lossy(), &fs::read(file)?);
    }
    let lock = fs::read_to_string(workspace.join("Cargo.lock"))?;
    for package in locked_closure(&lock) {
        add("locked", package.as_bytes());
    }
    for flag in RUSTFLAGS.iter().chain(PROFILE) {
        add("flag", flag.as_bytes());
    }
    Ok(hex(&hash.finalize()))
}

/// Lower-case hex of a digest.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of `bytes` as lower-case hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Only `.rs` files: an editor's backup beside them must not make the object stale.
fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// `name version checksum` of [`ROOTS`] and everything they depend on. Cargo.lock is machine-written, one
/// key a line, so a few prefixes read it; a TOML parser would be a build dependency for every user.
fn locked_closure(lock: &str) -> BTreeSet<String> {
    let mut packages: BTreeMap<&str, Vec<(String, Vec<&str>)>> = BTreeMap::new();
    for block in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            block.lines().find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        let (Some(name), Some(version)) = (value("name"), value("version")) else {
            continue;
        };
        let needs = block
            .lines()
            .filter_map(|line| line.strip_prefix(" \"")?.strip_suffix("\","))
            // "name" or, where two versions are locked, "name version".
            .filter_map(|line| line.split(' ').next())
            .collect();
        let id = format!("{name} {version} {}", value("checksum").unwrap_or("-"));
        packages.entry(name).or_default().push((id, needs));
    }
    let mut closure = BTreeSet::new();
    let mut open: Vec<&str> = ROOTS.to_vec();
    while let Some(name) = open.pop() {
        for (id, needs) in packages.get(name).into_iter().flatten() {
            if closure.insert(id.clone()) {
                open.extend(needs);
            }
        }
    }
    closure
}
