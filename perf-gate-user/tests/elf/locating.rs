//! The search for libnode, in a root of its own as a container has it.

use crate::synthetic;
use perf_gate::{elf::Image, v8::locate};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

const NAME: &str = "libnode.so.1";

/// A program that asks for [`NAME`]: the name that the dynamic section points at is replaced.
fn program() -> Image {
    let mut bytes = synthetic::node();
    let first = perf_gate::v8::table::ROWS[0].names[0].mangled.as_bytes();
    let at = memchr::memmem::find(&bytes, first).expect("the first name");
    bytes[at..at + NAME.len()].copy_from_slice(NAME.as_bytes());
    bytes[at + NAME.len()] = 0;
    Image::from_file(synthetic::file(&bytes), "program").expect("opens")
}

fn put(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

fn found(root: &Path, library_path: Option<&str>) -> Vec<PathBuf> {
    let exe = Path::new("/usr/bin/node");
    let library_path = library_path.map(std::ffi::OsStr::new);
    locate::libraries(&program(), exe, root, library_path, &locate::V8_NAMES)
        .into_iter()
        .map(|l| l.path)
        .collect()
}

/// A linker's cache with one entry.
fn cache(path: &str) -> Vec<u8> {
    let mut out = Vec::from(*b"glibc-ld.so.cache1.1");
    out.extend(1u32.to_le_bytes());
    out.resize(48, 0);
    for word in [3, 72, 72 + NAME.len() as u32 + 1, 0, 0, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(NAME.as_bytes());
    out.push(0);
    out.extend(path.as_bytes());
    out.push(0);
    out
}

#[test]
fn every_place_is_searched_in_the_linkers_order() {
    assert!(locate::may_need(&program()));
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    let node = synthetic::node();
    assert_eq!(found(root, None), Vec::<PathBuf>::new());
    put(root, "usr/lib/libnode.so.1", &node);
    assert_eq!(found(root, None), [Path::new("/usr/lib/libnode.so.1")]);
    put(root, "opt/x/libnode.so.1", &node);
    put(root, "etc/ld.so.cache", &cache("/opt/x/libnode.so.1"));
    assert_eq!(found(root, None), [Path::new("/opt/x/libnode.so.1")]);
    // What does not fit is passed over.
    put(root, "srv/a/libnode.so.1", b"not a library");
    put(root, "srv/b/libnode.so.1", &node);
    let listed = found(root, Some("relative:/srv/none:/srv/a:/srv/b"));
    assert_eq!(listed, [Path::new("/srv/b/libnode.so.1")]);
    fs::create_dir_all(root.join("usr/bin")).expect("made");
    let origin = found(root, Some("$ORIGIN/../../srv/b"));
    assert_eq!(origin, [Path::new("/usr/bin/../../srv/b/libnode.so.1")]);
}

#[test]
fn links_stay_inside_the_root() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("root");
    let node = synthetic::node();
    put(&root, "real/libnode.so.1.2", &node);
    fs::create_dir_all(root.join("usr/lib")).expect("made");
    symlink("/real/libnode.so.1.2", root.join("usr/lib/libnode.so.1")).expect("linked");
    assert_eq!(found(&root, None), [Path::new("/usr/lib/libnode.so.1")]);
    // One that would leave the root finds nothing.
    let outside = dir.path().join("outside");
    fs::write(&outside, &node).expect("written");
    fs::remove_file(root.join("usr/lib/libnode.so.1")).expect("removed");
    symlink(&outside, root.join("usr/lib/libnode.so.1")).expect("linked");
    assert_eq!(found(&root, None), Vec::<PathBuf>::new());
}

#[test]
fn a_damaged_cache_of_the_linker_is_passed_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    put(root, "usr/lib/libnode.so.1", &synthetic::node());
    let good = cache("/none/libnode.so.1");
    for at in 0..good.len() {
        for value in [0, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            put(root, "etc/ld.so.cache", &bad);
            assert_eq!(found(root, None).len(), 1);
        }
        put(root, "etc/ld.so.cache", &good[..at]);
        assert_eq!(found(root, None).len(), 1);
    }
}
