//! The table against the node binaries it was made for.

use perf_gate::{
    elf::Image,
    model::Lane,
    v8::{Plan, Version, cache, locate, reasons, spaces},
};
use perf_gate_ebpf::Op;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// (name of the folder, binary)
fn nodes() -> Vec<(String, PathBuf)> {
    let folder = std::env::var_os("PERF_GATE_NODES").map_or_else(
        || {
            let home = std::env::var_os("HOME").unwrap_or_default();
            Path::new(&home).join(".cache/perf-gate/nodes")
        },
        PathBuf::from,
    );
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Some((name, entry.path().join("bin/node")))
        })
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    if found.is_empty() {
        eprintln!("SKIPPED: no node binaries in {folder:?}; run `cargo xtask nodes`");
    }
    found
}

/// The file with V8 in it: the binary, or the library that it loads.
fn v8_of(path: &Path) -> Option<Image> {
    let image = Image::open(path).ok()?;
    if Plan::resolve(&image).ok()?.is_some() {
        return Some(image);
    }
    let lib = path.parent()?.parent()?.join("lib");
    let found = locate::libraries(
        &image,
        path,
        Path::new("/"),
        Some(lib.as_os_str()),
        &locate::V8_NAMES,
    );
    found.into_iter().next().map(|l| l.image)
}

#[test]
fn every_lane_of_every_known_node_is_resolved() {
    for (name, path) in nodes() {
        let Some(image) = v8_of(&path) else {
            panic!("{name}: no V8 found in {path:?} or its libraries");
        };
        let start = Instant::now();
        let plan = Plan::resolve(&image).expect("readable").expect("has V8");
        let took = start.elapsed();
        assert_eq!(plan.blind, [], "{name}");
        assert_eq!(plan.doubts, [], "{name}");
        let node = plan.node_version.as_deref().expect("says its version");
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            assert_eq!(node, name);
        }
        let v8 = plan.version().expect("says V8's version");
        let old = v8.major == 10;
        let spaces_own_areas = v8.major < 12;
        for op in Op::ALL {
            let there = plan.points.iter().any(|p| p.op == op);
            let wanted = match op {
                Op::BufferRealloc => old,
                Op::LabOfNewSpace | Op::LabOfPagedSpace => spaces_own_areas,
                Op::LabOfAllocator | Op::LocalHeapGone => !spaces_own_areas,
                // In the C library.
                Op::Marker | Op::ProcessExit => false,
                _ => true,
            };
            assert_eq!(there, wanted, "{name}: {op:?}");
        }
        assert!(reasons::text(Some(v8), 27).starts_with(if old { "unknown" } else { "CppHeap" }));
        assert_eq!(
            spaces::name(Some(v8), spaces::old_space_id(Some(v8))),
            Some("old_space")
        );
        // A debug build on a busy machine; the release build takes 20-35 ms.
        assert!(took < Duration::from_secs(5), "{name} took {took:?}");
        println!("{name}: V8 {v8}, {} points in {took:?}", plan.points.len());
    }
}

#[test]
fn a_stripped_node_says_what_it_cannot_see() {
    for (name, path) in nodes() {
        let dir = tempfile::tempdir().expect("a folder");
        let stripped = dir.path().join("node");
        let Some(image) = v8_of(&path) else { continue };
        let full = Plan::resolve(&image).expect("readable").expect("has V8");
        let strip = Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(&path)
            .status();
        if !strip.is_ok_and(|s| s.success()) {
            eprintln!("SKIPPED: no `strip` here (package binutils)");
            return;
        }
        let Some(image) = v8_of(&stripped) else {
            continue;
        };
        let plan = Plan::resolve(&image).expect("readable").expect("has V8");
        assert_eq!(plan.v8_version, full.v8_version);
        assert_eq!(plan.blind_in(Lane::External), None, "{name}");
        if plan.version().is_some_and(|v| v.major >= 13) {
            // Windows are marked in the C library.
            let elsewhere = [Lane::External, Lane::Window];
            for lane in Lane::ALL.into_iter().filter(|l| !elsewhere.contains(l)) {
                let why = plan.blind_in(lane).expect("blind");
                assert!(why.contains("stripped"), "{why}");
            }
        } else {
            assert_eq!(plan.blind, [], "{name}");
        }
        // The same build id, another answer: they must not share a cache entry.
        let cached = dir.path().join("cache");
        cache::store(&cached, &image, &plan).expect("stored");
        let original = Image::open(&path).expect("opens");
        if original.build_id() == image.build_id() {
            assert_eq!(cache::load(&cached, &original), None, "{name}");
        }
    }
}

#[test]
fn ordinary_programs_have_no_v8() {
    for path in [
        "/bin/sh",
        "/bin/bash",
        "/usr/bin/env",
        "/usr/bin/python3",
        "/usr/bin/perl",
    ] {
        let Ok(image) = Image::open(path) else {
            continue;
        };
        let start = Instant::now();
        let plan = Plan::resolve(&image).expect("readable");
        assert_eq!(plan, None, "{path}");
        assert!(!locate::may_need(&image));
        println!("{path}: {:?}", start.elapsed());
    }
    let own = Image::open("/proc/self/exe").expect("opens");
    assert_eq!(Plan::resolve(&own).expect("readable"), None);
}

#[test]
fn unknown_versions_are_doubted_not_refused() {
    let mut bytes = crate::synthetic::node();
    // The four numbers follow the bodies; 14 becomes 15.
    let at = crate::synthetic::TEXT + 16 * perf_gate::v8::table::rows().count();
    assert_eq!(bytes[at], 14);
    bytes[at] = 15;
    let file = crate::synthetic::file(&bytes);
    let image = Image::from_file(file, "newer").expect("opens");
    let plan = Plan::resolve(&image).expect("readable").expect("has V8");
    assert_eq!(plan.version(), Version::parse("15.6.202.34"));
    assert_eq!(plan.blind, []);
    assert_eq!(plan.doubts.len(), Lane::ALL.len());
    assert!(plan.doubts[0].1.contains("15.6.202.34 is not in the table"));
}
