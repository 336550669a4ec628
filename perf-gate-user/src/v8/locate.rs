//! Finds the shared library that holds V8 when the executable does not.
//!
//! Debian and others put node into `libnode.so.N`. A program that was just started has not mapped its
//! libraries yet, so they are searched for as the dynamic linker will: RPATH, `LD_LIBRARY_PATH`,
//! RUNPATH, the linker's cache, the default folders, all inside the root of that process. Paths are
//! opened with `openat2(RESOLVE_IN_ROOT)`: an absolute symbolic link in a container must lead into the
//! container, not to a file of ours.

use crate::elf::Image;
use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};
use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Libraries that may hold V8 or node's allocator.
/// The C library: glibc's and musl's.
pub const C_NAMES: [&str; 2] = ["libc.so.6", "libc.musl-"];
pub const V8_NAMES: [&str; 2] = ["libnode", "libv8"];
/// Where glibc, Debian's glibc and musl look in the end.
const DEFAULTS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
];
const CACHE: &str = "/etc/ld.so.cache";
const CACHE_CAP: u64 = 16 << 20;
const LIBRARIES_CAP: usize = 8;

#[derive(Debug)]
pub struct Library {
    /// As the process sees it, without the root's prefix.
    pub path: PathBuf,
    /// Opened; its own path is the one from here (root and `path`).
    pub image: Image,
}

/// Whether the file asks for a library that may hold V8.
#[must_use]
pub fn may_need(image: &Image) -> bool {
    image
        .needed()
        .iter()
        .any(|name| is_candidate(name, &V8_NAMES))
}

/// The libraries named libnode* and libv8* that `program` will load, also those that they load.
///
/// `exe` is the program's own path inside `root` (for `$ORIGIN`), `root` is `/` or `/proc/PID/root`,
/// `library_path` the value of `LD_LIBRARY_PATH` in the program's environment.
#[must_use]
pub fn libraries(
    program: &Image,
    exe: &Path,
    root: &Path,
    library_path: Option<&OsStr>,
    names: &[&str],
) -> Vec<Library> {
    let mut found: Vec<Library> = Vec::new();
    let mut waiting: VecDeque<(String, Vec<PathBuf>)> = VecDeque::new();
    let ask = |waiting: &mut VecDeque<_>, image: &Image, at: &Path| {
        for name in image
            .needed()
            .iter()
            .filter(|name| is_candidate(name, names))
        {
            waiting.push_back((name.clone(), folders(image, at, library_path)));
        }
    };
    ask(&mut waiting, program, exe);
    while let Some((name, folders)) = waiting.pop_front() {
        if found.len() >= LIBRARIES_CAP || found.iter().any(|l| l.path.ends_with(&name)) {
            continue;
        }
        let Some(library) = search(root, &name, &folders) else {
            continue;
        };
        ask(&mut waiting, &library.image, &library.path);
        if found
            .iter()
            .all(|l| l.image.facts() != library.image.facts())
        {
            found.push(library);
        }
    }
    found
}

fn is_candidate(name: &str, names: &[&str]) -> bool {
    // With a slash the linker takes the name as a path; only plain names are searched for.
    let base = name.rsplit('/').next().unwrap_or(name);
    names.iter().any(|prefix| base.starts_with(prefix)) && base.contains(".so")
}

/// Folders searched before the linker's cache, in order.
fn folders(image: &Image, at: &Path, library_path: Option<&OsStr>) -> Vec<PathBuf> {
    let origin = at.parent().unwrap_or(Path::new("/"));
    let list = |text: &OsStr| -> Vec<PathBuf> {
        std::env::split_paths(text)
            .take(256)
            .map(|p| expand(&p, origin))
            .collect()
    };
    let of = |text: Option<&str>| text.map(|t| list(OsStr::new(t))).unwrap_or_default();
    let mut all = Vec::new();
    // RUNPATH switches RPATH off.
    if image.runpath().is_none() {
        all.extend(of(image.rpath()));
    }
    all.extend(library_path.map(list).unwrap_or_default());
    all.extend(of(image.runpath()));
    all
}

fn expand(path: &Path, origin: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    for word in ["$ORIGIN", "${ORIGIN}"] {
        if let Some(rest) = text.strip_prefix(word) {
            return origin.join(rest.trim_start_matches('/'));
        }
    }
    path.to_owned()
}

fn search(root: &Path, name: &str, folders: &[PathBuf]) -> Option<Library> {
    if name.contains('/') {
        return try_open(root, Path::new(name));
    }
    let first = folders.iter().filter(|f| f.is_absolute());
    if let Some(library) = first.map(|f| f.join(name)).find_map(|p| try_open(root, &p)) {
        return Some(library);
    }
    let cached = cached(root, name).unwrap_or_default();
    let rest = DEFAULTS.iter().map(|f| Path::new(f).join(name));
    cached
        .into_iter()
        .chain(rest)
        .find_map(|p| try_open(root, &p))
}

/// The linker, too, goes on to the next folder when a file does not fit.
fn try_open(root: &Path, path: &Path) -> Option<Library> {
    let file = open_in(root, path)?;
    let shown = root.join(path.strip_prefix("/").unwrap_or(path));
    let image = Image::from_file(file, shown).ok()?;
    Some(Library {
        path: path.to_owned(),
        image,
    })
}

/// Opens a path inside `root` for reading, following links as if `root` were `/`.
#[must_use]
pub fn open_in(root: &Path, path: &Path) -> Option<File> {
    let inside: OwnedFd = File::open(root).ok()?.into();
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .mode(Mode::empty())
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(&inside, path, how).ok().map(File::from)
}

/// Paths for `name` in the linker's cache. Its layout: a magic text of 20 bytes, the number of
/// entries, 24 more bytes, then entries of 24 bytes whose second and third word are the places of
/// the library's name and path in the same file.
fn cached(root: &Path, name: &str) -> Option<Vec<PathBuf>> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let mut raw = Vec::new();
    open_in(root, Path::new(CACHE))?
        .take(CACHE_CAP)
        .read_to_end(&mut raw)
        .ok()?;
    if !raw.starts_with(MAGIC) {
        return None;
    }
    let word = |at: usize| -> Option<usize> {
        let bytes = raw.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let string = |at: usize| -> Option<&str> {
        let rest = raw.get(at..)?;
        std::str::from_utf8(&rest[..memchr::memchr(0, rest)?]).ok()
    };
    let entries = raw.get(HEADER..)?.len() / ENTRY;
    let mut paths = Vec::new();
    for n in 0..word(MAGIC.len())?.min(entries) {
        let at = HEADER + n * ENTRY;
        if string(word(at + 4)?) == Some(name)
            && let Some(path) = string(word(at + 8)?)
        {
            paths.push(PathBuf::from(path));
        }
    }
    Some(paths)
}
