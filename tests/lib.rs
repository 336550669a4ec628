//! What every end-to-end test needs: the built binary, the Node builds, and one observed run.
//!
//! The tests drive the program as a user does, through its command line, and read what it writes: its exit
//! code and its machine record. Loading eBPF programs needs root; without it a test says aloud that it was
//! skipped (past libtest's capture, which would hide it) and passes. All runs of one test executable share
//! a cache directory of their own, so that a node is proven once and nothing of the machine's cache is
//! believed.

mod run;
pub mod trace_gc;

pub use run::{Observed, Watch};

use std::{
    env,
    io::Write as _,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// The builds that a test over the matrix runs on; see `on_each_node!`.
pub const NODES: [&str; 6] = [
    "18.20.8", "20.20.2", "22.23.5", "24.22.3", "26.12.1", "deb18",
];

/// One Node build.
#[derive(Clone, Debug)]
pub struct Node {
    /// As in [`NODES`].
    pub name: &'static str,
    pub major: u32,
    pub path: PathBuf,
}

impl Node {
    /// The build of that name, if it was fetched.
    #[must_use]
    pub fn find(name: &'static str) -> Option<Self> {
        let path = nodes_dir()?.join(name).join("bin/node");
        let number = name.strip_prefix("deb").unwrap_or(name);
        let major = number.split('.').next()?.parse().ok()?;
        path.is_file().then_some(Self { name, major, path })
    }

    /// The build of that name, or a loud skip.
    #[must_use]
    pub fn or_skip(name: &'static str) -> Option<Self> {
        let node = Self::find(name);
        if node.is_none() {
            say_skipped(&format!(
                "no Node {name} here; cargo xtask nodes fetches it"
            ));
        }
        node
    }
}

fn nodes_dir() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("PERF_GATE_NODES").filter(|d| !d.is_empty()) {
        return Some(dir.into());
    }
    Some(env::home_dir()?.join(".cache/perf-gate/nodes"))
}

/// The perf-gate under test: `PERF_GATE_BIN`, or what cargo built beside this test.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = env::var_os("PERF_GATE_BIN").filter(|p| !p.is_empty()) {
        return path.into();
    }
    let exe = env::current_exe().expect("the test knows its own path");
    // TARGET/PROFILE/deps/NAME-HASH
    let target = exe
        .ancestors()
        .nth(3)
        .expect("the test lies in a target folder");
    ["release", "debug"]
        .map(|profile| target.join(profile).join("perf-gate"))
        .into_iter()
        .find(|path| path.is_file())
        .expect(
            "no perf-gate was built: cargo build --release -p perf-gate-user, or set PERF_GATE_BIN",
        )
}

/// A file under `tests/fixtures`.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The cache directory of this test executable, removed when it ends.
#[must_use]
pub fn cache_dir() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = tempfile::Builder::new()
            .prefix("perf-gate-tests-")
            .tempdir()
            .expect("a temporary folder can be made");
        // SAFETY: the handler is a plain function that lives as long as the program.
        unsafe { libc::atexit(remove_cache) };
        dir.keep()
    });
    extern "C" fn remove_cache() {
        let _ = std::fs::remove_dir_all(&*DIR);
    }
    &DIR
}

/// Prints `SKIPPED: why` where it is seen even though libtest captures what a test prints.
pub fn say_skipped(why: &str) {
    let test = std::thread::current();
    let line = format!("SKIPPED: {}: {why}\n", test.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Leaves the test, aloud, with a reason.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::say_skipped(&format!($($why)*));
        return;
    }};
}

/// Leaves the test, aloud, unless it runs as root.
#[macro_export]
macro_rules! skip_unless_root {
    () => {
        if !$crate::is_root() {
            $crate::skip!("loading eBPF programs needs root");
        }
    };
}

/// Runs a test on one build, if it is there and we are root.
pub fn on(name: &'static str, test: fn(&Node)) {
    skip_unless_root!();
    if let Some(node) = Node::or_skip(name) {
        test(&node);
    }
}

/// Makes a test per Node build of each function `fn(&Node)` named.
#[macro_export]
macro_rules! on_each_node {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            #[test]
            fn node_18() { $crate::on("18.20.8", super::$test); }
            #[test]
            fn node_20() { $crate::on("20.20.2", super::$test); }
            #[test]
            fn node_22() { $crate::on("22.23.5", super::$test); }
            #[test]
            fn node_24() { $crate::on("24.22.3", super::$test); }
            #[test]
            fn node_26() { $crate::on("26.12.1", super::$test); }
            #[test]
            fn debian_18() { $crate::on("deb18", super::$test); }
        }
    )+};
}
