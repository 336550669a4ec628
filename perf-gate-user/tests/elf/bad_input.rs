//! Files that are not what they seem: each gives one error, at once.

use crate::synthetic::{self, TEXT};
use perf_gate::{
    elf::{Error, Image},
    model::Lane,
    v8::{Plan, PointKind, cache},
};
use perf_gate_ebpf::Op;
use std::{
    fs,
    time::{Duration, Instant},
};

fn open(bytes: &[u8]) -> Result<Image, Error> {
    Image::from_file(synthetic::file(bytes), "synthetic")
}

fn plan(bytes: &[u8]) -> Plan {
    let image = open(bytes).expect("opens");
    Plan::resolve(&image).expect("readable").expect("has V8")
}

fn put(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn the_synthetic_node_is_complete() {
    let plan = plan(&synthetic::node());
    assert_eq!(plan.v8_version.as_deref(), Some("14.6.202.34"));
    assert_eq!(plan.node_version.as_deref(), Some("26.12.1"));
    assert_eq!(plan.build_id, "abababababababab");
    assert_eq!(plan.blind, []);
    assert_eq!(plan.doubts, []);
    let free = plan.points.iter().find(|p| p.op == Op::BufferFree);
    let free = free.expect("Free is probed");
    assert_eq!(free.offset % 16, 5, "behind the lock-prefixed instruction");
    assert!(free.slow);
    for p in plan.points.iter().filter(|p| p.op != Op::BufferFree) {
        assert_eq!(p.offset % 16, 0, "{}", p.symbol);
        assert!(!p.slow, "{}", p.symbol);
    }
}

#[test]
fn without_sections_the_dynamic_symbols_remain() {
    let bytes = put(&synthetic::node(), 40, &[0; 8]);
    let plan = plan(&bytes);
    assert_eq!(plan.blind, []);
    assert_eq!(plan.node_version, None);
}

#[test]
fn each_kind_of_bad_file_has_its_error() {
    let node = synthetic::node();
    assert!(matches!(open(b""), Err(Error::Empty)));
    assert!(matches!(open(b"#!/bin/sh\n"), Err(Error::NotElf)));
    assert!(matches!(open(b"\x7fEL"), Err(Error::NotElf)));
    assert!(matches!(open(b"\x7fELF"), Err(Error::Truncated(_))));
    assert!(matches!(open(&node[..63]), Err(Error::Truncated(_))));
    assert!(matches!(
        open(&put(&node, 4, &[1])[..52]),
        Err(Error::Not64Bit)
    ));
    assert!(matches!(open(&put(&node, 4, &[7])), Err(Error::Damaged(_))));
    assert!(matches!(
        open(&put(&node, 18, &[183, 0])),
        Err(Error::WrongMachine(183))
    ));
    assert!(matches!(
        open(&put(&put(&node, 5, &[2]), 18, &[0, 22])),
        Err(Error::WrongMachine(22))
    ));
    assert!(matches!(
        open(&put(&node, 16, &[1, 0])),
        Err(Error::NotProgram(1))
    ));
    assert!(matches!(
        open(&put(&node, 56, &[0, 0])),
        Err(Error::Damaged(_))
    ));
    assert!(matches!(
        open(&put(&node, 56, &[255, 255])),
        Err(Error::Damaged(_))
    ));
    assert!(matches!(
        open(&put(&node, 54, &[1, 0])),
        Err(Error::Damaged(_))
    ));
    assert!(matches!(
        open(&put(&node, 40, &[0xff; 8])),
        Err(Error::Truncated(_))
    ));
    // The largest section count the extended form can say.
    let first = u64::from_le_bytes(node[40..48].try_into().expect("8 bytes")) as usize;
    let many = put(&put(&node, 60, &[0, 0]), first + 32, &[0xff; 8]);
    assert!(matches!(open(&many), Err(Error::Damaged(_))));
}

#[test]
fn every_truncation_is_an_error() {
    let node = synthetic::node();
    for len in 0..node.len() {
        let error = open(&node[..len]).expect_err("cut short");
        let text = error.to_string();
        assert!(!text.contains('\n') && text.len() > 20, "{text}");
    }
}

#[test]
fn folders_pipes_and_devices_are_refused_without_waiting() {
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let start = Instant::now();
    for path in [dir.path(), &pipe, "/dev/null".as_ref()] {
        assert!(
            matches!(Image::open(path), Err(Error::NotRegular(_))),
            "{path:?}"
        );
    }
    assert!(matches!(
        Image::open(dir.path().join("none")),
        Err(Error::Io(_))
    ));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn an_entry_that_cannot_be_probed_makes_its_lane_blind() {
    // Every function is `lock inc dword [rdi]; ret`, then `lock xadd [rdi], rdi`.
    for code in [
        &[0xf0, 0xff, 0x07, 0xc3][..],
        &[0xf0, 0x48, 0x0f, 0xc1, 0x3f],
        &[0x06],
    ] {
        let mut node = synthetic::node();
        for n in 0..perf_gate::v8::table::rows().count() {
            node[TEXT + 16 * n..][..code.len()].copy_from_slice(code);
        }
        let plan = plan(&node);
        assert!(plan.points.iter().all(|p| p.kind == PointKind::Entry));
        let why = plan.blind_in(Lane::External).expect("blind");
        assert!(why.contains("cannot be probed"), "{why}");
    }
}

#[test]
fn huge_tables_cost_time_but_no_memory() {
    let mut node = synthetic::node();
    let sections = u64::from_le_bytes(node[40..48].try_into().expect("8 bytes")) as usize;
    // .symtab becomes 200 MB and its names 200 MB, all in the hole behind the data.
    for (n, len) in [(4, 24u64 * 9_000_000), (5, 200 << 20)] {
        node[sections + 64 * n + 32..][..8].copy_from_slice(&len.to_le_bytes());
    }
    let file = synthetic::file(&node);
    file.set_len(1 << 30).expect("a hole");
    let image = Image::from_file(file, "sparse").expect("opens");
    let start = Instant::now();
    assert!(Plan::resolve(&image).expect("readable").is_some());
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_doubtful_cache_is_a_miss() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("made/on/demand");
    let node = synthetic::node();
    let image = open(&node).expect("opens");
    assert_eq!(cache::load(&dir, &image), None);
    let first = cache::resolve(&dir, &image)
        .expect("readable")
        .expect("has V8");
    assert!(!first.from_cache && first.not_stored.is_none());
    let again = cache::resolve(&dir, &image)
        .expect("readable")
        .expect("has V8");
    assert!(again.from_cache);
    assert_eq!(again.plan, first.plan);

    // Other code behind the same build id.
    let other = open(&put(&node, TEXT, &[0x90])).expect("opens");
    assert_eq!(cache::load(&dir, &other), None);
    // Another size.
    let mut longer = node;
    longer.push(0);
    assert_eq!(cache::load(&dir, &open(&longer).expect("opens")), None);

    let path = fs::read_dir(&dir)
        .expect("a folder")
        .next()
        .expect("a file")
        .expect("a file")
        .path();
    let good = fs::read(&path).expect("a plan");
    for len in 0..good.len() {
        fs::write(&path, &good[..len]).expect("written");
        assert_eq!(cache::load(&dir, &image), None);
    }
    fs::write(&path, &good).expect("written");
    assert!(cache::load(&dir, &image).is_some());
    let mut seed = 7u64;
    for _ in 0..2000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut bad = good.clone();
        let at = (seed >> 33) as usize % bad.len();
        bad[at] = (seed >> 20) as u8;
        fs::write(&path, &bad).expect("written");
        // Must not panic; whatever is accepted still lies in the code.
        if let Some(plan) = cache::load(&dir, &image) {
            assert!(plan.points.iter().all(|p| image.is_code(p.offset)));
        }
    }
    fs::remove_file(&path).expect("removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    assert_eq!(cache::load(&dir, &image), None);
    let read_only = cache::resolve("/proc/none".as_ref(), &image)
        .expect("readable")
        .expect("has V8");
    assert!(read_only.not_stored.is_some());
}
